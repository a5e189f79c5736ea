#!/usr/bin/env python3
"""Write the pages of docs/ that are generated from code and data: commands, files, expected MFU, the result
file and its schema.

python3 tools/write_docs.py          write them
python3 tools/write_docs.py --check  exit 1 and name the page if one is out of date (a test does this)
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tensorprimat.cli import COMMANDS  # noqa: E402  # of this checkout

SCRIPTS = {
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
    """Return the list of commands, each with a link to its page and the anchor that it had when all were on one."""
    rows = []
    for name, says in COMMANDS.items():
        script = f" (`{SCRIPTS[name]}`)" if name in SCRIPTS else ""
        anchor = f"tprimat-{name}" + (f"-{SCRIPTS[name].replace('.', '')}" if name in SCRIPTS else "")
        rows.append(f'| <a id="{anchor}"></a>[`tprimat {name}`](commands/{name}.md){script} | {says} |')
    head = "# Commands\n\nEvery command, with a link to its manual. Written by `tools/write_docs.py`.\n"
    return "\n".join([head, "| command | what it does |", "|---|---|", *rows, ""])


def command_page(name: str) -> str:
    """Return the manual of one command, as --help prints it."""
    shown = subprocess.run(
        [sys.executable, "-m", "tensorprimat", name, "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True, env={"COLUMNS": "100", "PATH": "/usr/bin:/bin"},
    ).stdout  # fmt: skip
    says = f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}."
    script = f" `{SCRIPTS[name]}` is the same command." if name in SCRIPTS else ""
    return f"# tprimat {name}\n\n{says}{script}\n\n```text\n{shown.rstrip()}\n```\n"


def result_page() -> str:
    """Return the page of the result file: an example, then one table of keys per record."""
    from tensorprimat import Result
    from tensorprimat.core.settings import TrainingSettings
    from tensorprimat.core.spec import SeenSettings

    parts, waiting, done = [RESULT_HEAD], [Result], set()
    while waiting:
        record = waiting.pop(0)
        if record in done:
            continue
        done.add(record)
        notes = _field_notes(TrainingSettings if issubclass(record, SeenSettings) else record) | _field_notes(record)
        rows = []
        for name, field in record.model_fields.items():
            if not field.exclude:
                waiting += _records_in(field.annotation)
                note = notes.get(name) or _known_note(name, field.annotation)
                rows.append(f"| `{name}` | {_type_name(field.annotation)} | {note} |")
        for name, computed in record.model_computed_fields.items():
            rows.append(f"| `{name}` | {_type_name(computed.return_type)} | {notes.get(name, '')} |")
        says = " ".join((record.__doc__ or "").split("\n\n")[0].split())
        table = "| key | type | meaning |\n|---|---|---|\n" + "\n".join(rows)
        parts.append(f"## {record.__name__}\n\n{says}\n\n{table}\n")
    return "\n".join(parts)


def _records_in(annotation: Any) -> list[Any]:
    """Return the record classes inside a type annotation, in order."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [record for part in get_args(annotation) for record in _records_in(part)]


def _type_name(annotation: Any) -> str:
    """Return a type as the page shows it: `number`, `text`, a link to a record, or a list of those."""
    if records := _records_in(annotation):
        link = f"[{records[0].__name__}](#{records[0].__name__.lower()})"
        return f"list of {link}" if get_origin(annotation) is tuple else link
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (list, tuple, dict):
        inner = [part for part in get_args(annotation) if part is not Ellipsis]
        names = [_type_name(part) for part in inner]
        return f"list of {names[0]}" if get_origin(annotation) is not dict else f"{names[0]} → {names[-1]}"
    if args := [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]:
        return _type_name(next((part for part in args if part is not type(None)), args[0]))
    return {float: "number", int: "integer", str: "text", bool: "true or false"}.get(annotation, "any")


def _known_note(name: str, annotation: Any) -> str:
    """Return the meaning of a field by the settings registry, the record that it holds, or the metric of its name."""
    from tensorprimat.core.result import PerformanceMetrics
    from tensorprimat.core.settings import BY_NAME

    setting = BY_NAME.get(name)
    if setting:
        return (
            setting.option.help
            if setting.option and "--" not in setting.option.help
            else f"{setting.heading}{' size' * bool(setting.symbol)}."
        )
    held = [" ".join(record.__doc__.split("\n\n")[0].split()) for record in _records_in(annotation)]
    return held[0] if held else _field_notes(PerformanceMetrics).get(name, "")


def _field_notes(record: type) -> dict[str, str]:
    """Return key → the docstring under the field, or of the property."""
    body = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0].body  # type: ignore[attr-defined]
    notes = {}
    for node, after in itertools.pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            notes[node.target.id] = " ".join(str(after.value.value).split()).replace("|", "/")  # type: ignore[union-attr]
        elif isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            says = " ".join(text.removeprefix("Return the ").split()).replace("|", "/")
            notes[node.name] = says[:1].upper() + says[1:]
    return notes


