#!/usr/bin/env python3
"""Write the pages of docs/ that say what the code says: commands.md from every --help, result.schema.json.

python3 tools/write_docs.py          write them
python3 tools/write_docs.py --check  exit 1 and name the page if one is out of date (a test does this)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
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


PAGES = {"docs/commands.md": commands_page, "docs/result.schema.json": schema}


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
