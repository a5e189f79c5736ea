"""Checks for suspicious results: what follows from the figures and steps of a result, as notices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tensorprimat.audit import reported
from tensorprimat.core import quantities
from tensorprimat.core.device_terms import (
    COUNTED_ENERGY,
    LEAST_ADDED_UP,
    LEAST_KNOWN,
    ROWS_OF_POWER,
    known_share,
    power_figures,
)
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.quantities import counted, percent, significant
from tensorprimat.core.result import POWER_CAP, Result
from tensorprimat.core.steady import Selection, find_outliers, median
from tensorprimat.core.steps import INTERRUPTIONS, finite
from tensorprimat.core.terms import LEVEL_NAMES, POWER_COLUMN, RATES, combined, token_range, usable_rate
from tensorprimat.facts import catalogue

NAMED_OUTLIERS = 3  # the slowest; a list of fifty is of no use
LEAST_THROTTLED = 0.01  # of the measured time; less does not change a figure that anybody reads
ENERGY_TOLERANCE = 0.05  # relative; sampling noise alone causes a smaller difference between counter and sampled power
LOWERED = 0.01  # relative; a cap is a setting, so a larger difference is no rounding
FALLEN = 0.05
STEADY_SECONDS = 10.0
"""A clock fell if its mean over the last third of a run is 5 % below that over the first. An H100 at its power cap
(nvidia-smi, 2026-11-27) had means over 10 s that differ by 1.7 % (standard deviation) and fall by at most 2.1 %, but
over 2 s by 4.3 % and at most 8.2 %, so less time allows more: by the root of the time."""
FEWEST_FASTER, FASTER = 3, 0.75  # rows of a doubtful warm-up, and their time over a measured row's
MOST_IMPROBABLE = 9  # tokens; no language model is trained on sequences shorter than that


def derived_notices(result: Result, selections: Sequence[Selection]) -> tuple[Notice, ...]:
    """Return every notice that follows from the figures and steps of a summarised result."""
    return (
        *_unknown_figures(result),
        *reported.disagreements(result),
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


def _unknown_figures(result: Result) -> list[Notice]:
    found = []
    config, performance = result.training_config, result.performance_metrics
    if result.memory_metrics is None:
        found.append(Notice("memory_of_cpu" if result.platform == "cpu" else "memory_unknown", "memory_metrics"))
    if performance.tokens_per_second is None and performance.tokens_per_second_per_gpu is None:
        missing = ["--sequence-length"] if config.sequence_length is None else []
        if config.global_batch_size is None and performance.samples_per_second is None:
            missing.append("--global-batch-size")
        if missing:
            found.append(Notice("rate_unknown", "tokens_per_second", missing=missing, remedies=missing))
    elif performance.tokens_per_second_per_gpu is None and config.num_gpus is None:
        found.append(Notice("gpus_unknown", "tokens_per_second_per_gpu"))
    is_derived = performance.basis == "reported_rates" and performance.measured_time_seconds is None
    if is_derived and performance.avg_step_time_seconds is not None:
        found.append(Notice("step_time_derived", "step_time"))
    if result.provenance.engine == LOGS and (config.sequence_length or MOST_IMPROBABLE) < MOST_IMPROBABLE:
        found.append(Notice("short_sequence", "sequence_length", tokens=config.sequence_length))
    return found


def _losses(result: Result) -> list[Notice]:
    steps = result.steps
    if not steps.has("loss"):
        return []
    notices = []
    nan_rows = np.flatnonzero(steps.logged_nan("loss"))
    if len(nan_rows):
        first, later = _called(result, int(nan_rows[0])), steps.column("loss")[int(nan_rows[0]) :]
        span = f"the first at {first}" if np.isfinite(later).any() else f"from {first} on"
        notices.append(Notice("loss_nan", "loss", nan=len(nan_rows), rows=len(steps), span=span))
    losses = finite(steps.column("loss"))
    if len(losses) >= 10 and np.ptp(losses) <= 1e-6 * abs(losses[0]):
        notices.append(Notice("loss_constant", "loss", loss=float(losses[0]), rows=len(losses)))
    skipped = int(steps.column("skipped").sum())
    if skipped:
        notices.append(Notice("update_skipped", "steps", skipped=skipped, rows=len(steps)))
    return notices


def _selection(result: Result, selections: Sequence[Selection]) -> list[Notice]:
    found = []
    if len(selections) > 1 and not selections[0].side_settled:
        found.append(Notice("drifting", "steps", together=" in all runs together"))
    is_named = any(one.code == "training_chosen" for one in result.remarks)  # by its place in the log
    for selection in selections:
        say = partial(Notice, field="steps", run=_number(selection, selections))
        one_of_all = len(selection.measured_segments) <= 1 and not selection.off_level
        if selection.segments > 1 and not (one_of_all and is_named):
            found.append(_segments(selection, say))
        if not selection.settled:
            found.append(say("drifting", together=""))
        if selection.declared_steps is not None:
            found.append(say("warmup_longer", steps=selection.dropped_steps, declared=selection.declared_steps))
        if share := _faster_before(result, selection):
            found.append(say("warmup_faster", steps=selection.dropped_steps, share=share))
        if selection.excluded_steps:
            found.append(say("steps_excluded", steps=selection.excluded_steps, work=_other_work(result)))
        if len(selection.rows) and (result.steps.column("interrupted_by")[selection.rows] != 0).all():
            found.append(say("work_in_every_row", work=_other_work(result)))
        if not len(selection.rows):
            found += _unmeasured(result, selection, say)
        elif len(selection.rows) < 10:
            found.append(_few_rows(result, selection, say))
    return found


def _few_rows(result: Result, selection: Selection, say: Callable[..., Notice]) -> Notice:
    """Return how many rows of a run are measured, of how many, and why the others are not."""
    rest = np.setdiff1d(selection.of_run, selection.rows)
    of_rest, segment = result.steps.take(rest), result.steps.column("segment")
    first = {segment[row]: row for row in reversed(selection.rows)}  # measured row of a segment
    timed = [np.isfinite(of_rest.column("seconds")), *(np.isfinite(usable_rate(of_rest, name)) for name in RATES)]
    reasons = {
        "of other segments": ~np.isin(rest, selection.of_training) | ~np.isin(segment[rest], [*first]),
        "without steps of their own": of_rest.column("covers") == 0,
        "without a time": ~np.logical_or.reduce(timed),
        f"with {_other_work(result)}": of_rest.column("interrupted_by") != 0,
        "of the warm-up": np.array([row < first.get(segment[row], -1) for row in rest], dtype=bool),
        "for other reasons": np.ones(len(rest), dtype=bool),
    }
    why = np.select(list(reasons.values()), range(len(reasons)))
    numbers = zip(np.bincount(why, minlength=len(reasons)), reasons, strict=True)
    left_out = ", ".join(f"{number} {reason}" for number, reason in numbers if number)
    others = f"; left out of the {len(selection.of_run)} rows: {left_out}" if left_out else ""
    return say("few_rows", rows=len(selection.rows), others=others)


def _faster_before(result: Result, selection: Selection) -> float | None:
    """Return the step time of the warm-up over the measured one; None unless it is much shorter."""
    if not len(selection.rows) or not result.steps.has("seconds"):
        return None
    seconds, segments = result.steps.column("seconds"), result.steps.column("segment")
    first, of_run = selection.rows[0], selection.of_run
    measured = finite(seconds[selection.rows])
    before = finite(seconds[of_run[(of_run < first) & (segments[of_run] == segments[first])]][1:])
    if len(before) < FEWEST_FASTER or not len(measured):
        return None
    share = median(before) / median(measured)
    return share if share < FASTER else None


def _number(selection: Selection, selections: Sequence[Selection]) -> int | None:
    """Return the number of a run for a notice, from 1; None if it is the only one."""
    return selection.run + 1 if len(selections) > 1 else None


def _other_work(result: Result) -> str:
    """Return the work inside the interrupted rows, as a phrase."""
    found = result.steps.column("interrupted_by")
    kinds = {kind for code, kind in enumerate(INTERRUPTIONS) if kind and (found == code).any()}
    if "profile" not in kinds:
        return "a validation or checkpoint"
    return "the writing of a profile" if len(kinds) == 1 else "a validation, checkpoint or the writing of a profile"


def _unmeasured(result: Result, selection: Selection, say: Callable[..., Notice]) -> list[Notice]:
    """Return why no row of a run is measured; nothing where the log's own means take the place of rows."""
    steps, declared = result.steps, result.training_config.warmup_steps
    columns = (steps.column(name)[selection.of_run] for name in ("seconds", *RATES) if steps.has(name))
    if not any(np.isfinite(column).any() for column in columns):
        is_known = result.performance_metrics.basis == "reported_means"
        return [] if is_known else [say("rows_without_rate")]
    return [say("warmup_too_long", declared=declared) if declared else say("nothing_after_warmup")]


