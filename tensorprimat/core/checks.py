"""Checks for suspicious results: each warning is a sentence on the result, led by the field it is about."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tensorprimat.core import agreement, catalogue, quantities
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.quantities import (
    as_stated,
    count,
    counted,
    listed,
    percent,
    significant,
    stated_watts,
)
from tensorprimat.core.result import POWER_CAP, Result
from tensorprimat.core.selection import Selection
from tensorprimat.core.steady import find_outliers, median
from tensorprimat.core.steps import INTERRUPTIONS, finite
from tensorprimat.core.terms import (
    COUNTED_ENERGY,
    LEAST_ADDED_UP,
    LEAST_KNOWN,
    LEVEL_NAMES,
    POWER_COLUMN,
    RATES,
    ROWS_OF_POWER,
    combined,
    known_share,
    power_figures,
    time_of,
    token_range,
    usable_rate,
)

NAMED_OUTLIERS = 3  # the slowest; a list of fifty is of no use
LEAST_THROTTLED = 0.01  # of the measured time; less does not change a figure that anybody reads
ENERGY_TOLERANCE = 0.05  # relative; sampling noise alone causes a smaller difference between counter and sampled power
LOWERED = 0.01  # relative; a cap is a setting, so a larger difference is no rounding
FALLEN = 0.05
STEADY_SECONDS = 10.0
"""A clock fell if its mean over the last third of a run is 5 % below that over the first. An H100 at its power cap
(nvidia-smi, 2026-11-27) had means over 10 s that differ by 1.7 % (standard deviation) and fall by at most 2.1 %, but
over 2 s by 4.3 % and at most 8.2 %, so less time allows more: by the root of the time."""
MOST_IMPROBABLE = 9  # tokens; no language model is trained on sequences shorter than that

EARLIER_WARNING = re.compile(
    r"steps: (?:run \d+: )?\d+ unexplained (?:outliers?|slow rows?) kept in\b|clock: throttled for \d"
)
"""A warning of these checks in result files from before 2026-11-27; the checks now print other words."""


def result_warnings(result: Result, selections: Sequence[Selection]) -> tuple[str, ...]:
    """Return every warning that follows from the figures and steps of a summarised result."""
    return (
        *_unknown_figures(result),
        *agreement.disagreements(result),
        *_losses(result),
        *_selection(result, selections),
        *_uneven_tokens(result, selections),
        *_sparse_power(result, selections),
        *_stated_power(result),
        *_energies(result),
        *_lowered_cap(result),
        *_slowdown(result),
        *_falling_clocks(result, selections),
        *_outliers(result, selections),
    )


def _unknown_figures(result: Result) -> list[str]:
    warnings = []
    config, performance = result.training_config, result.performance_metrics
    if result.memory_metrics is None:
        of_cpu = "CPU run, so peak memory is the process's RSS (host_memory_peak_gb)"
        warnings.append(f"memory_metrics: {of_cpu if result.platform == 'cpu' else 'no device memory was logged'}")
    if performance.tokens_per_second is None and performance.tokens_per_second_per_gpu is None:
        missing = ["--sequence-length"] if config.sequence_length is None else []
        if config.global_batch_size is None and performance.samples_per_second is None:
            missing.append("--global-batch-size")
        if missing:
            warnings.append(f"tokens_per_second: unknown without {listed(missing)}")
    elif performance.tokens_per_second_per_gpu is None and config.num_gpus is None:
        warnings.append("tokens_per_second_per_gpu: the number of GPUs is unknown; give --num-gpus")
    if result.provenance.engine == LOGS and (config.sequence_length or MOST_IMPROBABLE) < MOST_IMPROBABLE:
        warnings.append(
            f"sequence_length: {config.sequence_length} tokens is improbably short; state another one by "
            "--sequence-length"
        )
    return warnings


def _losses(result: Result) -> list[str]:
    steps = result.steps
    if not steps.has("loss"):
        return []
    warnings = []
    nan_rows = np.flatnonzero(steps.logged_nan("loss"))
    if len(nan_rows):
        first, later = _called(result, int(nan_rows[0])), steps.column("loss")[int(nan_rows[0]) :]
        span = f"the first at {first}" if np.isfinite(later).any() else f"from {first} on"
        warnings.append(
            f"loss: nan in {len(nan_rows)} of {len(steps)} logged rows, {span}; "
            "the speed of a run that does not learn means little"
        )
    losses = finite(steps.column("loss"))
    if len(losses) >= 10 and np.ptp(losses) <= 1e-6 * abs(losses[0]):
        warnings.append(f"loss: stays at {as_stated(losses[0])} over {len(losses)} rows; is the model training at all?")
    skipped = int(steps.column("skipped").sum())
    if skipped:
        warnings.append(
            f"steps: the optimizer skipped its update in {skipped} of {len(steps)} logged rows; their time counts"
        )
    return warnings


_DRIFTING = "the average depends on which steps are included (benchmark.py --steps N for longer runs)"


def _selection(result: Result, selections: Sequence[Selection]) -> list[str]:
    warnings = []
    if len(selections) > 1 and not selections[0].side_settled:
        warnings.append(f"steps: step time keeps drifting in all runs together; {_DRIFTING}")
    for selection in selections:
        where = f"run {selection.run + 1}: " if len(selections) > 1 else ""
        if selection.segments > 1:
            warnings.append(f"steps: {where}{_segments(selection)}")
        if not selection.settled:
            warnings.append(f"steps: {where}step time keeps drifting; {_DRIFTING}")
        if selection.declared_steps is not None:
            warnings.append(
                f"steps: {where}step time settles after {selection.dropped_steps} steps, later than the declared "
                f"warm-up of {selection.declared_steps}; the steps between are not measured "
                f"(benchmark.py --warmup-steps {selection.dropped_steps} declares them)"
            )
        if selection.excluded_steps:
            warnings.append(
                f"steps: {where}{selection.excluded_steps} left out because they include {_other_work(result)}"
            )
        if len(selection.rows) and (result.steps.column("interrupted_by")[selection.rows] != 0).all():
            warnings.append(
                f"steps: {where}every measured row includes {_other_work(result)}, so the rate is lower than that of "
                "training alone"
            )
        if not len(selection.rows):
            warnings += [f"steps: {where}{why}" for why in _unmeasured(result, selection)]
        elif len(selection.rows) < 10:
            rows = counted(len(selection.rows), "measured row")
            warnings.append(f"steps: {where}only {rows}, too few for an interval of this run alone")
    return warnings


def _other_work(result: Result) -> str:
    """Return the work inside the interrupted rows, as a phrase."""
    found = result.steps.column("interrupted_by")
    kinds = {kind for code, kind in enumerate(INTERRUPTIONS) if kind and (found == code).any()}
    if "profile" not in kinds:
        return "a validation or checkpoint"
    return "the writing of a profile" if len(kinds) == 1 else "a validation, checkpoint or the writing of a profile"


def _unmeasured(result: Result, selection: Selection) -> list[str]:
    """Return why no row of a run is measured; nothing where the log's own means take the place of rows."""
    steps, declared = result.steps, result.training_config.warmup_steps
    columns = (steps.column(name)[selection.of_run] for name in ("seconds", *RATES) if steps.has(name))
    if not any(np.isfinite(column).any() for column in columns):
        is_known = result.performance_metrics.basis == "reported_means"
        return [] if is_known else ["no row states a step time or a rate, so none is measured"]
    if declared:
        return [
            f"no step remains after the declared warm-up of {declared}, so none is measured (benchmark.py "
            "--warmup-steps declares fewer)"
        ]
    return ["no step remains after warm-up, so none is measured"]


