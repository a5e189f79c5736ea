"""From steps to figures: `summarise` fills a Result, `pool` joins repetitions. The same for engines, logs and files.

Measured steps are those of the chosen segments of each run, after warm-up, without those that contain a validation or a
checkpoint (unless all do). Every rate is a ratio of sums over them. Where the tokens of a step are unknown but the
framework printed a rate, the rate is combined by work (harmonically, or by time where times exist) and `basis` says so.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorprimat.audit import agreement, verdict
from tensorprimat.audit.checks import derived_notices
from tensorprimat.audit.evidence import Evidence
from tensorprimat.core import terms
from tensorprimat.core.device_terms import ROWS_OF_POWER, memory_figures, power_figures
from tensorprimat.core.notices import REMARK, Notice
from tensorprimat.core.provenance import Source
from tensorprimat.core.result import MEMORY_KINDS, MemoryMetrics, PerformanceMetrics, PowerMetrics, Result, Run
from tensorprimat.core.steady import Selection, Steady, median, warm_up_rows, within_half
from tensorprimat.core.steps import FloatArray, Steps, chosen, distinct, finite
from tensorprimat.core.terms import RATES, Term, usable_rate
from tensorprimat.core.warmup import find_warmup

SAME_LEVEL = 0.1  # of step times: resumed trainings differ by less, unless they run on other hardware
REPEATED_LOSS = 0.05  # of repeated steps: the order of the data may change with a restart


def select_measured(steps: Steps, *, warmup_steps: int | None = None) -> tuple[Selection, ...]:
    """Return the measured rows, run by run: those that hold a time or a rate (a log may print rows with a loss alone).

    warmup_steps: optimizer steps declared as warm-up: 0 counts every row, otherwise the least that is dropped; more are
    dropped where the step times of the runs show a longer warm-up. None finds its end from the data alone, where the
    first row is dropped, too (for an exception see `warm_up_rows`). Every segment has a warm-up of its own. Of several
    segments (a log with restarts) the one with most optimizer steps is measured, the later one of equals, together with
    those that resume where another ended, if their step times agree with its own.
    """
    return steps.once(("select_measured", warmup_steps), lambda: _select(steps, warmup_steps))


def _select(steps: Steps, warmup_steps: int | None) -> tuple[Selection, ...]:
    """Return the selections without interrupted rows, or with them where no other row is left."""
    interrupted = steps.column("interrupted_by") != 0
    found = _select_among(steps, warmup_steps, interrupted)
    if interrupted.any() and not any(len(one.rows) for one in found):
        return _select_among(steps, warmup_steps, np.zeros_like(interrupted))
    return found


def _select_among(steps: Steps, warmup_steps: int | None, interrupted: np.ndarray) -> tuple[Selection, ...]:
    run_column, segment_column, covers = steps.column("run"), steps.column("segment"), steps.column("covers")
    pace = pace_of(steps)
    undisturbed = np.where(interrupted, np.nan, pace) if interrupted.any() else pace
    timed = [np.isfinite(usable_rate(steps, name)) for name in RATES if steps.has(name)]
    if steps.has("seconds"):
        timed.append(np.isfinite(steps.column("seconds")))
    measurable = np.logical_or.reduce(timed) if timed else np.zeros(len(steps), dtype=bool)
    trained = []
    for run, of_run in _rows_by_run(run_column):
        by_segment = {
            number: chosen(of_run, (segment_column[of_run] == number) & (covers[of_run] > 0))
            for number in distinct(segment_column[of_run])
        }
        of_times = {number: rows for number, rows in by_segment.items() if measurable[rows].any()}
        chain = _longest_chain(of_times or by_segment, steps, covers)
        longest = max(chain, key=lambda number: (covers[by_segment[number]].sum(), number))
        by_segment |= chain
        trained.append(_Trained(run=run, of_run=of_run, by_segment=by_segment, chain=[*chain], longest=longest))
    measured_most = [one.by_segment[one.longest] for one in trained]
    declared = [_declared_rows(covers[rows], warmup_steps) for rows in measured_most]
    together = find_warmup([undisturbed[rows] for rows in measured_most], None if warmup_steps is None else declared)
    selections = []
    for one, steady, least in zip(trained, together.runs, declared, strict=True):
        run, of_run, by_segment = one.run, one.of_run, one.by_segment
        known = {one.longest: steady}
        pieces = [
            _piece(number, by_segment[number], covers, pace, undisturbed, warmup_steps, known.get(number))
            for number in one.chain
        ]
        main = next(piece for piece in pieces if piece.segment == one.longest)
        measured = [piece for piece in pieces if piece is main or _is_level(piece, main, pace)]
        after = np.concatenate([piece.after for piece in measured]) if len(measured) > 1 else main.after
        selections.append(
            Selection(
                run=run,
                of_run=of_run,
                of_training=chosen(of_run, np.isin(segment_column[of_run], [piece.segment for piece in measured])),
                rows=chosen(after, ~interrupted[after] & measurable[after]),
                segment=main.segment,
                segments=len(by_segment),
                measured_segments=tuple(piece.segment for piece in measured),
                off_level=tuple(piece.segment for piece in pieces if piece not in measured),
                dropped_steps=sum(int(covers[piece.rows[: piece.start]].sum()) for piece in measured),
                excluded_steps=int(covers[after][interrupted[after]].sum()),
                settled=all(piece.settled for piece in measured),
                side_settled=together.settled,
                drift=together.drift,
                declared_steps=warmup_steps if warmup_steps is not None and main.start > least else None,
            )
        )
    return tuple(selections)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trained:
    """The rows of one run, by segment."""

    run: int
    of_run: np.ndarray
    by_segment: dict[int, np.ndarray]
    chain: list[int]
    """Segments that resume one another."""
    longest: int
    """The one of these with most optimizer steps, the later one of equals."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Piece:
    """The rows of one segment. start: position of the first one after warm-up."""

    segment: int
    rows: np.ndarray
    start: int
    settled: bool

    @property
    def after(self) -> np.ndarray:
        return self.rows[self.start :]


