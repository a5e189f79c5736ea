"""A side's figures with their intervals: over runs where there are several, of the one run otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorprimat.analysis import stats
from tensorprimat.analysis.rates import TIME_TO_TRAIN, rate_of
from tensorprimat.analysis.records import Estimate
from tensorprimat.analysis.sides import Group, runs_of
from tensorprimat.analysis.stats import LogEstimate, OneRun
from tensorprimat.audit.rounding import error_of_mean, printed_unit
from tensorprimat.core.figures import Input
from tensorprimat.core.quantities import count, counted, listed, precise, spelled_metric
from tensorprimat.core.result import Result
from tensorprimat.core.steady import Selection, median
from tensorprimat.core.steps import FloatArray, Steps, finite
from tensorprimat.core.summary import pace_of, select_measured, summarise
from tensorprimat.core.terms import Term, unit_of, usable_rate, work_of

PLANNING_RUN_CV = 0.005  # run-to-run scatter of a quiet machine; only for "how many runs", never inside an interval
ONE_PERCENT = 0.01
CLOCK_CHANGE = 0.10  # relative; GPUs change their clock by up to this much, warm-up is mostly slower by more
FEWEST_OF_A_LEVEL = 2  # warm-up rows, not counting the first one, that show a level
_COARSEST = 0.01  # relative; largest rounding unit assumed: 6 s printed as "6" may still be exact to 1 %


def positive_figure(result: Result, metric: str) -> float | None:
    """Return a positive figure of a result, or None.

    metric: a field of PerformanceMetrics, or time_to_train. The figure of the latter is a rate: 1 / mean time to train
    of the runs that reached the target.
    """
    if metric == TIME_TO_TRAIN:
        times = [run.time_to_train_seconds for run in result.runs if run.time_to_train_seconds]
        return len(times) / sum(times) if times else None
    return rate_of(result, metric)


def counted_runs(group: Group, metric: str) -> list[int]:
    """Return the indices of the runs that a figure counts: all; for a time to train, those that reached the target."""
    places = range(len(group.runs))
    if metric != TIME_TO_TRAIN:
        return list(places)
    return [place for place in places if positive_figure(group.runs[place], metric) is not None]


def hosts_of(group: Group, metric: str) -> list[str | None]:
    """Return the host of each run that a figure counts."""
    return [group.hosts[place] for place in counted_runs(group, metric)]


def run_figures(group: Group, metric: str) -> list[float] | None:
    """Return the figure of every run that counts; None where one run lacks it.

    The measured rows are those of the pooled result, whose warm-up was found from all runs together.
    """
    joint = group.result.runs if len(group.result.runs) == len(group.runs) > 1 else ()
    figures = []
    for number in counted_runs(group, metric):
        value = (rate_of(joint[number], metric) if joint else None) or positive_figure(group.runs[number], metric)
        if value is None:
            return None
        figures.append(value)
    return figures


def without_figure(groups: Sequence[Group], metric: str) -> str | None:
    """Return a phrase that names the groups of which a run lacks the figure; None if there is none."""
    labels = [group.label for group in groups if run_figures(group, metric) is None]
    return f"{listed(labels)}: not every run has this figure" if labels else None


def settled(group: Group) -> bool:
    """Return False if the step times of the side, all runs together, never reached a stable level."""
    return all(run.settled is not False for run in group.result.runs)


def drift(group: Group) -> float:
    """Return the relative amount by which the figures of the side may deviate from the level after warm-up."""
    return max((run.drift or 0.0 for run in group.result.runs), default=0.0)


def rounding(group: Group, metric: str) -> float:
    """Return the largest relative error that the rounding of printed times leaves in a figure of the side."""
    if metric == TIME_TO_TRAIN:
        return rounding_of(1 / np.array(run_figures(group, metric) or [], np.float64))
    if (known := group.result.provenance.rounding) is not None:
        return known
    steps = group.result.steps
    for name in ("seconds", "reported_tokens_per_second_per_gpu", "reported_tokens_per_second"):
        if steps.has(name):
            return rounding_of(steps.column(name))
    return 0.0


def rounding_of(values: FloatArray) -> float:
    """Return the largest relative error that rounding leaves in a mean, from the values alone; 0 for measured ones.

    values: shape (rows,), of every run of a side, NaN where unknown. Zeros at the end of the printed numbers are
    unknown, so no unit of more than 1 or 1 % is assumed.
    """
    known = values[np.isfinite(values) & (values > 0)]
    unit = printed_unit(known)
    return error_of_mean(known, min(unit, 1.0, _COARSEST * median(known))) if unit is not None else 0.0


def estimate_figure(group: Group, metric: str, *, assume_run_cv: float | None, confidence: float) -> Estimate:
    """Return the figure of a side with its interval, or the reason why it has none.

    With several runs the figure is the middle of the interval: the geometric mean of the runs, or of the hosts' means.
    """
    value = positive_figure(group.result, metric)
    if value is None:
        return Estimate(value=None, confidence=confidence, rests_on="nothing", no_interval_because="not measured")
    over_runs = log_estimate(group, metric)
    if over_runs is None and len(group.runs) > 1:
        few = "not every run has this figure"
        return Estimate(value=value, confidence=confidence, rests_on=f"{len(group.runs)} runs", no_interval_because=few)
    if over_runs is None:
        return _of_one_run(group, metric, value, assume_run_cv, confidence)
    looks = max(1, group.result.provenance.looks)  # runs that were added until an interval was narrow enough
    level = stats.level_of_look(confidence, looks)
    low, high = over_runs.interval(level)
    hosts = f" on {len(set(group.hosts))} hosts, each host counted once" if stats.counts_hosts(group.hosts) else ""
    mean = math.exp(over_runs.log)  # the middle of the interval: runs count alike, whatever their length
    return Estimate(
        value=mean,
        mean_of_runs=_mean_of_runs(group, metric, mean),
        low=low,
        high=high,
        confidence=level,
        joint=confidence if looks > 1 else None,
        rests_on=f"{len(group.runs)} runs{hosts}",
        runs_for_one_percent=stats.runs_needed([scatter(group, metric)], ONE_PERCENT, confidence),
    )


_NAMED_RUNS = 6  # most runs whose figures a formula writes out; the inputs hold those of all runs


def _mean_of_runs(group: Group, metric: str, mean: float) -> Term:
    """Return the mean over the runs of a side, with the figure of each run; runs on one host have a mean of their own
    first.
    """
    figures, hosts, unit = run_figures(group, metric) or [], hosts_of(group, metric), unit_of(metric)
    of_hosts = stats.counts_hosts(hosts)
    inputs = tuple(
        Input(name=f"run {number}{f' on {host}' if of_hosts else ''}", value=value, unit=unit, in_formula=False)
        for number, (value, host) in enumerate(zip(figures, hosts, strict=True), 1)
    )
    name = "step time" if unit == "s" else spelled_metric(metric)
    per_host = " of the hosts' geometric means" if of_hosts else ""
    numbers = "; ".join(map(precise, figures[:_NAMED_RUNS]))
    more = f" and {len(figures) - _NAMED_RUNS} more" if len(figures) > _NAMED_RUNS else ""
    return Term(
        value=mean,
        own_formula=f"geometric mean{per_host} of the runs' {name}",
        put_in=f"{counted(len(figures), 'run')}: {numbers} {unit}{more}",
        inputs=inputs,
    )


def log_estimate(
    group: Group, metric: str, *, assume_run_cv: float | None = None, assume_host_cv: float | None = None
) -> LogEstimate | None:
    """Return the logarithm of a figure with its scatter over runs; None for one run without assume_run_cv, and if a run
    lacks the figure.

    assume_run_cv: scatter from run to run, in addition to that of the steps, for a side of one run.
    assume_host_cv: scatter from machine to machine, for a side whose runs are all from one machine.
    """
    known = run_figures(group, metric)
    if not known:
        return None
    of_hosts = assume_host_cv if assume_host_cv and not stats.counts_hosts(group.hosts) else 0.0
    carried = math.hypot(0.0 if metric == TIME_TO_TRAIN else drift(group), of_hosts)
    error = rounding(group, metric)
    if len(known) > 1:
        return stats.of_runs(known, hosts_of(group, metric), rounding=error, drift=carried)
    if assume_run_cv is None:
        return None
    variance = assume_run_cv**2 + within_run(group.runs[0], metric) ** 2
    return LogEstimate(log=math.log(known[0]), variance=variance, degrees=math.inf, drift=carried, rounding=error)


def scatter(group: Group, metric: str, assume_run_cv: float | None = None) -> float:
    """Return the standard deviation of the logarithm of one more run: measured, or planned if there is only one run."""
    figures = run_figures(group, metric) or []
    if len(figures) > 1:
        return float(np.std(np.log(figures), ddof=1))
    return math.hypot(assume_run_cv or PLANNING_RUN_CV, within_run(group.runs[0], metric))


def within_run(run: Result, metric: str) -> float:
    """Return the relative standard error of a run's figure from its own rows; 0 where it has too few rows."""
    _, spread = _spread_of_rows(run, metric, 0.95)
    return spread.half_width / stats.student(0.95, math.inf) if spread else 0.0


