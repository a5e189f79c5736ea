"""The number of runs of a benchmark: as planned, or until an interval is narrow enough or a budget is spent.

The interval is checked after every run from the third on. By chance the first runs sometimes agree so well that it is
narrow too early, so each further check uses a higher confidence level (stats.level_of_look). With `--append`, the
interval covers the runs of earlier sessions too, and the looks at those are counted before the checks of this session.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorprimat.analysis import stats
from tensorprimat.analysis.estimates import log_estimate, positive_figure
from tensorprimat.analysis.ratios import StatedScatter, log_ratio
from tensorprimat.analysis.sides import single_side
from tensorprimat.core import quantities
from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import significant
from tensorprimat.core.result import Result

_FEWEST_RUNS = 3  # two runs agree by chance too often
_METRICS = ("tokens_per_second_per_gpu", "tokens_per_second", "steps_per_second")
BUDGET_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The rule that ends a benchmark. Without a target the number of runs is fixed, unless the time limit ends it."""

    runs: int
    target: float | None = None
    """Half-width of the confidence interval to reach, as a fraction of the rate, or of the ratio with --ab."""
    max_runs: int = 30
    minutes: float | None = None
    """Time limit of one model in minutes. Without a target, a run starts only if it is expected to end within it."""

    @property
    def most(self) -> int:
        """Return the largest number of runs."""
        return self.runs if self.target is None else self.max_runs

    def checked(self) -> Budget:
        """Return self. Raises UsageError that names the flag of a value out of range."""
        if self.target is not None and not 0 < self.target < 1:
            raise UsageError(
                f"--target-ci {quantities.as_stated(self.target)}: must be between 0 and 100 %, such as 1%"
            )
        if self.max_runs < _FEWEST_RUNS:
            raise UsageError(f"--max-runs {self.max_runs}: must be at least {_FEWEST_RUNS}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise UsageError(f"--budget-minutes {quantities.as_stated(self.minutes)}: must be a number above 0")
        return self


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision after a run: stop or go on, with the sentence that says why."""

    done: bool
    looks: int = 1
    """Number of looks at the runs so far, those of earlier sessions included."""
    sentence: str | None = None
    cut: bool = False
    """True if a limit ended the benchmark before its number of runs or its target was reached."""

    def noted(self, result: Result) -> Result:
        """Return the result with a notice if a limit ended its runs."""
        return result.changed(warnings=(*result.warnings, self.sentence)) if self.cut and self.sentence else result


def half_width(results: Sequence[Result], look: int) -> float | None:
    """Return the half-width of the interval of one result's rate, or of the ratio of two results, as a fraction.

    look: number of this check of the interval, from 1. None for too few runs.
    """
    groups = [single_side(result) for result in results]
    metric = next((name for name in _METRICS if all(positive_figure(result, name) for result in results)), None)
    if metric is None:
        return None
    if len(groups) > 1:
        log = log_ratio(groups[0], groups[1], metric, StatedScatter(run_cv=None, confidence=BUDGET_CONFIDENCE))
    else:
        log = log_estimate(groups[0], metric)
    return None if log is None else log.half_width(stats.level_of_look(BUDGET_CONFIDENCE, look))


def decide_runs(
    budget: Budget, results: Sequence[Result], *, runs: int, began: float, earlier: Result | None = None
) -> Decision:
    """Return the decision after `runs` runs of each configuration: stop, or start another run.

    results: one per configuration, with its runs so far. began: time.monotonic() before the first run. earlier: result
    to which the runs are added (`--append`). The interval covers its runs too, so its looks come before the checks of
    this session: check k after n looks is look n + k, read at stats.level_of_look(…, n + k). Checks that started at 1
    again would find a narrow interval too often.
    """
    looks_before = 0 if earlier is None else earlier.provenance.looks
    if budget.target is None:
        decision = _within_minutes(budget, runs, time.monotonic() - began)
        return replace(decision, looks=looks_before + decision.looks)
    total = runs if earlier is None else len(results[0].runs)
    look = looks_before + max(1, min(runs, total - _FEWEST_RUNS + 1))
    width = half_width(results, look) if total >= _FEWEST_RUNS else None
    counted_runs = f"{total} runs" if total == runs else f"{total} runs ({runs} of them added)"
    reached = "" if width is None else f"interval ±{quantities.percent(width)} after {counted_runs}"
    goal = quantities.stated_share(budget.target)
    if width is not None and width <= budget.target and runs >= budget.runs:
        return Decision(done=True, looks=look, sentence=f"{reached}: within the target of {goal}")
    spent = None
    if runs >= budget.most:
        spent = f"--max-runs {budget.max_runs}"
    elif budget.minutes is not None and time.monotonic() - began >= 60 * budget.minutes:
        spent = f"--budget-minutes {quantities.as_stated(budget.minutes)}"
    if spent:
        no_interval = f"{quantities.counted(total, 'run')} without an interval"
        sentence = Notice("target_missed", "", limit=spent, reached=reached or no_interval, goal=goal)
        return Decision(done=True, cut=True, looks=look, sentence=sentence)
    return Decision(done=False, looks=look, sentence=f"{reached}, target {goal}: another run" if reached else None)


def _within_minutes(budget: Budget, runs: int, spent: float) -> Decision:
    """Return the decision for a fixed number of runs: stop early if one more run would exceed the time limit.

    runs: runs so far. spent: seconds that they took; the next run is expected to take their mean.
    """
    if runs >= budget.runs or budget.minutes is None or spent + spent / runs <= 60 * budget.minutes:
        return Decision(done=runs >= budget.runs)
    minutes = significant(budget.minutes, 3)
    sentence = Notice("runs_cut", "", runs=runs, planned=budget.runs, minutes=minutes)
    return Decision(done=True, cut=True, sentence=sentence)