TOKENS_CHANGE = "tokens_change"
"""Code of a reader that found the step from which on every step has other tokens."""


def _uneven_tokens(result: Result, selections: Sequence[Selection]) -> list[Notice]:
    """Return a notice if the measured steps have different numbers of tokens and no growing batch explains it."""
    seen = result.steps.seen
    if "samples" in seen or "tokens" not in seen or any(one.code == TOKENS_CHANGE for one in result.remarks):
        return []
    ranges = [found for selection in selections if (found := token_range(result.steps.take(selection.rows)))]
    if not ranges:
        return []
    fewest, most = min(low for low, _ in ranges), max(high for _, high in ranges)
    return [Notice("tokens_vary", "tokens_per_step", fewest=fewest, most=most)]


def _sparse_power(result: Result, selections: Sequence[Selection]) -> list[Notice]:
    """Return notices about power, clock and temperature that only a part of the measured rows states, and energy."""
    steps = result.steps
    known = [name for name in (*LEVEL_NAMES, COUNTED_ENERGY) if steps.has(name)]
    rows = [selection.rows for selection in selections if len(selection.rows)]
    if not known or not rows:
        return []
    measured, found = steps.take(np.concatenate(rows)), []
    for name in filter(LEVEL_NAMES.__contains__, known):
        level, share, is_power = LEVEL_NAMES[name], known_share(measured, name), name == POWER_COLUMN
        if share >= LEAST_ADDED_UP:
            continue
        so = "the mean is of that part" + ", and there is no energy from it" * is_power
        if share < LEAST_KNOWN:
            energy = " and no energy from it" * is_power
            so = f"there is no mean of it{energy}, because a minority may differ from the rest"
        found.append(Notice("power_sparse", "power_metrics", level=level, share=share, so=so))
    counted_rows = int(np.isfinite(measured.column(COUNTED_ENERGY)).sum())
    if 0 < counted_rows < len(measured):
        instead = "the energy is power × time" if COUNTED_ENERGY in power_figures(measured) else "there is no energy"
        found.append(Notice("energy_sparse", "power_metrics", rows=counted_rows, measured=len(measured), so=instead))
    return found


