"""Assembly of a `Result`, with every figure, from the `Reading` of a log, and its audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice

from tensorprimat.audit import agreement, evidence, findings, reported, verdict
from tensorprimat.audit.evidence import Evidence
from tensorprimat.core import user_facts
from tensorprimat.core.errors import ContradictionError, InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import LOGS, Provenance, SegmentFacts, Source
from tensorprimat.core.result import (
    STACK_OF_PLATFORM,
    GpuInfo,
    Model,
    PerformanceMetrics,
    Reported,
    Result,
    Run,
    TrainingConfig,
)
from tensorprimat.core.steps import Steps, distinct
from tensorprimat.core.summary import select_measured, summarise
from tensorprimat.core.version import __version__
from tensorprimat.facts import catalogue, devices
from tensorprimat.logs import changes, citations, clocks, failures, rounding, segments
from tensorprimat.logs.format import Format, Reading, UserFacts
from tensorprimat.logs.segments import Segment
from tensorprimat.logs.text import Log
from tensorprimat.system.digest import Digest

_MOST_NAMED = 5  # segments in a warning
UNTRUSTED = (
    "no figure of this log can be trusted; check the flags that override the log, choose another format (tprimat "
    "extract --format), or report the log's first rows"
)


def join(
    log: Log,
    format: Format,
    warnings: list[str],
    facts: UserFacts,
    segment: int | None = None,
    *,
    each: bool = False,
    cited: bool = False,
) -> list[Result]:
    """Read one log with one format. warnings: those of the detection; facts: facts that the user stated.

    segment: number of the training to read; each: one result for every training in the log; cited: name the lines that
    state settings. A result record (the tool's own file) is returned unchanged except for these warnings and facts.
    Raises InputError for a segment that the log does not have.
    """
    runs = format.runs(log) if format.runs and (each or segment is not None) else []
    if len(runs) > 1:
        chosen = range(1, len(runs) + 1) if each or segment is None else [segment]
        return [
            result for number in chosen for result in _of_run(log, format, warnings, facts, runs, number, cited=cited)
        ]
    found = segments.read_segments(log, format)
    if isinstance(found, Result):
        return [user_facts.amended(found.changed(warnings=(*found.warnings, *warnings)), facts)]
    numbers = [one.number for one in found] if each and len(found) > 1 else [segment]
    results = [
        user_facts.with_facts(_result(log, format, warnings, found, number, cited=cited), facts) for number in numbers
    ]
    is_stated = facts.global_batch_size is not None or facts.sequence_length is not None
    scoped = [agreement.with_scopes(rounding.with_error(log, result), is_work_stated=is_stated) for result in results]
    return [summarise(reported.with_means(result)) for result in scoped]


def _of_run(
    log: Log, format: Format, warnings: list[str], facts: UserFacts, runs: Sequence[str], number: int, *, cited: bool
) -> list[Result]:
    """Return the results of one of the runs in a file. Raises InputError for a number that no run has."""
    if not 1 <= number <= len(runs):
        remedy = f"--segment takes 1 to {len(runs)}, or all"
        raise InputError(f"holds {len(runs)} runs, but none has number {number}", path=log.name, remedy=remedy)
    one = replace(log, run=runs[number - 1])
    chosen = [*warnings, Notice("run_of_file", "segments", runs=len(runs), number=number, name=one.run)]
    results = join(one, replace(format, runs=None), chosen, facts, cited=cited)
    return [result.changed(provenance=result.provenance.changed(segment=number)) for result in results]


def _result(
    log: Log, format: Format, warnings: list[str], found: list[Segment], number: int | None, *, cited: bool
) -> Result:
    measured = segments.benchmark_of(found, number)
    if not measured:
        trainings = len(found)
        raise InputError(
            f"holds {trainings} training{'s' * (trainings > 1)}, but none has number {number}",
            path=log.name,
            remedy=f"--segment takes 1 to {trainings}, or all",
        )
    reading = clocks.with_dates(log, joined_segments(found, measured, picked=number is not None))
    if planned := failures.planned_but_missing(log, reading):
        last = int(reading.steps.column("index").max())
        ends = Notice("ends_early", "steps", last=last, planned=planned)
        reading = replace(reading, complete=False, warnings=[*reading.warnings, ends])
    warnings = [*warnings, *reading.warnings]
    config = user_facts.with_parallelism(user_facts.believed(TrainingConfig, reading.training_config, warnings))
    gpu_info = user_facts.believed(GpuInfo, {"device_count": config.num_gpus, **reading.gpu_info}, warnings)
    platform = devices.platform_of(gpu_info.device_name) or reading.platform
    lines = citations.of_settings(log, format, measured[0]) if cited else {}
    if gpu_info.software_stack is None and platform:
        gpu_info = gpu_info.changed(software_stack=STACK_OF_PLATFORM[platform])
    return Result(
        platform=platform,
        source=reading.source or f"{format.name} log",
        timestamp=reading.timestamp,
        complete=reading.complete,
        gpu_info=catalogue.with_cores(gpu_info),
        model=user_facts.identified(user_facts.believed(Model, reading.model, warnings)),
        training_config=config,
        performance_metrics=_reported_means(user_facts.believed(Reported, reading.reported, warnings), config),
        runs=_runs(reading),
        provenance=Provenance(
            engine=LOGS,
            format=format.name,
            timing=reading.timing,
            timer=reading.timer,
            sources=(_source(log, format),),
            segments=reading.segments,
            segment=number,
            citations={name: f"{log.called or log.path.name}:{line}" for name, line in lines.items()},
            host=reading.host,
            arguments=dict(measured[0].arguments),
            tool_version=__version__,
            assumed=dict(reading.assumed),
        ),
        warnings=tuple(dict.fromkeys(warnings)),
        steps=user_facts.with_work(reading.steps, config),
        evidence=reading.evidence,
    )


def joined_segments(found: Sequence[Segment], measured: Sequence[Segment], *, picked: bool = False) -> Reading:
    """Return one reading of segments of one benchmark: the rows of all, in the order of the log, with the facts, the
    end and the warnings of those whose rows are measured.

    A warning names the others, with the settings that differ. picked: the user named the one that is measured.
    """
    first = measured[0]
    if len(found) == 1:
        return replace(first.reading, warnings=[*changes.of_speed(first.reading.steps), *first.reading.warnings])
    in_order = sorted(measured, key=lambda segment: segment.number)
    steps = Steps.concatenate([s.reading.steps.replace(segment=s.number - 1) for s in in_order if len(s.reading.steps)])
    numbers = {number + 1 for selection in select_measured(steps) for number in selection.measured_segments}
    own = [segment for segment in in_order if segment.number in numbers] or in_order
    first = first if first in own else segments.benchmark_of(own, None)[0]
    timed = [segment for segment in own if segment.is_timed]
    speeds = [warning for segment in own for warning in changes.of_speed(segment.reading.steps)]
    return replace(
        first.reading,
        steps=steps,
        timestamp=own[0].reading.timestamp or first.reading.timestamp,
        complete=own[-1].reading.complete,
        ended_by=own[-1].reading.ended_by,
        warnings=[
            *_segment_warnings(found, [first, *(s for s in own if s is not first)], picked=picked),
            *speeds,
            *_warnings_of(own, timed),
        ],
        evidence=_evidence_of(in_order),
        segments=_facts_of(found, measured),
    )


def _warnings_of(measured: Sequence[Segment], timed: Sequence[Segment]) -> Iterator[str]:
    """Yield the warnings of the measured segments; one that does not hold for all of them names those of which it does.

    timed: segments with a time or a rate. Warnings about the steps of the others are left out, as none of them counts.
    """
    found: dict[Notice, list[int]] = {}
    for segment in measured:
        for notice in map(Notice.of, segment.reading.warnings):
            if not timed or segment in timed or notice.field != "steps":
                found.setdefault(notice, []).append(segment.number)
    for notice, numbers in found.items():
        if len(numbers) == len(measured) or not notice.field:
            yield notice
        else:
            yield notice.within(f"training{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}")


def _evidence_of(measured: Sequence[Segment]) -> Evidence:
    """Return the clocks of the only segment with rows; the clock of one segment does not time the rows of another."""
    with_rows = [segment for segment in measured if len(segment.reading.steps)]
    if len(with_rows) == 1:
        return with_rows[0].reading.evidence
    announced = {line: kind for segment in measured for line, kind in segment.reading.evidence.announced.items()}
    evaluated = (segment.reading.evidence.evaluated_after for segment in measured)
    elapsed = [segment.reading.evidence.elapsed for segment in with_rows]
    return Evidence(
        announced=announced, evaluated_after=frozenset[int]().union(*evaluated), elapsed=evidence.together(elapsed)
    )


def _facts_of(found: Sequence[Segment], measured: Sequence[Segment]) -> tuple[SegmentFacts, ...]:
    numbers = {segment.number for segment in measured}
    return tuple(
        SegmentFacts(
            number=segment.number,
            first_line=segment.first_line,
            last_line=segment.last_line,
            began_by=segment.began_by or None,
            steps=segment.steps,
            same_benchmark=segment.number in numbers,
            differs={name: str(other) for name, (_, other) in segments.differences(measured[0], segment).items()},
        )
        for segment in found
    )


def _segment_warnings(found: Sequence[Segment], measured: Sequence[Segment], *, picked: bool) -> Iterator[str]:
    """Yield warnings that name the segments that are not measured, and the settings that measured ones inherit."""
    numbers = {segment.number for segment in measured}
    others = [segment for segment in found if segment.number not in numbers]
    ours = "; ".join(_place(segment) for segment in sorted(measured, key=lambda segment: segment.number))
    if others and picked:
        yield Notice("training_picked", "segments", trainings=len(found), ours=ours)
    elif others:
        described = "; ".join(f"{_place(other)}, {_otherwise(measured[0], other)}" for other in others[:_MOST_NAMED])
        more = f"; and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        number, trainings = others[0].number, len(found)
        yield Notice(
            "training_chosen", "segments", trainings=trainings, ours=ours, described=described, more=more, number=number
        )
    if measured[0].alone:
        yield Notice("settings_not_inherited", "segments", number=measured[0].number)
    inheriting = [str(segment.number) for segment in measured if segment.inherits]
    if inheriting:
        yield Notice("settings_inherited", "segments", numbers=", ".join(inheriting))


def _place(segment: Segment) -> str:
    return f"number {segment.number} (lines {segment.first_line} to {segment.last_line}, {segment.steps} steps)"


def _otherwise(one: Segment, other: Segment) -> str:
    shared = [name for name in one.arguments if name in other.arguments]
    printed = {name: (one.arguments[name], other.arguments[name]) for name in shared}
    found = {name: values for name, values in printed.items() if values[0] != values[1]}
    found |= segments.differences(one, other)
    facts = [f"{name} {theirs} instead of {mine}" for name, (mine, theirs) in islice(found.items(), _MOST_NAMED)]
    return "with " + ", ".join(facts) if facts else "with the same settings"


def has_content(result: Result) -> bool:
    """Return True if the result contains a measured step time or a rate that the framework itself reported."""
    performance = result.performance_metrics
    rates = (performance.avg_step_time_seconds, performance.tokens_per_second, performance.tokens_per_second_per_gpu)
    samples = (performance.samples_per_second, performance.samples_per_second_per_gpu)
    return any(rate is not None for rate in (*rates, *samples))


def _reported_means(reported: Reported, config: TrainingConfig) -> PerformanceMetrics:
    """Return the means of the whole run that the log states, as figures; a log with rows gets computed ones instead."""
    means = PerformanceMetrics(
        avg_step_time_seconds=reported.step_time_seconds,
        tokens_per_second=reported.tokens_per_second,
        tokens_per_second_per_gpu=reported.tokens_per_second_per_gpu,
        samples_per_second=reported.samples_per_second,
        reported=reported,
    )
    return user_facts.with_rates(means, config)


def _runs(reading: Reading) -> tuple[Run, ...]:
    runs = distinct(reading.steps.column("run")) or [0]
    return tuple(
        Run(
            index=run,
            started_at=reading.timestamp,
            host=reading.host,
            **(reading.run_facts[number] if number < len(reading.run_facts) else {}),
            complete=reading.complete or run != runs[-1],
            ended_by=reading.ended_by if run == runs[-1] else None,
        )
        for number, run in enumerate(runs)
    )


def _source(log: Log, format: Format) -> Source:
    if log.called:  # standard input has neither a name nor a date
        return Source(file=log.called, format=format.name)
    modified = datetime.fromtimestamp(log.path.stat().st_mtime, timezone.utc)
    return Source(file=log.path.name, format=format.name, modified_at=modified.isoformat(timespec="seconds"))


def with_digest(result: Result, format: Format, hashing: Digest | None) -> Result:
    """Return the result with size and digest of the log in its sources; a result file keeps the sources that it states.

    Everything else is computed before, while a second thread still hashes a large log. Raises InputError for a log
    that cannot be read again.
    """
    if hashing is None or [one.format for one in result.provenance.sources] != [format.name]:
        return result
    sha256, size_bytes = hashing.done()
    hashed = result.provenance.sources[0].model_copy(update={"sha256": sha256, "size_bytes": size_bytes})
    return result.model_copy(update={"provenance": result.provenance.model_copy(update={"sources": (hashed,)})})


def audited(result: Result, name: str) -> Result:
    """Return the result with its audit; an unexplained contradiction is its first warning.

    name: of the log, for the error. Raises ContradictionError if a clock of the log contradicts the step times so much
    that no figure can be trusted.
    """
    selections = select_measured(result.steps, warmup_steps=result.training_config.warmup_steps)
    found = findings.findings(result, selections)
    if refused := verdict.refusals(found):
        raise ContradictionError(refused[0], path=name, remedy=UNTRUSTED)
    warnings = [Notice("audit", "audit", sentence=sentence) for sentence in verdict.contradictions(found)]
    notes = [unchecked] if not found and (unchecked := findings.unchecked(result)) else []
    return result.changed(
        audit=verdict.record(found, result), warnings=tuple(dict.fromkeys((*warnings, *result.warnings, *notes)))
    )