def _spread_of_rows(run: Result, metric: str, confidence: float) -> tuple[int, OneRun | None]:
    """Return the number of rows with a figure and the uncertainty of their mean; None where they are too few.

    Figures that count the same work share it.
    """
    work = next((work for work in ("tokens", "samples") if metric.startswith(work)), "steps")

    def derive() -> tuple[int, OneRun | None]:
        rows = _moves(run, work)
        enough = len(rows) >= stats.FEWEST_ROWS_FOR_INTERVAL
        return len(rows), stats.of_one_run(rows, confidence) if enough else None

    return run.steps.once(("spread", work, run.training_config.warmup_steps, confidence), derive)


def _of_one_run(group: Group, metric: str, value: float, assume_run_cv: float | None, confidence: float) -> Estimate:
    run = group.runs[0]
    rows, spread = _spread_of_rows(run, metric, confidence)
    if spread is None:
        few = f"only {counted(rows, 'measured row')}" if len(run.steps) else "the file holds means only, no steps"
        return Estimate(value=value, confidence=confidence, rests_on="one run", no_interval_because=few)
    rests_on = f"one run of {rows} rows ({count(spread.effective)} effective)"
    none_because = _silent_because(group, rows)
    half = math.hypot(spread.half_width, drift(group) * stats.student(confidence, math.inf)) + rounding(group, metric)
    return Estimate(
        value=value,
        low=None if none_because else value * math.exp(stats.bounded(-half)),
        high=None if none_because else value * math.exp(stats.bounded(half)),
        confidence=confidence,
        rests_on=rests_on if none_because else f"{rests_on}; it covers step noise, not run-to-run variation",
        within_run=none_because is None,
        no_interval_because=none_because,
        runs_for_one_percent=stats.runs_needed([scatter(group, metric, assume_run_cv)], ONE_PERCENT, confidence),
    )