RESULT_HEAD = """# Result file

A result is one JSON file per benchmark, `benchmark_{cuda,rocm,cpu,unknown}_{model}.json`. After the model, the name
states engine, preset and methodology, each only if it is not the default (`benchmark_cuda_llama_max.json`: methodology
max), and the segment that `--segment` selected. The file holds every logged row, so that all figures can be computed
again; if there are more than 50,000 rows, a second file holds them (`series_file`). null (None in Python and in the
tables below) means that nothing was measured; `warnings` gives the reason. A key that ends in `_gb` counts 10⁹ bytes,
one that ends in `_seconds` counts seconds. The formal definition is [result.schema.json](../result.schema.json).
`tools/write_docs.py` writes this page from the records.

The example is shortened: a real file has more keys and longer lists.

```json
{
  "schema_version": 3,
  "platform": "cpu",
  "gpu_info": {"device_name": "…", "device_count": 1, "software_stack": "cpu"},
  "model": {"name": "llama", "preset": "tiny", "parameters": 1901696},
  "training_config": {"global_batch_size": 8, "sequence_length": 128, "precision": "fp32"},
  "performance_metrics": {"measured_steps": 60, "avg_step_time_seconds": 0.1, "tokens_per_second_per_gpu": 10240.0},
  "memory_metrics": null,
  "warnings": ["memory_metrics: CPU run, so peak memory is the process's RSS …"],
  "raw_step_times": [0.31, 0.1, 0.1],
  "step_metrics": {"loss": [8.3, 8.2, 8.1]}
}
```
"""


def schema() -> str:
    """Return the JSON Schema of the result file, from the records themselves."""
    from pydantic.json_schema import GenerateJsonSchema

    from tensorprimat.core.result import Result

    class OfFields(GenerateJsonSchema):
        """Generator that describes a record by its fields, although it rounds them when written."""

        def ser_schema(self, _schema: object) -> None:
            return None

    document = Result.model_json_schema(mode="serialization", schema_generator=OfFields)
    return json.dumps({"$schema": GenerateJsonSchema.schema_dialect, **document}, indent=2, ensure_ascii=False) + "\n"


def mfu_page() -> str:
    """Return the page of published training throughput and MFU, one table per model."""
    from tensorprimat.models import presets
    from tensorprimat.reproduce import published

    parts = [MFU_HEAD]
    every = [one for one in published.baselines() if one.row and (one.entry is None or one.mfu.value)]
    for model in dict.fromkeys(one.row.model for one in every if one.row):
        known = any(preset.model == model for preset in presets.PRESETS)
        title = presets.find_preset(model).title if known else model
        rows = []
        for one in every:
            row = one.row
            if row is None or row.model != model or not row.tokens_per_second_per_gpu:
                continue
            derived = "derived" if row.derived and one.entry is None else None  # the note of an entry says so
            no_mfu = None if one.mfu.value is not None else f"no MFU: {one.mfu.because}"
            cells = (
                row.gpu or "–", str(row.num_gpus), (row.precision or "–").upper(),
                f"{row.global_batch_size or '–'} × {row.sequence_length or '–'}",
                (row.framework or "–") + (", LoRA" if row.peft == "lora" else ""),
                f"{row.tokens_per_second_per_gpu:,.0f}", "–" if one.mfu.value is None else f"{one.mfu.value:.1%}",
                "; ".join(filter(None, (row.source, row.date, derived, row.note, no_mfu))),
            )  # fmt: skip
            rows.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        if rows:
            head = f"## {title}\n\n| {' | '.join(MFU_TITLES)} |\n|---|---|---|---|---|---:|---:|---|\n"
            parts.append(head + "\n".join(rows) + "\n")
    return "\n".join(parts)


MFU_TITLES = ("GPU", "GPUs", "Precision", "Batch × sequence", "Framework", "Tokens/s/GPU", "MFU", "Source, date")
MFU_HEAD = """# What MFU to expect

Published training throughput, and the MFU computed from it by the `megatron` convention against the GPU's dense peak at
the precision used. Some sources also state TFLOP/s. Their MFU is given only if these TFLOP/s agree within 2 % with
those computed from the token rate. This check uses the [convention](../concepts/mfu.md#conventions) that the source
names. If it names none, the check uses `megatron` or `full_attention`, whichever agrees better. A dash means that no
MFU is given; the last column says why.

Figures of MLPerf Training are derived from its logs and not verified by MLCommons. This page leaves out MLPerf entries
without an MFU and rows of other sources without a token rate; `tprimat mlperf list --published --json` prints all.
TensorPrimat measured none of these numbers. Written by `tools/write_docs.py` from `published.toml`,
`mlperf_library.jsonl` and `gpus.toml` of `tensorprimat/data/`.
"""

PAGES = {
    "docs/reference/commands.md": commands_page,
    **{f"docs/reference/commands/{name}.md": partial(command_page, name) for name in COMMANDS},
    "docs/reference/expected-mfu.md": mfu_page,
    "docs/reference/result-file.md": result_page,
    "docs/result.schema.json": schema,
}


def main() -> int:
    stale = []
    for name, write in PAGES.items():
        page, text = ROOT / name, write()
        if not page.is_file() or page.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run python3 tools/write_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