def _piece(
    number: int,
    rows: np.ndarray,
    covers: np.ndarray,
    pace: FloatArray,
    undisturbed: FloatArray,
    warmup_steps: int | None,
    steady: Steady | None,
) -> _Piece:
    """Find where the warm-up of one segment ends, unless `steady` states it.

    undisturbed: pace, NaN for interrupted rows; shape (all rows,).
    """
    if steady is None:
        declared = None if warmup_steps is None else [_declared_rows(covers[rows], warmup_steps)]
        steady = find_warmup([undisturbed[rows]], declared).runs[0]
    steady = steady if warmup_steps is not None else within_half(steady, covers[rows])
    start = steady.start if warmup_steps is not None else warm_up_rows(steady, pace[rows], covers[rows])
    return _Piece(segment=number, rows=rows, start=start, settled=steady.settled)


def _declared_rows(covers: np.ndarray, warmup_steps: int | None) -> int:
    """Return how many rows the declared warm-up takes: none for 0 steps, else at least the first."""
    if not warmup_steps:
        return 0
    return max(1, int(np.searchsorted(np.cumsum(covers), warmup_steps, side="right")))


def _longest_chain(by_segment: dict[int, np.ndarray], steps: Steps, covers: np.ndarray) -> dict[int, np.ndarray]:
    """Return the chain of segments, each resuming the one before, with most optimizer steps; the last of equals.

    A segment that resumes from a checkpoint repeats steps of the one before, whose rows of these steps are left out.
    """
    if len(by_segment) == 1:
        return by_segment
    index = steps.column("index")
    chains: list[dict[int, np.ndarray]] = []
    for number, rows in by_segment.items():
        if not len(rows):
            continue
        last, before = [*chains[-1].items()][-1] if chains else (None, rows)
        if last is not None and _resumes(rows, before, steps):
            chains[-1][last] = chosen(before, index[before] < index[rows[0]])
            chains[-1][number] = rows
        else:
            chains.append({number: rows})
    if not chains:
        number = [*by_segment][-1]
        return {number: by_segment[number]}
    latest_first = reversed(chains)  # max takes the first of equals
    return max(latest_first, key=lambda chain: sum(int(covers[rows].sum()) for rows in chain.values()))


