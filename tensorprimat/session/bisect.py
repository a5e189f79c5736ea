"""The work of `bisect`: commits or versions of a package between two ends, and the first one that is slower."""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tensorprimat.analysis.pairs import MOST_PAIRS
from tensorprimat.analysis.search import Bisected, Located, State, find_change, run_deviation
from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.session.commits import Program, Trial, call_git, checkout, commit_of, compare_in_turn, speeds_of

_VERSIONS = re.compile(r"(?P<package>[A-Za-z0-9][\w.-]*)==(?P<good>[\w.+!-]*?\w)\.\.(?P<bad>\w[\w.+!-]*)")
_AVAILABLE = "Available versions:"


Provide = Callable[[State], contextlib.AbstractContextManager[Program]]
"""Function that provides the program of a state."""


def of_commits(good: str, bad: str) -> tuple[list[State], Provide]:
    """Return the good commit and those after it up to the bad one, oldest first, and a worktree for each.

    Raises UsageError for local changes, which the worktrees of the commits would not have, and for ends that are not in
    a line.
    """
    repository = Path()
    first, last = commit_of(repository, good), commit_of(repository, bad)
    if changed := call_git(repository, "status", "--porcelain", "--untracked-files=no"):
        names = ", ".join(line.split(maxsplit=1)[-1] for line in changed.splitlines()[:3])
        raise UsageError(f"the repository has local changes ({names}); commit or stash them, then bisect")
    listed = call_git(
        repository, "log", "--reverse", "--first-parent", "--ancestry-path", "--format=%H %s", f"{first}..{last}"
    )
    states = [State(name=name, title=title) for name, _, title in (line.partition(" ") for line in listed.splitlines())]
    if not states:
        raise UsageError(f"{bad} does not come after {good}; --good names the older, faster commit")
    states.insert(0, State(name=first, title=call_git(repository, "log", "-1", "--format=%s", first)))
    return states, partial(_worktree, repository)


def of_versions(text: str) -> tuple[list[State], Provide]:
    """Return the versions of PACKAGE==GOOD..BAD, oldest first, as pip's index lists them, and an environment for each.

    An end such as 2.13 includes 2.13.1. Raises UsageError for another text, and where fewer than two versions are left.
    """
    from packaging.version import InvalidVersion, Version

    match = _VERSIONS.fullmatch(text)
    if match is None:
        raise UsageError(f"--versions {text}: write it like torch==2.11..2.13")
    package = match["package"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", package], capture_output=True, text=True, check=False
    )
    line = next((line for line in done.stdout.splitlines() if line.strip().startswith(_AVAILABLE)), None)
    if line is None:
        reason = " ".join(done.stderr.split())[:200]
        raise UsageError(f"--versions {text}: pip lists no versions of {package}: {reason}")
    try:
        good, bad = Version(match["good"]), Version(match["bad"])
    except InvalidVersion as error:
        raise UsageError(f"--versions {text}: {error}") from None
    listed = sorted({Version(one.strip()) for one in line.strip().removeprefix(_AVAILABLE).split(",")})
    of_bad = [one for one in listed if one.release[: len(bad.release)] == bad.release]
    last = max([bad, *of_bad]) if len(bad.release) < 3 else bad
    names = [str(one) for one in listed if good <= one <= last]
    if len(names) < 2:
        known = ", ".join(map(str, listed[-10:]))
        raise UsageError(f"--versions {text}: fewer than two versions in that range; the newest are {known}")
    return [State(name=name, title=f"{package} {name}") for name in names], partial(_environment, package)


@contextlib.contextmanager
def _environment(package: str, state: State) -> Iterator[Program]:
    """Provide a fresh virtual environment with one version of a package, in the working folder."""
    with tempfile.TemporaryDirectory(prefix="tprimat-") as folder:
        commands = (
            [sys.executable, "-m", "venv", folder],
            [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", f"{package}=={state.name}"],
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RunError(f"{state.title}: {' '.join(done.stderr.split())[-300:]}")
        variables = {"VIRTUAL_ENV": folder, "PATH": f"{folder}/bin{os.pathsep}{os.environ.get('PATH', '')}"}
        yield Program(name=state.title, folder=Path().absolute(), environment=variables)


@contextlib.contextmanager
def _worktree(repository: Path, state: State) -> Iterator[Program]:
    """Provide a commit in a worktree of its own."""
    with checkout(repository, state.name) as folder:
        yield Program(name=state.name[:12], folder=folder)


def find_slower(
    states: Sequence[State],
    provide: Provide,
    trial: Trial,
    *,
    limit: float,
    most: int,
) -> Bisected:
    """Measure the ends in turn, and if the last is slower, search for the first slow state.

    provide: gives the program of a state; limit: slowdown that has to be found between the ends; most: pairs of runs of
    the search. A state whose command fails is left out; raises RunError if that is one of the ends.
    """
    with contextlib.ExitStack() as stack:
        known: dict[int, Program] = {}

        def program(place: int) -> Program:
            if place not in known:
                known[place] = trial.ready(stack.enter_context(provide(states[place])))
            return known[place]

        good, bad = program(0), program(len(states) - 1)
        ends = compare_in_turn(good, bad, trial.run, limit=limit, most=MOST_PAIRS)
        speeds = speeds_of(good, bad)[1]

        def pair(place: int) -> float | None:
            try:
                middle = program(place + 1)
                for one in (good, middle) if len(good.runs) % 2 else (middle, good):
                    trial.run(one)
            except RunError as error:
                trial.say(f"left out: {error}")
                return None
            after, before = (runs[-1] for runs in speeds_of(middle, good)[1])
            return math.log(after / before)

        located: Located | None = None
        found: tuple[State, ...] = ()
        if ends.decision == "slower":
            located = find_change(
                len(states) - 1, pair, change=math.log1p(ends.change), deviation=run_deviation(*speeds), most=most
            )
            found = tuple(states[place + 1] for place in located.places)
        return Bisected(
            good=states[0],
            bad=states[-1],
            ends=ends,
            found=found,
            located=located,
            runs=sum(len(one.runs) for one in known.values()),
        )
