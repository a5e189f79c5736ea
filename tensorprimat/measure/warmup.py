"""The warm-up study: it finds the number of warm-up steps from which on the measured time no longer changes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tensorprimat.core.quantities import fixed, percent, stated_share
from tensorprimat.measure.sweep import Measure
from tensorprimat.storage.micro_result import CellSpec, MicroResult

STABLE_PERCENT = 2.0  # percentage points; a count is stable if its CV is at most this far above the lowest CV
LOW_CV_PERCENT = 5.0  # dedicated devices scatter by 1 to 2 %; at 5 % the mean of ten trials is known to 3.6 % (95 %)
MEAN_STABLE_PERCENT = 5.0  # largest deviation of a stable mean; a first step among the trials changes CV and mean


def run_warmup(spec: CellSpec, counts: Sequence[int], *, measure: Measure) -> Iterator[MicroResult]:
    """Yield the same cell with each number of warm-up steps, as `measure` returns it."""
    for count in counts:
        yield measure(spec.changed(num_warmups=count))


def stable_from(cells: Sequence[MicroResult]) -> MicroResult | None:
    """Return the cell of the lowest warm-up count from which on CV and mean no longer change, or None.

    The largest count alone proves nothing, because no larger count was tried. A count with a CV above LOW_CV_PERCENT is
    not stable either, even if no other count has a lower CV.
    """
    measured = [cell for cell in cells if cell.cv_percent is not None and cell.mean_time_ms is not None]
    if not measured:
        return None
    lowest = min(cell.cv_percent or 0.0 for cell in measured)
    settled = statistics.median([cell.median_time_ms or 0.0 for cell in measured])
    stable = None
    for cell in reversed(measured):
        steady = (cell.cv_percent or 0.0) <= min(lowest + STABLE_PERCENT, LOW_CV_PERCENT)
        if not steady or abs((cell.mean_time_ms or 0.0) / settled - 1) > MEAN_STABLE_PERCENT / 100:
            break
        stable = cell
    return None if stable is measured[-1] else stable


def conclusion(cells: Sequence[MicroResult]) -> tuple[str, ...]:
    """Return the conclusion in two or three sentences, or in one if no count could be measured."""
    measured = [cell for cell in cells if cell.median_time_ms is not None]
    if not measured:
        return ("No count of warm-up steps could be measured.",)
    settled = statistics.median([cell.median_time_ms or 0.0 for cell in measured])
    seen_alone = [cell for cell in measured if cell.warmup_times_ms or cell.num_steps == 1] or measured
    firsts = [(cell.warmup_times_ms or cell.trial_times_ms)[0] for cell in seen_alone]
    first = statistics.median(firsts)
    of = f"median of {len(firsts)} fresh processes" if len(firsts) > 1 else "in one fresh process"
    sentences = [
        f"The first step took {fixed(first, 1)} ms ({of}), {fixed(first / settled, 1)} times the "
        f"{fixed(settled, 1)} ms of a settled step."
    ]
    cold = next((cell for cell in measured if cell.num_warmups == 0), None)
    if cold is not None and cold.mean_time_ms is not None and cold.cv_percent is not None:
        sentences.append(
            f"Without warm-up the mean of {cold.num_trials} trials is "
            f"{percent(abs(cold.mean_time_ms / settled - 1), 1)} "
            f"{'above' if cold.mean_time_ms > settled else 'below'} that, with a CV of {fixed(cold.cv_percent, 1)} %."
        )
    stable = stable_from(measured)
    if stable is not None:
        sentences.append(
            f"From {stable.num_warmups} warm-up step{'s' * (stable.num_warmups != 1)} on the CV is stable "
            f"({fixed(stable.cv_percent, 1)} %): --warmup-steps {stable.num_warmups} is enough here."
        )
    else:
        most = max(measured, key=lambda cell: cell.num_warmups)
        scatter = f"{fixed(most.cv_percent, 1)} %" if most.cv_percent is not None else "unknown from one trial"
        after = f"after {most.num_warmups} warm-up step{'s' * (most.num_warmups != 1)} the CV is"
        lowest = min((cell.cv_percent for cell in measured if cell.cv_percent is not None), default=0.0)
        if most.cv_percent is None:
            sentences.append(f"No stable count was found: {after} {scatter}; use --trials 2 or more.")
        elif most.cv_percent <= min(lowest + STABLE_PERCENT, LOW_CV_PERCENT):
            sentences.append(f"No stable count was found: {after} low ({scatter}), but larger --counts were not tried.")
        else:
            sentences.append(
                f"No count is stable: {after} still {scatter}, above {stated_share(LOW_CV_PERCENT / 100)}, so the "
                "mean depends on which steps are timed. Raise --steps-per-trial, or stop other programs on this device."
            )
    return tuple(sentences)