def _stated_power(result: Result) -> list[Notice]:
    """Return a notice about figures of power that a file states and its steps cannot confirm."""
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
    return [Notice("power_stated", "power_metrics", figures=stated, verb=verb, them=no)]


def _energies(result: Result) -> list[Notice]:
    """Return a notice about an energy counter that sampled power contradicts."""
    power = result.power_metrics
    counter, sampled = (power.energy_joules_per_gpu, power.sampled_energy_joules_per_gpu) if power else (None, None)
    if not counter or not sampled or abs(counter - sampled) <= ENERGY_TOLERANCE * sampled:
        return []
    within = percent(ENERGY_TOLERANCE, 0)
    return [Notice("energies_differ", "power_metrics", counter=counter, sampled=sampled, tolerance=within)]


def _lowered_cap(result: Result) -> list[Notice]:
    """Return a notice about a power cap below the board's default, or below the data sheet's if that is unknown."""
    info, gpu = result.gpu_info, catalogue.find_gpu_of(result.gpu_info)
    limit, default, whose = info.power_limit_watts, info.default_power_limit_watts, "the board's default"
    if default is None and gpu is not None and gpu.tdp_watts is not None:
        default, whose = gpu.tdp_watts.value, "the data sheet's limit"
    if not limit or not default or limit >= default * (1 - LOWERED):
        return []
    tool = "amd-smi set -o" if result.platform == "amd" else "nvidia-smi -pl"
    return [Notice("cap_lowered", "clock", cap=limit, whose=whose, default=default, tool=tool)]