TOKENS_CHANGE = "tokens_per_step: changes"
"""Beginning of the warning of a reader that found the step from which on every step has other tokens."""


def _uneven_tokens(result: Result, selections: Sequence[Selection]) -> list[str]:
    """Return a note if the measured steps have different numbers of tokens and no growing batch explains it."""
    if result.steps.has("samples") or any(text.startswith(TOKENS_CHANGE) for text in result.warnings):
        return []
    ranges = [found for selection in selections if (found := token_range(result.steps.take(selection.rows)))]
    if not ranges:
        return []
    fewest, most = min(low for low, _ in ranges), max(high for _, high in ranges)
    return [
        f"tokens_per_step: varies from {count(fewest)} to {count(most)}; the figure is the mean, tokens/s is all "
        "tokens over all seconds, and the time of a step depends on its tokens"
    ]


def _sparse_power(result: Result, selections: Sequence[Selection]) -> list[str]:
    """Return warnings about power, clock and temperature that only a part of the measured rows states, and energy."""
    steps = result.steps
    known = [name for name in (*LEVEL_NAMES, COUNTED_ENERGY) if steps.has(name)]
    rows = [selection.rows for selection in selections if len(selection.rows)]
    if not known or not rows:
        return []
    measured, warnings = steps.take(np.concatenate(rows)), []
    for name in filter(LEVEL_NAMES.__contains__, known):
        level, share = LEVEL_NAMES[name], known_share(measured, name)
        if share >= LEAST_ADDED_UP:
            continue
        stated = f"power_metrics: {level} is known for {percent(share)} of the measured time"
        if share < LEAST_KNOWN:
            energy = " and no energy from it" if name == POWER_COLUMN else ""
            warnings.append(f"{stated}; there is no mean of it{energy}, because a minority may differ from the rest")
        else:
            energy = ", and there is no energy from it" if name == POWER_COLUMN else ""
            warnings.append(f"{stated}; the mean is of that part{energy}")
    counted_rows = int(np.isfinite(measured.column(COUNTED_ENERGY)).sum())
    if 0 < counted_rows < len(measured):
        instead = "the energy is power × time" if COUNTED_ENERGY in power_figures(measured) else "there is no energy"
        warnings.append(
            f"power_metrics: {counted_rows} of {len(measured)} measured rows state their energy; a part is not the "
            f"sum, so {instead}"
        )
    return warnings


