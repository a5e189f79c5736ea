"""Entry point of an engine's own process: `python -m tensorprimat.engines.NAME --spec F --result F`."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from tensorprimat.core.errors import InputError, MissingFileError, TensorPrimatError, of_file_system
from tensorprimat.core.records import Record, first_fault

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # set by torchrun, Lightning and srun

Spec = TypeVar("Spec", bound=Record)


def parser_of(module: str, manual: str | None, *, needs_result: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options --spec and --result. manual: the docstring of the module."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=manual, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", type=Path, required=True, help="JSON file with the spec to run")
    parser.add_argument("--result", type=Path, required=needs_result, help="file for the result of this run")
    return parser


def run_spec(
    name: str,
    kind: type[Spec],
    parser: argparse.ArgumentParser,
    work: Callable[[Spec, argparse.Namespace], None],
    argv: Sequence[str] | None,
) -> int:
    """Run a spec file of one kind and return the exit code; print an error as one line on stderr, with the rank."""
    options = parser.parse_args(argv)
    rank = next((os.environ[variable] for variable in RANK_VARIABLES if variable in os.environ), "0")
    who = f"{name} engine" if rank == "0" else f"{name} engine (rank {rank})"
    try:
        work(_spec_of(options.spec, kind), options)
    except TensorPrimatError as error:
        return _complain(f"{who}: {error}", error.exit_code)
    except KeyboardInterrupt:
        return _complain(f"{who}: interrupted", 1)
    except OSError as error:
        return _complain(f"{who}: {of_file_system(error)}", 1)
    finally:
        gc.freeze()  # else the interpreter searches a million objects for garbage before it ends, which takes 2 s
    return 0


def _complain(text: str, exit_code: int) -> int:
    print(text, file=sys.stderr, flush=True)
    return exit_code


def _spec_of(path: Path, kind: type[Spec]) -> Spec:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise MissingFileError("no such file", path=path) from None
    except ValidationError as error:
        raise InputError(first_fault(error), path=path) from None