def _resumes(rows: np.ndarray, before: np.ndarray, steps: Steps) -> bool:
    """Return True if rows go on from others, or go beyond them from a step that they repeat with the same loss."""
    index, loss = steps.column("index"), steps.column("loss")
    started = index - steps.column("covers")  # a row may count all steps since the start of its training
    if started[rows[0]] <= started[before[0]] or index[rows[-1]] <= index[before[-1]]:
        return False
    _, again, first = np.intersect1d(index[rows], index[before], return_indices=True)
    changes = np.abs(loss[rows[again]] / loss[before[first]] - 1)
    known = changes[np.isfinite(changes)]
    return not len(known) or median(known) <= REPEATED_LOSS


def _is_level(piece: _Piece, main: _Piece, pace: FloatArray) -> bool:
    """Return True if a segment runs at the speed of the longest one; also if either has no known speed."""
    mine, theirs = (finite(pace[one.after]) for one in (piece, main))
    if not len(mine) or not len(theirs):
        return True
    return abs(median(mine) / median(theirs) - 1) <= SAME_LEVEL


def _rows_by_run(runs: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return every run with the positions of its rows, in one pass: thousands of files pool as thousands of runs."""
    if not len(runs):
        return []
    if (runs == runs[0]).all():
        return [(int(runs[0]), np.arange(len(runs)))]
    numbers, place = np.unique(runs, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place))[:-1]
    return list(zip(numbers.tolist(), np.split(order, ends), strict=True))


def pace_of(steps: Steps) -> FloatArray:
    """Return the seconds of a step, or a number proportional to them where only a rate was printed. shape (rows,)"""
    if steps.has("seconds"):
        return steps.column("seconds")
    for name in RATES:
        if steps.has(name):
            return 1.0 / usable_rate(steps, name)
    return np.full(len(steps), np.nan)


def summarise(result: Result) -> Result:
    """Return the result with every figure computed again from its steps; idempotent.

    A result without steps keeps its figures as the framework or an older file reported them; so does one whose steps
    contain neither time nor rate (a Hugging Face log: losses, and one summary at the end).
    """
    recorded = recorded_notices(result)
    if not len(result.steps):
        return result.changed(warnings=_unique(recorded + derived_notices(result, ())))
    steps, selections, measured = measured_of(result)
    known = {run.index: run for run in result.runs}
    found = _terms(result, steps, selections, measured)
    of_one = found["performance_metrics"] if len(selections) == 1 else None
    runs = []
    for selection in selections:
        rows = measured if of_one else steps.take(selection.rows)
        rates = _values(of_one or _terms_of_rows(result, rows))
        runs.append(_run(known.get(selection.run) or Run(index=selection.run), steps, selection, rows, rates))
    figured = result.changed(
        performance_metrics=_with_means(result, _performance(result, found)),
        memory_metrics=_memory(steps, found["memory_metrics"], result.memory_metrics),
        power_metrics=_power(steps, found["power_metrics"], result.power_metrics),
        runs=tuple(runs),
    )
    return figured.changed(warnings=_unique(recorded + derived_notices(figured, selections)))


def measured_of(result: Result) -> tuple[Steps, tuple[Selection, ...], Steps]:
    """Return all rows with the known work of a step filled in, the selection of each run, and the measured rows."""
    config, steps = result.training_config, result.steps
    selections = select_measured(steps, warmup_steps=config.warmup_steps)
    if not steps.has("tokens") and config.global_batch_size and config.sequence_length:
        steps = steps.replace(tokens=float(config.global_batch_size * config.sequence_length))
    if not steps.has("samples") and config.global_batch_size:
        steps = steps.replace(samples=float(config.global_batch_size))
    rows = [selection.rows for selection in selections]
    return steps, selections, steps.take(rows[0] if len(rows) == 1 else np.concatenate(rows))


def recorded_notices(result: Result) -> tuple[Notice, ...]:
    """Return the notices of readers and engines, without those that are computed from the figures each time.

    A file from before 2026-11-28 has no codes: there a sentence is a derived one if one that the figures give today is
    the same or continues it, or if it is about the clock, which only derived notices are.
    """
    found = tuple(one for one in result.remarks if not one.is_derived)
    if all(one.code != REMARK for one in found):
        return found
    selections = select_measured(result.steps, warmup_steps=result.training_config.warmup_steps)
    derived = derived_notices(result, selections)
    return tuple(
        one
        for one in found
        if one.code != REMARK or (one.field != "clock" and not any(now.startswith(one) for now in derived))
    )


def pool(results: Sequence[Result]) -> Result:
    """Pool repetitions of one benchmark into one result: steps and runs one after the other, figures over all of them.

    Configuration, device and model are taken from the first; callers check that the rest agrees. The runs are numbered
    anew from 0, because a result from which some runs were left out has gaps in its numbers. Raises ValueError for no
    result at all.
    """
    if not results:
        raise ValueError("nothing to pool")
    first_run = 0
    parts: list[Steps] = []
    runs: list[Run] = []
    sources: list[Source] = []
    recorded: list[Notice] = []
    for result in results:
        facts = result.runs or (Run(index=0, started_at=result.timestamp, complete=result.complete),)
        of_steps = result.steps.column("run")
        numbers = sorted({*distinct(of_steps), *(run.index for run in facts)})
        run_of_row = np.searchsorted(numbers, of_steps) + first_run
        source_of_row = result.steps.column("source") + len(sources)
        parts.append(result.steps.replace(run=run_of_row, source=source_of_row))
        seed = result.training_config.seed
        runs += [
            run.changed(
                index=numbers.index(run.index) + first_run,
                seed=run.seed if run.seed is not None else seed,
                host=run.host or result.provenance.host,
            )
            for run in facts
        ]
        first_run += len(numbers)
        sources += result.provenance.sources
        recorded += recorded_notices(result)
    peaks = [result.host_memory_peak_gb for result in results if result.host_memory_peak_gb is not None]
    first = results[0]
    return summarise(
        first.changed(
            steps=Steps.concatenate(parts),
            runs=tuple(runs),
            provenance=first.provenance.changed(
                sources=tuple(sources),
                looks=max(result.provenance.looks for result in results),
                rounding=max((known for result in results if (known := result.provenance.rounding)), default=None),
            ),
            complete=all(result.complete for result in results),
            host_memory_peak_gb=max(peaks, default=None),
            memory_metrics=_pooled_memory(results),
            power_metrics=_pooled_power(results),
            audit=verdict.pooled([result.audit for result in results]),
            evidence=Evidence(),
            warnings=_unique(tuple(recorded)),
        )
    )


def terms_of(result: Result) -> dict[str, dict[str, Term]]:
    """Return every figure of the steps with its formula and numbers: section of the result → field → term."""
    return _terms(result, *measured_of(result)) if len(result.steps) else {}


def terms_of_runs(result: Result) -> Iterator[tuple[int, dict[str, Term]]]:
    """Yield the index of each run with the terms of its step time and rates."""
    steps, selections, _ = measured_of(result)
    for selection in selections:
        yield selection.run, _terms_of_rows(result, steps.take(selection.rows))


def _terms_of_rows(result: Result, rows: Steps) -> dict[str, Term]:
    mean = terms.step_seconds(result.training_config, rows, result.provenance.timer)
    rates = terms.rates(result.training_config, rows)
    found = rates | ({"avg_step_time_seconds": mean} if mean else terms.over_rates(result.training_config, rows, rates))
    return agreement.without_disputed(result, found)


def _terms(
    result: Result, steps: Steps, selections: Sequence[Selection], measured: Steps
) -> dict[str, dict[str, Term]]:
    of_training = np.sort(np.concatenate([selection.of_training for selection in selections]))
    trained = steps if len(of_training) == len(steps) else steps.take(of_training)
    loss = terms.final_loss(trained)
    figures = terms.performance_figures(
        result.training_config,
        steps,
        measured,
        timer=result.provenance.timer,
        dropped=sum(selection.dropped_steps for selection in selections),
        excluded=sum(selection.excluded_steps for selection in selections),
    )
    return {
        "performance_metrics": agreement.without_disputed(result, figures),
        "memory_metrics": memory_figures(trained, measured),
        "power_metrics": power_figures(measured),
        "reported": terms.reported(measured if len(measured) else trained),
        "runs": {} if loss is None else {"final_loss": loss},
    }


def _performance(result: Result, found: dict[str, dict[str, Term]]) -> PerformanceMetrics:
    values = _values(found["performance_metrics"])
    rated = not values.keys().isdisjoint(("tokens_per_second", "tokens_per_second_per_gpu"))
    from_times = "measured_time_seconds" in values and ("tokens_per_step" in values or not rated)
    from_rates = rated or "samples_per_second" in values
    reported = result.performance_metrics.reported.changed(**_values(found["reported"]))
    basis = "step_times" if from_times else "reported_rates" if from_rates else None
    return PerformanceMetrics.model_validate({**values, "basis": basis, "reported": reported})


def _values(found: dict[str, Term]) -> dict[str, float]:
    return {name: term.value for name, term in found.items()}


def _with_means(result: Result, performance: PerformanceMetrics) -> PerformanceMetrics:
    """Return figures of the steps; if they measure nothing, the framework's own means and the number of steps."""
    known = result.performance_metrics
    if performance.basis is not None or known.basis != "reported_means":
        return performance
    return known.changed(total_steps=performance.total_steps, measured_steps=0)


def _memory(steps: Steps, found: dict[str, Term], stated: MemoryMetrics | None) -> MemoryMetrics | None:
    """Return the memory figures of the rows; `stated` ones of the whole run stay for kinds that no row has."""
    figures: dict[str, float | None] = dict(stated) if stated else {}
    for kind in MEMORY_KINDS:
        if steps.has(f"{kind}_bytes") or steps.has(f"{kind}_peak_bytes"):
            names = (f"avg_{kind}_gb", f"peak_{kind}_gb")
            figures |= {name: found[name].value if name in found else None for name in names}
    return MemoryMetrics(**figures) if any(value is not None for value in figures.values()) else None


def _power(steps: Steps, found: dict[str, Term], stated: PowerMetrics | None) -> PowerMetrics | None:
    """Return the power figures of the rows; `stated` ones stay where no row has a column that they could come from."""
    figures = _values(found)
    for name, columns in ROWS_OF_POWER.items():
        value = getattr(stated, name, None)
        if value is not None and not any(map(steps.has, columns)):
            figures[name] = value
    return PowerMetrics(**figures) if figures else None


def _pooled_power(results: Sequence[Result]) -> PowerMetrics | None:
    """Return power that every file states: means weighted by measured time, sums and the highest of the maxima.

    Values from steps replace it. A figure that one of the files lacks is None: a part is neither the sum nor the mean.
    Files without a measured time have equal weights, all of them if one has none.
    """
    times = [result.performance_metrics.measured_time_seconds or 0.0 for result in results]
    weights, pooled = times if all(times) else [1.0] * len(results), {}
    for name in PowerMetrics.model_fields:
        stated = [getattr(result.power_metrics, name, None) for result in results]
        known = [value for value in stated if value is not None]
        if len(known) < len(results):
            continue
        if name.startswith("avg_"):
            pooled[name] = sum(map(operator.mul, known, weights)) / sum(weights)
        else:
            pooled[name] = max(known) if name.startswith("max_") else sum(known)
    return PowerMetrics(**pooled) if pooled else None


def _pooled_memory(results: Sequence[Result]) -> MemoryMetrics | None:
    """Return memory that files state for a run: mean of averages, highest peak. Values from steps replace it."""
    pooled = {}
    for name in MemoryMetrics.model_fields:
        stated = [getattr(result.memory_metrics, name) for result in results if result.memory_metrics]
        known = [value for value in stated if value is not None]
        pooled[name] = None if not known else max(known) if name.startswith("peak_") else sum(known) / len(known)
    return MemoryMetrics(**pooled) if any(value is not None for value in pooled.values()) else None


_OF_A_RUN = ("avg_step_time_seconds", "tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second")


def _run(facts: Run, steps: Steps, selection: Selection, rows: Steps, rates: dict[str, float]) -> Run:
    """Return a run with its figures. rows: its measured rows; rates: figures of these, by field."""
    losses = finite(steps.column("loss")[selection.of_training])
    return facts.changed(
        total_steps=int(steps.column("covers")[selection.of_run].sum()),
        measured_steps=int(rows.column("covers").sum()),
        measured_time_seconds=rows.total_seconds(),
        warmup_steps_dropped=selection.dropped_steps,
        segment=selection.segment,
        segments=selection.segments,
        **{name: rates.get(name) for name in _OF_A_RUN},
        settled=selection.side_settled,
        drift=selection.drift,
        final_loss=float(losses[-1]) if len(losses) else None,
    )


def _unique(notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
    return tuple(dict.fromkeys(notices))