def _silent_because(group: Group, rows: int) -> str | None:
    """Return the reason why the rows of a single run support no interval, or None."""
    if rows < stats.FEWEST_SHOWN:
        return f"fewer than {stats.FEWEST_SHOWN} measured rows: too few to see slow changes of speed"
    if not settled(group):
        return "step time keeps drifting"
    run = group.runs[0]
    start = int(min(selection.rows[0] for selection in _selected(run) if len(selection.rows)))
    left_out = run.steps.column("covers")[:start].sum()
    if left_out > (run.training_config.warmup_steps or 0) and changed_level(pace_of(run.steps), start):
        return f"step time changed at row {start + 1}, as happens when a GPU's clock changes; it may change again"
    return None


def changed_level(seconds: FloatArray, start: int) -> bool:
    """Return True if the rows left out as warm-up differ from the measured ones by no more than a clock may change.

    seconds: shape (rows,), of one run. start: the first measured row. A single run that begins at another clock looks
    like one that warms up.
    """
    early, late = finite(seconds[1:start]), finite(seconds[start:])
    if len(early) < FEWEST_OF_A_LEVEL or not len(late):
        return False
    return abs(float(np.median(early)) / float(np.median(late)) - 1) < CLOCK_CHANGE


def _moves(run: Result, work: str) -> FloatArray:
    """Return the influence of each measured row of one run on the logarithm of its rate of work, shape (rows,)."""
    if not len(run.steps):
        return np.empty(0)
    steps = run.steps.take(np.concatenate([selection.rows for selection in _selected(run)]))
    for amount, time in _ratios_of_sums(steps, work):
        known = np.isfinite(amount) & np.isfinite(time) & (time > 0)
        if amount[known].sum() > 0:
            return stats.influences(amount[known], time[known])
    return np.empty(0)