def _stated_power(result: Result) -> list[str]:
    """Return a warning about figures of power that a file states and its steps cannot confirm."""
    if not len(result.steps) or result.power_metrics is None:
        return []
    stated = [
        name
        for name, columns in ROWS_OF_POWER.items()
        if getattr(result.power_metrics, name) is not None and not any(map(result.steps.has, columns))
    ]
    if not stated:
        return []
    verb, no = ("is", "it") if len(stated) == 1 else ("are", "them")
    return [
        f"power_metrics: {listed(stated)} {verb} as the file states {no}; its steps hold no such values, so nothing "
        "confirms that the same steps were measured"
    ]


def _energies(result: Result) -> list[str]:
    """Return a warning about an energy counter that sampled power contradicts."""
    power = result.power_metrics
    counter, sampled = (power.energy_joules_per_gpu, power.sampled_energy_joules_per_gpu) if power else (None, None)
    if not counter or not sampled or abs(counter - sampled) <= ENERGY_TOLERANCE * sampled:
        return []
    return [
        f"power_metrics: energy per GPU is {quantities.joules(counter)} by the energy counter, but "
        f"{quantities.joules(sampled)} by sampled power, more than {percent(ENERGY_TOLERANCE, 0)} apart; energy per "
        "token may be wrong by as much"
    ]


def _lowered_cap(result: Result) -> list[str]:
    """Return a warning about a power cap below the board's default, or below the data sheet's if that is unknown."""
    info, gpu = result.gpu_info, catalogue.find_gpu_of(result.gpu_info)
    limit, default, whose = info.power_limit_watts, info.default_power_limit_watts, "the board's default"
    if default is None and gpu is not None and gpu.tdp_watts is not None:
        default, whose = gpu.tdp_watts.value, "the data sheet's limit"
    if not limit or not default or limit >= default * (1 - LOWERED):
        return []
    tool = "amd-smi set -o" if result.platform == "amd" else "nvidia-smi -pl"
    return [
        f"clock: the power cap of {stated_watts(limit)} is below {whose} of {stated_watts(default)}, so the GPU "
        f"is slower than it can be; {tool} {as_stated(default)} raises it"
    ]


def _slowdown(result: Result) -> list[str]:
    """Return a warning if heat or the hardware reduced the clock for more than LEAST_THROTTLED of the measured time.

    A result file without slowdown_seconds counts the time at the power cap too, so the warning names that as well.
    """
    power, seconds = result.power_metrics, result.performance_metrics.measured_time_seconds
    reasons = dict.fromkeys(why for run in result.runs for why in run.throttled_by)
    if power is None or not seconds or not reasons.keys() - {POWER_CAP}:
        return []
    slowed = power.throttled_seconds
    if power.slowdown_seconds is not None:
        slowed = power.slowdown_seconds
        reasons.pop(POWER_CAP, None)
    if not slowed or slowed <= LEAST_THROTTLED * seconds:
        return []
    mean = f" ({quantities.gigahertz(power.avg_clock_hertz)} on average)" if power.avg_clock_hertz else ""
    return [
        f"clock: throttled for {percent(slowed / seconds, 0)} of the measured time by {listed(reasons)}{mean}; the "
        "figures are those of the lower clock; check cooling and power supply"
    ]


