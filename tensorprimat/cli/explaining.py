"""Figures of a result for a person: an overview, and one figure with its formula, its numbers and their lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from tensorprimat.core import audit, terms
from tensorprimat.core.errors import UsageError
from tensorprimat.core.records import (
    GpuInfo,
    MemoryMetrics,
    PerformanceMetrics,
    PowerMetrics,
    Reported,
    Result,
    TrainingConfig,
)
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import measured_of
from tensorprimat.core.terms import time_of
from tensorprimat.logs import FLAGS, STDIN, Log, citations, named
from tensorprimat.reports.safe_text import one_line

VENDORS = {"nvd": "NVIDIA", "amd": "AMD", "cpu": "CPU", None: "platform unknown"}


def overview(result: Result) -> list[tuple[str, str]]:
    """Label and text of what a person wants to see first; only what is known."""
    performance, config = result.performance_metrics, result.training_config
    reported = performance.reported
    count = f"{config.num_gpus} × " if config.num_gpus else ""
    rows = [("GPU", f"{count}{one_line(result.gpu_info.device_name or 'unknown device')} ({VENDORS[result.platform]})")]
    work = [
        f"{label} {one_line(value)}"
        for label, value in (
            ("model", result.model.name),
            ("global batch", config.global_batch_size),
            ("sequence", config.sequence_length),
            ("precision", config.precision),
        )
        if value is not None
    ]
    rows.append(("work", ", ".join(work) or "unknown"))
    if performance.avg_step_time_seconds is not None:
        deviation = f", CV {performance.cv_step_time:.1%}" if performance.cv_step_time is not None else ""
        rows.append(("step time", f"{performance.avg_step_time_seconds:.4g} s{deviation}{_counted(performance)}"))
    reason = audit.reason(result.audit)
    off_the_clock = f" ({reason})" if reason else ""
    for label, value in (
        ("tokens/s/GPU", performance.tokens_per_second_per_gpu),
        ("tokens/s", performance.tokens_per_second),
        ("samples/s", performance.samples_per_second),
    ):
        if value is not None:
            rows.append((label, _figure(value) + off_the_clock))
    memory = result.memory_metrics
    for label, peak in _peaks(memory) if memory else ():
        rows.append((label, f"{peak:.1f} GB peak"))
    said = [
        f"{_figure(value)} {unit}"
        for value, unit in (
            (reported.tokens_per_second_per_gpu, "tokens/s/GPU"),
            (reported.tokens_per_second, "tokens/s"),
            (reported.tflops_per_gpu, "TFLOP/s/GPU"),
        )
        if value is not None
    ]
    if said:
        rows.append(("reported", ", ".join(said)))
    return rows


def one_liner(result: Result) -> str:
    """The state of a growing log."""
    performance = result.performance_metrics
    last = result.steps[-1].index if len(result.steps) else 0
    parts = [f"step {last}"]
    if performance.avg_step_time_seconds is not None:
        parts.append(f"{performance.avg_step_time_seconds:.4g} s/step")
    if performance.tokens_per_second_per_gpu is not None:
        parts.append(f"{_figure(performance.tokens_per_second_per_gpu)} tokens/s/GPU")
    losses = [run.final_loss for run in result.runs if run.final_loss is not None]
    if losses:
        parts.append(f"loss {losses[-1]:.4g}")
    return " | ".join(parts)


def explain(result: Result, field: str, logs: Sequence[str] = ()) -> str:
    """How a figure came about: formula, numbers put in, lines they come from; or where a setting stands in the logs.

    Raises UsageError for no such figure or setting.
    """
    for name, record in _FACTS.items():
        if field in record.model_fields:
            return _explain_fact(result, name, field, logs)
    if field in ("loss", "final_loss"):
        return _explain_loss(result)
    if field in _MODEL:
        return _explain_fact(result, "model", field.removeprefix("model."), logs)
    section, key = _placed(field)
    if section is None:
        sections = {**_SECTIONS, **_FACTS}
        names = [name for record in sections.values() for name in record.model_fields if name != _REPORTED]
        near = get_close_matches(field, names, n=5, cutoff=0.4) or ["tokens_per_second_per_gpu", "global_batch_size"]
        raise UsageError(
            f"--explain {field}: no such figure or setting; known are the keys of a result's {', '.join(sections)}, "
            f"such as {', '.join(near)}"
        )
    values = result.performance_metrics.reported if section == _REPORTED else getattr(result, section)
    value = getattr(values, key) if values is not None else None
    if value is None:
        about = (field, section, "tokens_per") if field.startswith("tokens_per") else (field, section)
        reasons = [one_line(warning) for warning in result.warnings if warning.startswith(about)]
        reasons = reasons or ["no log holds it or what it is computed from"]
        return "\n".join([f"{field} is unknown", *(f"  {reason}" for reason in reasons)])
    shown = _figure(value) if isinstance(value, int | float) else str(value)
    lines = [f"{_REPORTED}.{key} = {shown}" if section == _REPORTED else f"{field} = {shown}"]
    measured = _Measured.of(result)
    formula = (_REPORTED_FORMULAS if section == _REPORTED else _FORMULAS).get(key)
    if formula is None or measured is None:
        lines.append(f"  {_SAID_ONCE}; there are no rows behind it")
    else:
        lines += [f"  = {line}" for line in formula(measured)]
        lines += [f"  {line}" for line in measured.origins()]
    return "\n".join(lines)


def _placed(field: str) -> tuple[str | None, str]:
    """Section and key of a figure; what the framework reported under a name of ours is `reported.NAME`."""
    if field.startswith(f"{_REPORTED}."):
        name = field.removeprefix(f"{_REPORTED}.")
        return (_REPORTED if name in Reported.model_fields else None), name
    sections = (name for name, record in _SECTIONS.items() if field in record.model_fields and field != _REPORTED)
    return next(sections, None), field


def _explain_fact(result: Result, record: str, field: str, logs: Sequence[str]) -> str:
    """A setting with its origin: the flag that said it, or the lines that state it."""
    value = getattr(getattr(result, record), field)
    if value is None or value == {}:
        flag = f"; {FLAGS[field]} would give it" if field in FLAGS else ""
        return f"{field} is unknown\n  no log states it{flag}"
    shown = [f"{field} = {one_line(str(value))}"]
    if origin := result.provenance.assumed.get(field):
        return "\n".join([*shown, f"  from {origin}, not from the log"])
    known = result.provenance.format
    for path in logs:
        if path != STDIN and known not in (None, "result"):
            found = citations.stating(Log(Path(path)), named(str(known)), result.provenance.segment, record, field)
            shown += [f"  {one_line(path)}:{line}: {one_line(text)}" for line, text in found]
    if len(shown) == 1:
        shown.append("  no line states it: it follows from other settings")
    return "\n".join(shown)


def _explain_loss(result: Result) -> str:
    measured = _Measured.of(result)
    value = next((run.final_loss for run in reversed(result.runs) if run.final_loss is not None), None)
    if value is None or measured is None:
        return "final_loss is unknown\n  no row of the log holds a loss"
    lines = [f"final_loss = {_figure(value)}", *(f"  = {line}" for line in _final_loss(measured))]
    return "\n".join([*lines, *(f"  {line}" for line in measured.origins())])


_MODEL = ("model.name", "model.parameters", "model.shape", "parameters", "shape")
_FACTS: dict[str, type[TrainingConfig] | type[GpuInfo]] = {"training_config": TrainingConfig, "gpu_info": GpuInfo}
_REPORTED = "reported"
_SECTIONS: dict[str, type[PerformanceMetrics] | type[MemoryMetrics] | type[PowerMetrics] | type[Reported]] = {
    "performance_metrics": PerformanceMetrics,
    "memory_metrics": MemoryMetrics,
    "power_metrics": PowerMetrics,
    _REPORTED: Reported,
}
_SAID_ONCE = "as the log states it for the whole run"


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A result with its measured rows."""

    result: Result
    steps: Steps
    rows: np.ndarray

    @classmethod
    def of(cls, result: Result) -> _Measured | None:
        if not len(result.steps):
            return None
        _, selections, measured = measured_of(result)
        rows = np.concatenate([selection.rows for selection in selections])
        return cls(result=result, steps=measured, rows=rows)

    @property
    def count(self) -> int:
        return int(self.steps.column("covers").sum())

    @property
    def seconds(self) -> float:
        return time_of(self.steps) or 0.0

    @property
    def timed_count(self) -> int:
        """Of the measured steps, those with a time."""
        return int(self.steps.column("covers")[np.isfinite(self.steps.column("seconds"))].sum())

    @property
    def timed_by(self) -> str | None:
        """The printed rate that the times of rows were made of; None where lines print times."""
        timer = self.result.provenance.timer
        return timer if timer in terms.RATES and self.steps.has(timer) else None

    def combined(self, name: str) -> list[str]:
        """How a printed rate of many rows became one figure."""
        term = terms.combined(self.steps, name)
        return [_SAID_ONCE] if term is None else [term.formula, term.put_in]

    def origins(self) -> list[str]:
        """Lines and flags that the numbers come from."""
        result, lines = self.result, []
        left_out = result.performance_metrics.warmup_steps_dropped or 0
        excluded = result.performance_metrics.excluded_steps or 0
        for position, source in enumerate(result.provenance.sources):
            of_source = self.steps.column("line")[self.steps.column("source") == position]
            where = f"{one_line(source.file)}: {_line_ranges(of_source[of_source > 0])}"
            lines.append(f"measured: {where}; {left_out} warm-up steps and {excluded} interrupted ones left out")
            if source.sha256:
                lines.append(f"file: {one_line(source.file)}, {source.size_bytes} bytes, SHA-256 {source.sha256}")
        for name, origin in result.provenance.assumed.items():
            value = getattr(result.training_config, name, None)
            lines.append(f"{name}{'' if value is None else f' {value}'}: from {origin}, not from the log")
        return lines