FEWEST_IN_PHASE = 8  # rows, for a median
PHASE_ERRORS = 4.0  # standard errors of a median beyond which a level differs


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A side that runs at another speed in the steps that the other side measured."""

    label: str
    apart: float
    """Difference of the logarithm of the speeds; infinite where the sides have no step in common."""
    own: tuple[int, int]
    """First and last measured step of the side."""
    other: tuple[int, int]
    """The same of the other side."""


def other_phase(group: Group, other: Group) -> Phase | None:
    """Return the phase of a side whose speed in the steps that another one measured is not its own measured one.

    None where they differ by less than 1 % or the noise, or where the side has too few rows there. Only the second half
    of the other side's steps is looked at, because the warm-up of the two may differ in length.
    """
    result, span = group.result, _measured_span(other.result)
    own = _measured_span(result)
    if not span or not own:
        return None
    index, pace = result.steps.column("index"), pace_of(result.steps)
    usable = np.isfinite(pace) & (result.steps.column("interrupted_by") == 0)
    there = pace[usable & (index >= (span[0] + span[1]) / 2) & (index <= span[1])]
    measured = finite(pace[np.concatenate([one.rows for one in _selected(result)])])
    if min(len(there), len(measured)) < FEWEST_IN_PHASE:
        return None
    apart = abs(math.log(median(there) / median(measured)))
    noise = 1.25 * math.hypot(*(np.std(one) / np.mean(one) / math.sqrt(len(one)) for one in (there, measured)))
    if apart <= max(ONE_PERCENT, PHASE_ERRORS * noise):
        return None
    return Phase(label=group.label, apart=apart, own=own, other=span)


def without_common_steps(one: Group, other: Group) -> Phase | None:
    """Return the phase of the first side where all rows of one come before those of the other, with the first and last.

    Steps of other work (another batch, the blocks of an MLPerf submission) have no numbers in common: None.
    """
    results = (one.result, other.result)
    work = {(each.performance_metrics.tokens_per_step, each.training_config.global_batch_size) for each in results}
    numbers = [each.steps.column("index") for each in results]
    of_benchmark = any(each.performance_metrics.reported.benchmark for each in results)
    if len(work) > 1 or of_benchmark or not all(map(len, numbers)):
        return None
    own, their = ((int(index.min()), int(index.max())) for index in numbers)
    is_apart = own[1] < their[0] or their[1] < own[0]
    return Phase(label=one.label, apart=math.inf, own=own, other=their) if is_apart else None


def common_steps(baseline: Group, candidate: Group) -> tuple[Group, Group, tuple[int, int]] | None:
    """Return both sides with only the steps that both have, after the warm-up of each, and the first and last of them.

    The longer side is cut where the shorter one ends, and its warm-up detected again. None where a side has too few
    steps there, or does not settle.
    """
    sides = (baseline, candidate)
    spans = [_measured_span(group.result) for group in sides]
    last = min((span[1] for span in spans if span), default=0)
    cut = [_cut(group, last) for group in sides]
    first = max((span[0] for group in cut if (span := _measured_span(group.result))), default=0)
    cut = [_cut(group, last, warmup_steps=first - 1) for group in cut]
    for group, whole in zip(cut, sides, strict=True):
        rows = sum(len(one.rows) for one in _selected(group.result))
        if len(group.runs) != len(whole.runs) or rows < FEWEST_IN_PHASE or not settled(group):
            return None
    return cut[0], cut[1], (first, last)


def _cut(group: Group, last: int, *, warmup_steps: int | None = None) -> Group:
    """Return a side without the steps after the last one. warmup_steps: steps to leave out at the start."""
    result = group.result
    if warmup_steps is not None:
        result = result.changed(training_config=result.training_config.changed(warmup_steps=warmup_steps))
    result = summarise(result.changed(steps=result.steps.take(result.steps.column("index") <= last)))
    return replace(group, result=result, runs=tuple(runs_of(result)))


def _measured_span(result: Result) -> tuple[int, int] | None:
    """Return the numbers of the first and the last measured step of all runs, None without rows."""
    rows = [one.rows for one in _selected(result) if len(one.rows)] if len(result.steps) else []
    if not rows:
        return None
    index = result.steps.column("index")[np.concatenate(rows)]
    return int(index.min()), int(index.max())


def _selected(run: Result) -> tuple[Selection, ...]:
    return select_measured(run.steps, warmup_steps=run.training_config.warmup_steps)


def _ratios_of_sums(steps: Steps, work: str) -> Iterable[tuple[FloatArray, FloatArray]]:
    """Yield the numerator and denominator, row by row, of the ways in which core/summary forms a figure, best first.

    work: tokens, samples or steps, which the figure counts.
    """
    seconds, steps_covered = steps.columns("seconds", "covers")
    covers, seen = steps_covered.astype(np.float64), steps.seen
    time = seconds * covers
    for unit in {"tokens": ("tokens", "samples"), "samples": ("samples",)}.get(work, ()):
        if unit in seen:
            yield steps.column(unit) * covers, time
    for rate in ("reported_tokens_per_second", "reported_tokens_per_second_per_gpu", "reported_samples_per_second"):
        if work != "steps" and rate in seen:
            of_row = work_of(steps, rate, np.ones(len(covers), np.bool_))[0] * covers
            yield of_row, of_row / usable_rate(steps, rate)
    yield covers, time