def _falling_clocks(result: Result, selections: Sequence[Selection]) -> list[str]:
    """Return a warning about runs whose mean clock is lower in the last third of the measured rows (see FALLEN)."""
    falls = []
    for selection in selections:
        third = len(selection.rows) // 3
        if not third or not result.steps.has("clock_hertz"):
            continue
        ends = [result.steps.take(rows) for rows in (selection.rows[:third], selection.rows[-third:])]
        first, last = (combined(part, "clock_hertz") for part in ends)
        shortest = min(time_of(part) or 0.0 for part in ends)
        if first is None or last is None or not shortest:
            continue
        if 1 - last.value / first.value > FALLEN * max(1.0, math.sqrt(STEADY_SECONDS / shortest)):
            falls.append((last.value / first.value, first.value, last.value))
    if not falls:
        return []
    _, high, low = min(falls)
    runs = f" (in {len(falls)} of {counted(len(selections), 'run')})" if len(selections) > 1 else ""
    return [
        f"clock: the clock fell from {quantities.gigahertz(high)} in the first third of the measured steps to "
        f"{quantities.gigahertz(low)} in the last{runs}, so the average depends on the length of the run; benchmark.py "
        "--warmup-steps N leaves more steps out"
    ]


def _segments(selection: Selection) -> str:
    """Return a sentence that names the measured segments between restarts, and why others are left out."""
    if len(selection.measured_segments) > 1:
        numbers = ", ".join(str(number + 1) for number in selection.measured_segments)
        sentence = (
            f"{selection.segments} segments between restarts; numbers {numbers}, each of which resumed the previous "
            "one, are measured together, without their warm-up"
        )
    else:
        sentence = (
            f"{selection.segments} segments (restarts, or several trainings, as in a sweep); number "
            f"{selection.segment + 1}, the last of the longest, is measured; tprimat extract --segment reads another"
        )
    if selection.off_level:
        others = [str(number + 1) for number in selection.off_level]
        sentence += (
            f"; number {others[0]} is not, because its step times differ; tprimat extract --segment reads it alone"
            if len(others) == 1
            else f"; numbers {', '.join(others)} are not, because their step times differ; tprimat extract --segment "
            "reads one of them alone"
        )
    return sentence


def _outliers(result: Result, selections: Sequence[Selection]) -> list[str]:
    """Return warnings that name unexplained slow or fast rows: they are part of the cost, so they stay in."""
    seconds = result.steps.column("seconds")
    warnings = []
    for selection in selections:
        where = f"run {selection.run + 1}: " if len(selections) > 1 else ""
        if not result.steps.has("seconds"):
            warnings += _slow_rates(result, selection, where)
            continue
        if not len(found := find_outliers(seconds[selection.rows])):
            continue
        usual = median(finite(seconds[selection.rows]))
        one_digit = 2.02 * (result.provenance.rounding or 0.0) * usual  # the next printed value is no outlier
        rows = np.array([row for row in selection.rows[found] if abs(seconds[row] - usual) > one_digit])
        if not len(rows):
            continue
        worst = sorted(rows[np.argsort(-seconds[rows])][:NAMED_OUTLIERS].tolist())
        waited = result.steps.column("host_wait_seconds")
        explained = (seconds > usual) & (2 * waited > seconds - usual)
        named = ", ".join(
            f"{_called(result, row)} took {quantities.seconds(seconds[row])}"
            + (f" (the device waited {quantities.seconds(waited[row])} for the host)" if explained[row] else "")
            for row in worst
        )
        more = f" and {len(rows) - len(worst)} more" if len(rows) > len(worst) else ""
        unknown = "" if explained[rows].all() else " of unknown cause"
        verb = "is" if len(rows) == 1 else "are"
        warnings.append(
            f"steps: {where}{counted(len(rows), 'outlier')}{unknown} {verb} included (median "
            f"{quantities.seconds(usual)}): {named}{more}"
        )
    return warnings


def _slow_rates(result: Result, selection: Selection, where: str) -> list[str]:
    """Return a warning about unexplained slow rows of a log that has rates and no times.

    where: "run 2: " for one of several runs, else "".
    """
    name = next((name for name in RATES if result.steps.has(name)), None)
    if name is None:
        return []
    rates = usable_rate(result.steps, name)
    measured = rates[selection.rows]
    odd = find_outliers(1 / measured)
    if not len(odd):
        return []
    usual = median(finite(measured))
    rows = selection.rows[odd][measured[odd] < usual]
    if not len(rows):
        return []
    worst = int(rows[rates[rows].argmin()])
    verb = "is" if len(rows) == 1 else "are"
    return [
        f"steps: {where}{counted(len(rows), 'slow row')} of unknown cause {verb} included: "
        f"{_called(result, worst)} ran at {significant(rates[worst] / usual, 2)} of the median rate"
    ]


def _called(result: Result, row: int) -> str:
    """Return the name of a row in messages: its step, or its place in a file that does not number its steps."""
    if "index" not in result.steps.seen:
        return f"row {row + 1}"
    word = "row" if "index" in result.provenance.assumed else "step"
    return f"{word} {result.steps.column('index')[row]}"