def _rate(name: str) -> Callable[[_Measured], list[str]]:
    def formula(measured: _Measured) -> list[str]:
        term = terms.rates(measured.result.training_config, measured.steps).get(name)
        if term is None:
            return [_SAID_ONCE]
        return [term.formula, term.put_in, *_made_of_rates(measured, term)]

    return formula


def _made_of_rates(measured: _Measured, term: terms.Term) -> list[str]:
    if measured.timed_by is None or "seconds" not in term.formula:
        return []
    return [f"seconds of a row: its work / {measured.timed_by}; no line prints a time"]


def _step_time(measured: _Measured) -> list[str]:
    term = terms.step_seconds(measured.result.training_config, measured.steps, measured.timed_by)
    return [_SAID_ONCE] if term is None else [term.formula, term.put_in]


def _over_times(symbols: str, pick: Callable[[np.ndarray], float] | None = None) -> Callable[[_Measured], list[str]]:
    def formula(measured: _Measured) -> list[str]:
        seconds = measured.steps.column("seconds")
        if pick is None or not np.isfinite(seconds).any():
            return [symbols, f"{measured.seconds:,.6g} s, {measured.timed_count} steps"]
        row = int(np.nanargmin(np.abs(seconds - pick(seconds[np.isfinite(seconds)]))))
        step = measured.steps[row]
        where = f"step {step.index}" + (f", line {step.line}" if step.line else "")
        made = terms.step_seconds(
            measured.result.training_config, measured.steps.take(slice(row, row + 1)), measured.timed_by
        )
        from_rate = [f"{made.formula}: {made.put_in}"] if made and measured.timed_by else []
        return [symbols, f"{step.seconds:.6g} s, {where}", *from_rate]

    return formula


