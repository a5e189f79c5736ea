"""`benchmark.py --ab FLAGS --ab FLAGS`: runs of two configurations in turn, so that a drift of the machine cancels."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.analysis.compare import compare
from tensorprimat.cli.live import Screen
from tensorprimat.core import store
from tensorprimat.core.spec import MODELS
from tensorprimat.machine.platform import detect
from tensorprimat.reports import formatting
from tensorprimat.reports.console import print_summary
from tensorprimat.session import runs
from tensorprimat.session.alternate import AbSide, check_pair, ratio_of, run_in_turn, sides_of
from tensorprimat.session.plan import Request


def alternate(requests: Sequence[Request]) -> int:
    """Run two configurations in turn, model by model, and compare each pair. Returns the exit code.

    Raises TensorPrimatError for what stops it altogether.
    """
    check_pair(requests)
    first = requests[0]
    screen = Screen(stderr=first.json)
    machine = detect()
    stamp = store.new_stamp()
    worst, results = 0, []
    for model in MODELS if first.model == "all" else (first.model,):
        sides = sides_of(model, requests, machine, stamp)
        for side in sides:
            title = f"CONFIGURATION {side.name.upper()} - {runs.title_of(side.spec)} on {machine.label}"
            screen.block(title, runs.start_rows(side.spec, side.request, machine))
        if first.dry_run:
            continue
        error = run_in_turn(sides, machine, screen, stamp)
        if error is not None:
            screen.complain(f"{model}: {error}")
            worst = max(worst, 1)
        _show(sides, screen)
        results += [side.loaded.result for side in sides if side.loaded is not None]
    if first.dry_run:
        screen.say("Dry run: nothing was trained or written; every check passed")
    if first.json and results:
        print("[" + ",".join(f"\n{store.to_json(result).rstrip()}" for result in results) + "\n]")
    return worst


def _show(sides: Sequence[AbSide], screen: Screen) -> None:
    """Print the comparison, also where both configurations are one benchmark."""
    loaded = [side.loaded for side in sides if side.loaded is not None]
    if len(loaded) < 2:
        return
    comparison = compare(loaded)
    if comparison.pairs:
        if not sides[0].request.json:
            print_summary(comparison)
    else:
        ratio = ratio_of(loaded)
        if ratio is not None:
            screen.say(f"a and b are the same benchmark; b measured {formatting.ratio_in_words(ratio)}", style="bold")
    screen.say("Files: " + ", ".join(str(item.path) for item in loaded))
