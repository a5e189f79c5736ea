"""Shell completion of commands, options and values: typer's own, over all commands.

`tprimat --install-completion` writes a few lines into the shell's start-up files. At every Tab these lines start
tprimat with the words typed so far in environment variables; only the command among them is imported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

PROGRAM = "tprimat"
REQUEST = "_TPRIMAT_COMPLETE"
"""Environment variable that typer's shell function sets when it requests completions."""
COMPLETION_FLAGS = ("--install-completion", "--show-completion")


def run_completion(arguments: list[str], commands: Mapping[str, str]) -> int:
    """Install or print completion, or print the completions that a shell requests. Returns the exit code."""
    import typer

    from tensorprimat.cli.shared_options import with_flags_by_name

    app = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    typed = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    for name, help_text in commands.items():
        being_completed = name in typed[1:2]  # only this command's options are needed
        module = importlib.import_module(f"tensorprimat.cli.{name}") if being_completed else None
        app.command(name, help=help_text)(with_flags_by_name(module.command) if module else lambda: None)
    try:
        return int(app(args=arguments, prog_name=PROGRAM, standalone_mode=False) or 0)
    except SystemExit as end:
        return int(end.code or 0)
