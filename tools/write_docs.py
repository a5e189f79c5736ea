#!/usr/bin/env python3
"""Write the pages of docs/ that say what code and data say: commands.md, files.md, expected_mfu.md, result.schema.json.

python3 tools/write_docs.py          write them
python3 tools/write_docs.py --check  exit 1 and name the page if one is out of date (a test does this)
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
ROOMS = ("core", "logs", "machine", "engines", "micro", "analysis", "reports", "cli")
DOORS = {
    "run": "benchmark.py",
    "extract": "extract_primus_metrics.py",
    "compare": "compare_results.py",
    "enhance": "compare_with_enhanced_metrics.py",
    "metrics": "enhanced_metrics.py",
    "analyze": "analyze_existing_logs.py",
    "convert": "convert_checkpoint.py",
}
"""Command → the script at the top that leads to it."""


def commands_page() -> str:
    """The manual of every command, as --help prints it at 100 columns."""
    from tensorprimat.cli import COMMANDS

    parts = ["# Commands\n\nEvery command with its manual, as `--help` prints it. Written by `tools/write_docs.py`.\n"]
    for name, says in COMMANDS.items():
        shown = subprocess.run(
            [sys.executable, "-m", "tensorprimat", name, "--help"],
            cwd=ROOT, capture_output=True, text=True, check=True, env={"COLUMNS": "100", "PATH": "/usr/bin:/bin"},
        ).stdout  # fmt: skip
        door = f" (`{DOORS[name]}`)" if name in DOORS else ""
        parts.append(f"## tprimat {name}{door}\n\n{says[0].upper()}{says[1:]}.\n\n```text\n{shown.rstrip()}\n```\n")
    return "\n".join(parts)


def schema() -> str:
    """JSON Schema of the result file, from the records themselves."""
    from pydantic.json_schema import GenerateJsonSchema

    from tensorprimat.core.records import Result

    class OfFields(GenerateJsonSchema):
        """Describes a record by its fields even where it rounds them when it is written."""

        def ser_schema(self, _schema: object) -> None:
            return None

    document = Result.model_json_schema(mode="serialization", schema_generator=OfFields)
    return json.dumps({"$schema": GenerateJsonSchema.schema_dialect, **document}, indent=2, ensure_ascii=False) + "\n"


def files_page() -> str:
    """Return the page of all files, each with the first sentence of its docstring or comment."""
    parts = ["# Files\n\nEvery file and its purpose. Written by `tools/write_docs.py`.\n"]
    for folder in ("", *FOLDERS):
        files = sorted(path for path in (ROOT / folder).glob("*") if path.suffix in COMMENTS and path.is_file())
        said = [(path.name, _first_sentence(path)) for path in files]
        width = max(len(name) for name, _ in said) + 2
        lines = [f"{name:<{width}}{sentence}".rstrip() for name, sentence in said if sentence]
        parts.append(f"## {folder or 'At the top'}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


def mfu_page() -> str:
    """Return the page of published training throughput and MFU, one table per model."""
    from tensorprimat.analysis import published
    from tensorprimat.core import models

    parts = [MFU_HEAD]
    every = [one for one in published.baselines() if one.row and (one.entry is None or one.mfu)]
    for model in dict.fromkeys(one.row.model for one in every if one.row):
        known = any(preset.model == model for preset in models.PRESETS)
        title = models.find(model).title if known else model
        rows = []
        for one in every:
            row = one.row
            if row is None or row.model != model or not row.tokens_per_second_per_gpu:
                continue
            cells = (
                row.gpu or "–", str(row.num_gpus), (row.precision or "–").upper(),
                f"{row.global_batch_size or '–'} × {row.sequence_length or '–'}",
                (row.framework or "–") + (", LoRA" if row.peft == "lora" else ""),
                f"{row.tokens_per_second_per_gpu:,.0f}", "–" if one.mfu is None else f"{one.mfu:.1%}",
                "; ".join(filter(None, (row.source, row.date, "derived" if row.derived else None, row.note))),
            )  # fmt: skip
            rows.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        if rows:
            head = f"## {title}\n\n| {' | '.join(MFU_TITLES)} |\n|---|---|---|---|---|---:|---:|---|\n"
            parts.append(head + "\n".join(rows) + "\n")
    return "\n".join(parts)


MFU_TITLES = ("GPU", "GPUs", "Precision", "Batch × sequence", "Framework", "Tokens/s/GPU", "MFU", "Source, date")
MFU_HEAD = """# What MFU to expect

Published training throughput, and the MFU computed from it by the `megatron` convention (causal attention counted once)
against the GPU's dense peak at the precision used. A dash means that the source does not state a value that MFU needs.
Figures of MLPerf Training are derived from its logs and not verified by MLCommons; those whose MFU can be derived are
here, `tprimat mlperf list` prints all. TensorPrimat measured none of these numbers. Written by `tools/write_docs.py`
from `published.toml` and `mlperf_library.jsonl` of `tensorprimat/data/`; the peaks are those of `gpus.toml` there.
"""

FOLDERS = (
    *(f"tensorprimat/{room}" for room in ROOMS), "tensorprimat/data", "tools", "perf", "tests", "tests/nemo_env",
    "tests/slurm",
)  # fmt: skip
COMMENTS = {".py": "", ".sh": "#", ".toml": "#", ".css": "/*", ".js": "//"}
"""What begins a comment, by ending; a Python file has its docstring."""


def _first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, or of the first comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        mark = COMMENTS[path.suffix]
        lines = [line for line in text.splitlines() if not line.startswith("#!")]
        comment = itertools.takewhile(lambda line: line.startswith((mark, " *")), lines)
        said = "\n".join(line.removeprefix(mark).strip(" */") for line in comment)
    paragraph = " ".join(said.partition("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s", paragraph)[0]


PAGES = {
    "docs/files.md": files_page,
    "docs/commands.md": commands_page,
    "docs/expected_mfu.md": mfu_page,
    "docs/result.schema.json": schema,
}


def main() -> int:
    stale = []
    for name, write in PAGES.items():
        page, text = ROOT / name, write()
        if not page.is_file() or page.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                page.parent.mkdir(exist_ok=True)
                page.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run python3 tools/write_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
