"""The command line: the list of commands, and `main`, which runs one of them.

A command's module contains its options, its manual (the docstring that --help shows) and thin glue: parse, call, print.
The scripts at the top of the repository call `main(["run", *sys.argv[1:]])` and the like. Heavy imports are inside the
commands, so that --help needs neither numpy nor torch.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import gc
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TextIO

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # pydantic would search every installed package

from tensorprimat.cli import earlier
from tensorprimat.core.errors import TensorPrimatError, UsageError, of_file_system
from tensorprimat.core.version import __version__
from tensorprimat.reports import harmless
from tensorprimat.system import regular
from tensorprimat.system.safe_text import one_line

COMMANDS = {
    "run": "run every model on this machine, or read its logs",
    "pretrain": "train one model with NeMo and measure it (pretrain_*.py)",
    "convert": "convert a Hugging Face checkpoint to a NeMo checkpoint",
    "extract": "turn a log into a result file",
    "compare": "compare results: verdict, plot and report",
    "enhance": "compare with cost, MFU, memory, power and time to train",
    "metrics": "show every derived figure of one result, with its inputs",
    "explain": "show what takes the time of a step, and why one is faster",
    "analyze": "survey folders of old logs, events, profiles and results",
    "list": "list every result below folders: filter, group, best, missing ones",
    "export": "write results, runs and steps as Parquet files for queries",
    "gate": "fail a build if a slowdown is detected",
    "bisect": "find the commit or version that made a command slower",
    "history": "show a metric over time per machine and model, with changes",
    "passes": "time forward, backward and optimizer on one device",
    "warmup": "find the number of warm-up steps that is enough",
    "sweep": "measure time and memory over sizes, contexts, batches and precisions",
    "aggregate": "make tables and plots of a folder of cells",
    "preflight": "measure this machine's best performance",
    "overhead": "measure what the measurement itself adds to a step",
    "primus": "compare a Primus configuration with the NVIDIA configuration",
    "mlperf": "read, list and compare the results of MLPerf Training",
    "reproduce": "show which setting differs from a published speed",
    "project": "project the rate of a result to another number of GPUs",
    "demo": "compare AMD with NVIDIA from bundled results",
    "verify": "check hashes and figures of a folder or bundle of results",
    "bundle": "pack results with logs, hashes and traces into one file",
    "doctor": "show what is installed, which engines work here, and what is missing",
    "processes": "list processes that use GPU memory; end leftover training",
}
"""Command → its line in the overview; each is the function `command` in the module of its name in this package."""

OVERVIEW = """Usage: tprimat COMMAND [OPTIONS]

Measure how fast, how efficiently and at what cost an accelerator trains a language model, and compare it with another.

Commands (tprimat COMMAND --help shows the manual of one):
{commands}

Options:
  --version             print the version
  --help                print this page
  --debug               print a traceback after an unexpected error (any command)
  --install-completion  install completion of commands and options in this shell
  --show-completion     print the completion script of this shell
"""

COMPLETION_REQUEST = "_TPRIMAT_COMPLETE"
"""Environment variable that typer's shell function sets when it requests completions."""
COMPLETION_FLAGS = ("--install-completion", "--show-completion")
REPORT_TO = "the issues of the TensorPrimat repository"
LONGEST_ERROR = 10_000  # characters: a path may have 4,096
RARELY = 200_000  # new objects between two searches for cycles; at 700, the imports alone make Python search for 20 ms
_PATH = re.compile(r"(?:^|[]|])(?:DIR|FILE|FOLDER|PATH|LOG|SOURCE|RESULT|CONFIG)\b")
"""Placeholders of paths in --help; the one in brackets of [LOG=]MODEL names a log as its summary does."""
_NUMBERS = re.compile(r"valid (int(?:eger)?|number|float)\b")
_INTERRUPTED = 130  # typer's exit code for Ctrl-C; older versions let the exception through