def _slowdown(result: Result) -> list[Notice]:
    """Return a notice if heat or the hardware reduced the clock for more than LEAST_THROTTLED of the measured time.

    A result file without slowdown_seconds counts the time at the power cap too, so the notice names that as well.
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
    share = percent(slowed / seconds, 0)
    return [Notice("throttled", "clock", share=share, reasons=[*reasons], mean=mean)]


def _falling_clocks(result: Result, selections: Sequence[Selection]) -> list[Notice]:
    """Return a notice about runs whose mean clock is lower in the last third of the measured rows (see FALLEN)."""
    falls = []
    for selection in selections:
        third = len(selection.rows) // 3
        if not third or not result.steps.has("clock_hertz"):
            continue
        ends = [result.steps.take(rows) for rows in (selection.rows[:third], selection.rows[-third:])]
        first, last = (combined(part, "clock_hertz") for part in ends)
        shortest = min(part.total_seconds() or 0.0 for part in ends)
        if first is None or last is None or not shortest:
            continue
        if 1 - last.value / first.value > FALLEN * max(1.0, math.sqrt(STEADY_SECONDS / shortest)):
            falls.append((last.value / first.value, first.value, last.value))
    if not falls:
        return []
    _, high, low = min(falls)
    runs = f" (in {len(falls)} of {counted(len(selections), 'run')})" if len(selections) > 1 else ""
    return [Notice("clock_fell", "clock", first=high, last=low, runs=runs)]


def _segments(selection: Selection, say: Callable[..., Notice]) -> Notice:
    """Return a notice that names the measured segments between restarts, and why others are left out."""
    left_out, others = "", [str(number + 1) for number in selection.off_level]
    if others:
        is_one = len(others) == 1
        which, their = ("number", "is not, because its") if is_one else ("numbers", "are not, because their")
        left_out = f"; {which} {', '.join(others)} {their} step times differ; tprimat extract --segment reads "
        left_out += "it alone" if is_one else "one of them alone"
    if len(selection.measured_segments) > 1:
        numbers = ", ".join(str(number + 1) for number in selection.measured_segments)
        return say("segments_joined", segments=selection.segments, numbers=numbers, others=left_out)
    return say("segment_chosen", segments=selection.segments, number=selection.segment + 1, others=left_out)


def _outliers(result: Result, selections: Sequence[Selection]) -> list[Notice]:
    """Return notices that name unexplained slow or fast rows: they are part of the cost, so they stay in."""
    seconds = result.steps.column("seconds")
    notices: list[Notice] = []
    for selection in selections:
        say = partial(Notice, field="steps", run=_number(selection, selections))
        if not result.steps.has("seconds"):
            notices += _slow_rates(result, selection, say)
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
        notices.append(say("outliers", rows=len(rows), cause=unknown, verb=verb, usual=usual, named=f"{named}{more}"))
    return notices


def _slow_rates(result: Result, selection: Selection, say: Callable[..., Notice]) -> list[Notice]:
    """Return a notice about unexplained slow rows of a log that has rates and no times."""
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
    share = significant(rates[worst] / usual, 2)
    return [say("slow_rows", rows=len(rows), verb=verb, row=_called(result, worst), share=share)]


def _called(result: Result, row: int) -> str:
    """Return the name of a row in messages: its step, or its place in a file that does not number its steps."""
    if "index" not in result.steps.seen:
        return f"row {row + 1}"
    word = "row" if "index" in result.provenance.assumed else "step"
    return f"{word} {result.steps.column('index')[row]}"
