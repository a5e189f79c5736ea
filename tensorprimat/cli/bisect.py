"""`tprimat bisect`: find the commit, or the version of a package, that made a command slower."""

from __future__ import annotations

import signal
from typing import Annotated, Any

from tensorprimat.cli import shared_options
from tensorprimat.cli.options import ended_like_ctrl_c, fraction, say_each
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import UsageError


@shared_options.with_fact_options(after="prepare", side="")
def command(
    words: Annotated[list[str] | None, argument("COMMAND", "Command to measure, after --.")] = None,
    good: Annotated[str | None, takes("COMMIT", "Earlier commit, at which the command is fast.")] = None,
    bad: Annotated[str | None, takes("COMMIT", "Later commit, at which it is slower.", show_default="HEAD")] = None,
    versions: Annotated[
        str | None, takes("PACKAGE==A..B", "Search versions of a package, in fresh virtual environments.")
    ] = None,
    writes: Annotated[
        str | None,
        takes("PATH", "Result or log that the command writes, or - for the log that it prints. Without: its time."),
    ] = None,
    prepare: Annotated[
        str | None, takes("COMMAND", "Run this shell command once in each commit or environment, such as a build.")
    ] = None,
    min_slowdown: Annotated[str, takes("PERCENT", "Slowdown between the ends that has to be found.")] = "3%",
    max_pairs: Annotated[int, takes("N", "Largest number of pairs of runs of the search.")] = 100,
    json: Annotated[bool, switch("--json", "Print JSON.")] = False,
    **typed_facts: Any,
) -> int:
    """Find the first slow commit between --good and --bad, or the first slow version of a package.

    The command runs at both ends in turn until a slowdown is shown, then at commits between them, each in turn with the
    good end, until one commit is sure (95 %). No decision is final, and single slow runs have no weight. Each commit is
    checked out in a temporary worktree; your checkout stays as it is. A commit at which the command fails is left out.

    \b
    Examples:
      tprimat bisect --good v1.2 --bad main -- python train.py --steps 50
      tprimat bisect --good v1.2 --writes - --prepare "pip install -e ." -- python train.py
      tprimat bisect --versions torch==2.11..2.13 --prepare "pip install numpy" -- python step.py

    \b
    Exit codes:
      0  found
      1  the command failed at an end, or Ctrl-C
      2  a flag is wrong, there is no such commit, or the repository has local changes
      3  no slowdown is shown between the ends, or more pairs are needed
    """
    import json as json_module

    from tensorprimat.reports.gate import bisected_as_json, bisected_lines
    from tensorprimat.session import bisect
    from tensorprimat.session.commits import Trial

    if not words:
        raise UsageError("name the command to measure after --, such as -- python train.py")
    if (versions is None) == (good is None):
        raise UsageError("name either --good (and --bad), or --versions")
    if max_pairs < 1:
        raise UsageError(f"--max-pairs {max_pairs}: must be 1 or more")
    trial = Trial(
        command=words, written=writes, prepare=("bash", "-c", prepare) if prepare else (),
        stated=shared_options.statements(typed_facts), say=lambda line: say_each([line]),
    )  # fmt: skip
    limit = fraction("--min-slowdown", min_slowdown)
    if not 0 < limit < 1:
        raise UsageError(f"--min-slowdown {min_slowdown}: must be above 0 and below 100 %")
    with ended_like_ctrl_c(signal.SIGTERM):
        search = bisect.of_versions(versions) if versions is not None else bisect.of_commits(good or "", bad or "HEAD")
        found = bisect.find_slower(*search, trial, limit=limit, most=max_pairs)
    if json:
        print(json_module.dumps(bisected_as_json(found), indent=2))
    else:
        print("\n".join(bisected_lines(found)))
    return 0 if found.located is not None and found.located.is_sure else 3