def main(
    argv: Sequence[str] | None = None, *, program: str | None = None, defaults: Mapping[str, Any] | None = None
) -> int:
    """Run one command. argv: command and its arguments (default: sys.argv); program: its name in usage lines;
    defaults: values of options by parameter name, of a script that has its own (flags and environment variables win).

    Returns the exit code: 0 done, 1 a run, check or gate failed, or Ctrl-C, 2 usage or input, 3 a gate is undecided.
    """
    with harmless.harmless_output(), contextlib.ExitStack() as guard:
        arguments = [
            *(sys.argv[1:] if argv is None else argv)
        ]  # once imported, cli/list.py hides `list` in this module
        debug = "--debug" in arguments
        if debug:
            arguments = [argument for argument in arguments if argument != "--debug"]
            guard.enter_context(regular.debugging())
        else:
            guard.push(_unexpected)
        guard.callback(_flush, sys.stderr)
        try:
            code = _run(arguments, program, defaults or {})
            sys.stdout.flush()  # at the end of Python an error would give neither a line nor an exit code
            return code
        except OSError as error:
            _without_output(program or "tprimat", error)
    return 1  # after an unexpected error or Ctrl-C


def _without_output(program: str, error: OSError) -> None:
    """Report an error of a file or of stdout, and close stdout if it can no longer be written."""
    _flush(sys.stdout)
    if not isinstance(error, BrokenPipeError):  # the reader of our output has closed it (head, less)
        print(f"{program}: {one_line(of_file_system(error), longest=LONGEST_ERROR)}", file=sys.stderr)


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        harmless.abandon(stream)


def _unexpected(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
    """Print an unexpected error in one line, with the place in the code and where to report it.

    Ctrl-C gets here from the imports of a command.
    """
    if kind is KeyboardInterrupt:
        print("tprimat: interrupted", file=sys.stderr)
        return True
    if kind is None or not issubclass(kind, Exception):
        return False
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if "tensorprimat" in frame.filename] or frames
    where = f" in {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    reason = one_line(error)
    print(
        f"tprimat: unexpected error, {kind.__name__}{where}{': ' if reason else ''}{reason}; please report it at "
        f"{REPORT_TO} with what --debug prints",
        file=sys.stderr,
    )
    return True