def _over_all_rows(symbols: str, column: str | None = None) -> Callable[[_Measured], list[str]]:
    """column: only rows that hold it."""

    def formula(measured: _Measured) -> list[str]:
        steps = measured.result.steps
        counted = np.ones(len(steps), np.bool_) if column is None else np.isfinite(steps.column(column))
        lines = steps.column("line")[counted]
        return [symbols, f"{counted.sum()} of {len(steps)} rows, {_line_ranges(lines[lines > 0])}"]

    return formula


def _final_loss(measured: _Measured) -> list[str]:
    """The last loss that was printed, with its line."""
    steps = measured.result.steps
    known = np.flatnonzero(np.isfinite(steps.column("loss")))
    if not len(known):
        return [_SAID_ONCE]
    last = steps[int(known[-1])]
    where = f", line {last.line}" if last.line else ""
    return ["loss of the last row that has one, of all rows", f"{last.loss:.6g}, step {last.index}{where}"]


def _interrupted(measured: _Measured) -> list[str]:
    steps = measured.result.steps
    lines = steps.column("line")[steps.column("interrupted_by") != 0]
    return ["Σ steps covered, over the rows with a validation or a checkpoint inside", _line_ranges(lines[lines > 0])]


def _energy(measured: _Measured) -> list[str]:
    if measured.steps.has("energy_joules_per_gpu"):
        return ["Σ joules per step × steps covered, over the measured rows"]
    return ["mean power × seconds of the measured rows"]


