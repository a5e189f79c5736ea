"""Parts of a script, each with a line of its own: run in this process, or in fresh ones with a time limit for each."""

from __future__ import annotations

import gc
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tensorprimat.system import processes

POLL_SECONDS = 0.1
PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
LINE = re.compile(r"(PASS|FAIL|SKIP) \w+ +[\d.]+ s  ")


class NotHereError(Exception):
    """The part needs something that this machine lacks."""


def run(names: Sequence[str], parts: Mapping[str, Callable[[], str]]) -> int:
    """Run parts in this process until one fails, and print a line for each; return 1 if one failed, else 0.

    None runs after a failure: a CUDA error may make every later call of the same process fail.
    """
    for name in names:
        began = time.monotonic()
        try:
            verdict, printed = PASS, parts[name]()
        except NotHereError as why:
            verdict, printed = SKIP, str(why)
        except BaseException as error:  # also SystemExit: every part has a line
            if isinstance(error, KeyboardInterrupt):
                raise
            verdict, printed = FAIL, f"{type(error).__name__}: {str(error).strip()}"
        print(_line(verdict, name, time.monotonic() - began, printed), flush=True)
        if verdict == FAIL:
            return 1
        free_memory()
    return 0


def free_memory() -> None:
    """Free models that are no longer in use: an allocation that fails on a GPU starts no garbage collection."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None:
        torch.cuda.empty_cache()


def supervise(
    command: Sequence[str], groups: Sequence[Sequence[str]], *, limit_seconds: float, all_seconds: float = math.inf
) -> dict[str, str]:
    """Run each group of parts in a fresh process, print the line of each part, and return the verdicts by part.

    command: runs the parts that one more argument names, separated by commas, with `run`. A process that fails, dies or
    exceeds the limit within one part is killed with its children, and the rest of its group runs in another process.
    After all_seconds the rest is skipped, each part with its line.
    """
    until = time.monotonic() + all_seconds
    verdicts: dict[str, str] = {}
    for group in groups:
        left = list(group)
        while left:
            done = _run_process([*command, ",".join(left)], left, limit_seconds, until)
            verdicts |= done
            left = left[len(done) :]
    return verdicts


def _run_process(command: Sequence[str], names: Sequence[str], limit_seconds: float, until: float) -> dict[str, str]:
    """Run parts in one process until the first that fails or all time is over; return the verdicts of those that ran.

    until: end of all time, by time.monotonic().
    """
    done: dict[str, str] = {}
    with processes.scratch_folder() as scratch:
        stdout, stderr = scratch / "stdout", scratch / "stderr"
        with stdout.open("wb") as out, stderr.open("wb") as err:
            child = processes.popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            began, ended = time.monotonic(), False
            while not (ended or len(done) == len(names) or FAIL in done.values()):
                if time.monotonic() > min(began + limit_seconds, until):
                    break
                time.sleep(POLL_SECONDS)
                ended = child.poll() is not None
                for line in _lines_of(stdout)[len(done) :]:
                    print(line, flush=True)
                    done[names[len(done)]] = line.split()[0]
                    began = time.monotonic()
        finally:
            processes.end(child)
        if len(done) < len(names) and FAIL not in done.values():
            name, seconds = names[len(done)], time.monotonic() - began
            if not ended and time.monotonic() > until:
                verdict, why = SKIP, f"no time left (--minutes); alone: --parts {name}"
            else:
                verdict = FAIL
                why = _ending(child.returncode, stderr) if ended else f"timed out: killed after {limit_seconds:g} s"
            print(_line(verdict, name, seconds, why), flush=True)
            done[name] = verdict
    return done


def _lines_of(stdout: Path) -> list[str]:
    """Return the complete lines of parts; what libraries print between them is left out."""
    complete = stdout.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
    return [line for line in complete.splitlines() if LINE.match(line)]


def _ending(code: int, stderr: Path) -> str:
    """Return how a process ended that printed no line for its part."""
    how = f"crashed: {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code} and no line"
    last = stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return "; ".join([how, *last])


def _line(verdict: str, name: str, seconds: float, printed: str) -> str:
    first = (printed.splitlines() or [""])[0]
    return f"{verdict} {name:<9} {seconds:6.1f} s  {first}"
