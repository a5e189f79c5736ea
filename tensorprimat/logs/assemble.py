"""Assembly of a `Result`, with every figure, from the `Reading` of a log, and its audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from tensorprimat.audit import agreement, findings, reported, verdict
from tensorprimat.core import user_facts
from tensorprimat.core.errors import ContradictionError, InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import LOGS, Provenance, Source
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
from tensorprimat.core.steps import distinct
from tensorprimat.core.summary import select_measured, summarise
from tensorprimat.core.version import __version__
from tensorprimat.facts import catalogue, devices
from tensorprimat.logs import citations, clocks, failures, rounding, segments
from tensorprimat.logs.format import Format, Reading, UserFacts
from tensorprimat.logs.segments import Segment
from tensorprimat.logs.text import Log
from tensorprimat.system.digest import Digest

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
    reading = clocks.with_dates(log, segments.joined_segments(found, measured, picked=number is not None))
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