def _printed(column: str) -> Callable[[_Measured], list[str]]:
    return lambda measured: measured.combined(column)


def _memory(kind: str, *, peak: bool) -> Callable[[_Measured], list[str]]:
    def formula(measured: _Measured) -> list[str]:
        steps = measured.result.steps if peak else measured.steps
        names = [name for name in steps.seen if name.startswith(f"memory_{kind}") and (peak or "peak" not in name)]
        if not names:
            return [_SAID_ONCE]
        if not peak:
            return [f"mean of {names[0]} over {len(steps)} measured rows / 10**9"]
        column = np.fmax.reduce([steps.column(name) for name in names])
        step = steps[int(np.nanargmax(column))]
        where = f", line {step.line}" if step.line else ""
        return [f"largest of {', '.join(names)} / 10**9", f"{np.nanmax(column):,.0f} bytes, step {step.index}{where}"]

    return formula


_BASES = {
    "step_times": "rates are work over measured step times",
    "reported_rates": "rates are the framework's own, row by row",
    "reported_means": "rates are the framework's own, once for the whole run",
    "": "no rate is known",
}
_FORMULAS: dict[str, Callable[[_Measured], list[str]]] = {
    "avg_step_time_seconds": _step_time,
    "median_step_time_seconds": _over_times("the middle step time of the measured rows", np.median),
    "min_step_time_seconds": _over_times("the shortest step time of the measured rows", np.min),
    "max_step_time_seconds": _over_times("the longest step time of the measured rows", np.max),
    "std_step_time_seconds": _over_times("standard deviation of the measured rows' step times (n − 1)"),
    "cv_step_time": _over_times("standard deviation / mean of the measured rows' step times"),
    "steps_per_second": _over_times("steps / Σ seconds, over the measured rows"),
    "measured_time_seconds": _over_times("Σ seconds × steps covered, over the measured rows"),
    "measured_steps": lambda measured: [
        "Σ steps covered, over the measured rows",
        f"{len(measured.rows)} rows, {measured.count} steps",
    ],
    "total_steps": _over_all_rows("Σ steps covered, over all rows"),
    "total_time_seconds": _over_all_rows("Σ seconds × steps covered, over all rows with a time", "seconds"),
    "warmup_steps_dropped": lambda _: ["Σ steps covered, over the rows before the measured ones"],
    "excluded_steps": _interrupted,
    "basis": lambda measured: [_BASES[measured.result.performance_metrics.basis or ""]],
    "tokens_per_second": _rate("tokens_per_second"),
    "tokens_per_second_per_gpu": _rate("tokens_per_second_per_gpu"),
    "samples_per_second": _rate("samples_per_second"),
    "samples_per_second_per_gpu": _rate("samples_per_second_per_gpu"),
    "avg_power_watts_per_gpu": _printed("power_watts_per_gpu"),
    "energy_joules_per_gpu": _energy,
    "tokens_per_step": lambda measured: [
        "Σ tokens / steps",
        f"{terms.total(measured.steps.column('tokens') * measured.steps.column('covers')) or 0:,.0f} tokens / "
        f"{measured.count} steps",
    ],
    **{
        f"{'peak' if peak else 'avg'}_memory_{kind}_gb": _memory(kind, peak=peak)
        for kind in ("allocated", "reserved", "device_used")
        for peak in (True, False)
    },
}


_REPORTED_FORMULAS: dict[str, Callable[[_Measured], list[str]]] = {
    name: _printed(f"reported_{name}")
    for name in ("tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second", "tflops_per_gpu", "mfu")
}


def _counted(performance: PerformanceMetrics) -> str:
    return (
        f", {performance.measured_steps} of {performance.total_steps} steps measured" if performance.total_steps else ""
    )


def _peaks(memory: MemoryMetrics) -> list[tuple[str, float]]:
    kinds = (
        ("allocated", memory.peak_memory_allocated_gb),
        ("reserved", memory.peak_memory_reserved_gb),
        ("device memory", memory.peak_memory_device_used_gb),
    )
    return [(label, peak) for label, peak in kinds if peak is not None]


def _figure(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def _line_ranges(lines: Sequence[int] | np.ndarray) -> str:
    """The lines of many rows in a few words."""
    numbers = sorted({int(line) for line in lines})
    if not numbers:
        return "no lines"
    if len(numbers) <= 5:
        return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    return f"{len(numbers)} lines from {numbers[0]} to {numbers[-1]}"