def _run(arguments: list[str], program: str | None, defaults: Mapping[str, Any]) -> int:
    if COMPLETION_REQUEST in os.environ or arguments[:1] in ([flag] for flag in COMPLETION_FLAGS):
        return _run_completion(arguments[:2])
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(OVERVIEW.format(commands="\n".join(_lines())), end="")
        return 0 if arguments else 2
    typed, *rest = arguments
    name = earlier.meant_by(typed if typed in COMMANDS else earlier.command_of(typed) or typed, rest)
    if name == "--version":
        print(f"tprimat {__version__}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        guess = f"did you mean {near[0]}? All" if near else "all"
        print(f"tprimat: no command {name!r}; {guess} commands: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    program = program or f"tprimat {typed}"
    rest = earlier.arguments_of(name, rest)
    gc.set_threshold(RARELY, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # a search at the end finds nothing of use and takes a tenth of a second
    try:
        return _call(name, rest, program, {**earlier.defaults_of(typed), **defaults})
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tensorprimat"):
            raise
        print(
            f"{program}: the package {error.name} is not installed for {sys.executable}; pip install {error.name}, or "
            "in a checkout `make env` and .venv/bin/python",
            file=sys.stderr,
        )
        return 2


def _run_completion(arguments: list[str]) -> int:
    """Install or print completion, or print the completions that a shell requests, by typer's own over all commands.

    `tprimat --install-completion` writes a few lines into the shell's start-up files. At every Tab these lines start
    tprimat with the words typed so far in environment variables; only the command among them is imported.
    """
    import typer

    from tensorprimat.cli.shared_options import with_flags_by_name

    app = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    typed = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    for name, help_text in COMMANDS.items():
        being_completed = name in typed[1:2]  # only this command's options are needed
        module = importlib.import_module(f"tensorprimat.cli.{name}") if being_completed else None
        app.command(name, help=help_text)(with_flags_by_name(module.command) if module else lambda: None)
    try:
        return int(app(args=arguments, prog_name="tprimat", standalone_mode=False) or 0)
    except SystemExit as end:
        return int(end.code or 0)


def _lines() -> Iterator[str]:
    """Yield one line for each command, with the earlier scripts that it replaces."""
    for name, says in COMMANDS.items():
        yield f"  {name:<10} {says}"
        if replaced := earlier.EARLIER_COMMANDS.get(name):
            yield f"{'':<13}(earlier: {', '.join(replaced)})"


def _contradiction(command: Any, arguments: Iterable[str]) -> tuple[str, str] | None:
    """Return a switch and its opposite if both were typed; the parser would use the last."""
    typed = set(arguments)
    pairs = ((on, off) for option in command.params for on in option.opts for off in option.secondary_opts)
    return next(((on, off) for on, off in pairs if on in typed and off in typed), None)


def _adapt(parser: Any) -> None:
    """Let the parser raise UsageError for an empty path, and leave Python types of arguments out of --help.

    Path("") is the current folder: a command whose path is an unset variable of the shell would read it or write there.
    typer ≥ 0.27 adds the types (`list[str]`).
    """
    for parameter in parser.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda **_: None
        if _PATH.search(parameter.metavar or ""):
            parameter.process_value = partial(_process_path, parameter, parameter.process_value)


def _grouped_options(parser: Any, groups: Mapping[str, Sequence[str]], context: Any, formatter: Any) -> None:
    """Write the options of --help under the titles of a command. groups: title → names of parameters."""
    rows = {one.name: row for one in parser.get_params(context) if (row := one.get_help_record(context)) is not None}
    for title, names in groups.items():
        with formatter.section(title):
            formatter.write_dl([rows.pop(name) for name in names])
    positional = {one.name for one in parser.params if one.param_type_name == "argument"}
    with formatter.section("Other"):
        formatter.write_dl([row for name, row in rows.items() if name not in positional])


def _process_path(parameter: Any, process: Callable[..., Any], context: Any, value: Any) -> Any:
    if value == "" or (isinstance(value, Sequence) and not isinstance(value, str) and "" in value):
        holder = "an argument" if parameter.param_type_name == "argument" else parameter.opts[0]
        raise UsageError(f"{holder}: the path is empty; name one (is a variable of the shell unset?)")
    return process(context, value)


def _complaint(error: Any, arguments: Sequence[str]) -> str:
    """Return the line for an error of the parser; a value that is no number is named as it was typed."""
    message = str(error.format_message()).rstrip(".")
    option = getattr(error, "param", None)
    kind = _NUMBERS.search(message)
    if option is None or kind is None:
        return f"{message}; try --help"
    number = "a number" if kind[1] in ("number", "float") else "a whole number"
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") in option.opts:
            typed = value if equals else "".join(arguments[place + 1 : place + 2])
            return f"{flag} {typed or repr(typed)}: must be {number}"
    name = option.envvar or option.opts[0]
    return f"{name}={os.environ[name]}: must be {number}" if name in os.environ else f"{name}: must be {number}"


def _call(name: str, arguments: list[str], program: str, defaults: Mapping[str, Any]) -> int:
    """Parse and run one command; everything a user can cause becomes one line on stderr and an exit code."""
    import typer

    from tensorprimat.cli.shared_options import with_flags_by_name

    # The parser's error: click's own class, or typer's copy of it (typer ≥ 0.27 includes click).
    parse_errors: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    command = with_flags_by_name(importlib.import_module(f"tensorprimat.cli.{name}").command)
    settings = {
        "help_option_names": ["-h", "--help"],
        "default_map": dict(defaults),
        "token_normalize_func": earlier.spelling_of(name, inspect.signature(command).parameters),
    }
    app.command(name, context_settings=settings)(command)
    parser: Any = typer.main.get_command(app)
    if both := _contradiction(parser, arguments):
        print(f"{program}: {both[0]} and {both[1]} contradict each other; leave one out", file=sys.stderr)
        return 2
    _adapt(parser)
    if groups := getattr(sys.modules[f"tensorprimat.cli.{name}"], "OPTION_GROUPS", None):
        parser.format_options = partial(_grouped_options, parser, groups)
    try:
        outcome = parser(args=arguments, prog_name=program, standalone_mode=False)
        if outcome == _INTERRUPTED:
            raise KeyboardInterrupt
    except parse_errors as error:
        print(f"{program}: {_complaint(error, arguments)}", file=sys.stderr)
        return 2
    except TensorPrimatError as error:
        print(f"{program}: {one_line(error, longest=LONGEST_ERROR)}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print(f"{program}: interrupted; finished work is kept", file=sys.stderr)
        return 1
    except OSError as error:
        _without_output(program, error)
        return 1
    return int(outcome or 0)
