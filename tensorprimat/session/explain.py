"""Figures of a result as text: an overview, or one figure with its formula, its numbers and their log lines."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from tensorprimat.analysis.explanations import FROM_FILE, REPORTED, SECTIONS, explained, origins, phrase
from tensorprimat.audit import verdict
from tensorprimat.core import quantities
from tensorprimat.core.errors import UsageError
from tensorprimat.core.figures import Figure
from tensorprimat.core.result import MEMORY_KINDS, VENDORS, GpuInfo, MemoryMetrics, Reported, Result, TrainingConfig
from tensorprimat.core.settings import FACT_FLAGS
from tensorprimat.logs import STDIN, Log, citations, format_named
from tensorprimat.system.safe_text import one_line

_PLATFORM_TITLES = {"nvd": VENDORS["nvd"], "amd": VENDORS["amd"], "cpu": "CPU", None: "platform unknown"}


def overview(result: Result) -> list[tuple[str, str]]:
    """Return label and text of the most important facts of a result; unknown facts are left out."""
    performance, config = result.performance_metrics, result.training_config
    reported = performance.reported
    count = f"{config.num_gpus} × " if config.num_gpus else ""
    name, platform = result.gpu_info.device_name, _PLATFORM_TITLES[result.platform]
    advice = "" if name or result.platform == "cpu" else "; MFU and cost need --gpu NAME"
    rows = [("GPU", f"{count}{one_line(name or 'unknown device')} ({platform}){advice}")]
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
        parts = [quantities.seconds(performance.avg_step_time_seconds)]
        if performance.cv_step_time is not None:
            parts.append(f"CV {quantities.percent(performance.cv_step_time)}")
        if performance.basis == "reported_means":
            parts.append("mean over the whole run")
        elif performance.total_steps and performance.measured_steps is not None:
            measured, every = map(quantities.count, (performance.measured_steps, performance.total_steps))
            number = len(result.steps)
            in_rows = f", logged in {quantities.counted(number, 'row')}" if 0 < number < performance.total_steps else ""
            parts.append(f"{measured} of {every} steps measured{in_rows}")
        rows.append(("step time", ", ".join(parts)))
    reason = verdict.gap_reason(result.audit)
    off_the_clock = f" ({reason})" if reason else ""
    for label, value in (
        ("tokens/s/GPU", performance.tokens_per_second_per_gpu),
        ("tokens/s", performance.tokens_per_second),
        ("samples/s", performance.samples_per_second),
    ):
        if value is not None:
            rows.append((label, quantities.digits_of(value) + off_the_clock))
    for kind, peak in (result.memory_metrics or MemoryMetrics()).peaks().items():
        label = "device memory" if kind == "memory_device_used" else MEMORY_KINDS[kind]
        rows.append((label, f"{quantities.gigabytes(peak)} peak"))
    figures = [
        f"{quantities.digits_of(value)} {unit}"
        for value, unit in (
            (reported.tokens_per_second_per_gpu, "tokens/s/GPU"),
            (reported.tokens_per_second, "tokens/s"),
            (reported.tflops_per_gpu, "TFLOP/s/GPU"),
        )
        if value is not None
    ]
    if figures:
        rows.append(("reported", ", ".join(figures)))
    return rows


def one_liner(result: Result) -> str:
    """Return the last step, step time, rate and loss of a growing log, as one line."""
    performance = result.performance_metrics
    steps = result.steps
    parts = [f"step {steps[-1].index}" if "index" in steps.seen else quantities.counted(len(steps), "row")]
    if performance.avg_step_time_seconds is not None:
        parts.append(f"{quantities.seconds(performance.avg_step_time_seconds)}/step")
    if performance.tokens_per_second_per_gpu is not None:
        parts.append(f"{quantities.digits_of(performance.tokens_per_second_per_gpu)} tokens/s/GPU")
    losses = [run.final_loss for run in result.runs if run.final_loss is not None]
    if losses:
        parts.append(f"loss {quantities.loss(losses[-1])}")
    return " | ".join(parts)


def explain(result: Result, field: str, logs: Sequence[str] = ()) -> str:
    """Return the formula, numbers and log lines of a figure; for a setting, the lines or the flag that state it.

    Raises UsageError for an unknown figure or setting.
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
        sections = {**SECTIONS, **_FACTS}
        names = [name for record in sections.values() for name in record.model_fields if name != REPORTED]
        near = get_close_matches(field, names, n=5, cutoff=0.4) or ["tokens_per_second_per_gpu", "global_batch_size"]
        raise UsageError(
            f"--explain {field}: no such figure or setting; name a key of a result's {', '.join(sections)}, "
            f"such as {', '.join(near)}"
        )
    values = result.performance_metrics.reported if section == REPORTED else getattr(result, section)
    value = getattr(values, key) if values is not None else None
    if value is None:
        about = {field, section, *(_TOKENS if field in _TOKENS else ())}
        reasons = [one_line(notice) for notice in result.remarks if notice.field in about]
        reasons = reasons or ["neither it nor the values to compute it are recorded"]
        return "\n".join([f"{field} is unknown", *(f"  {reason}" for reason in reasons)])
    shown = quantities.digits_of(value) if isinstance(value, int | float) else str(value)
    lines = [f"{REPORTED}.{key} = {shown}" if section == REPORTED else f"{field} = {shown}"]
    if key == "basis":
        lines.append(f"  = {_BASES[str(value)]}")
    elif (found := explained(result).get(section, {}).get(key)) is None:
        lines.append(f"  {FROM_FILE}")
    else:
        lines += _shown(result, found)
    return "\n".join(lines)


_TOKENS = ("tokens_per_step", "tokens_per_second", "tokens_per_second_per_gpu")


def _placed(field: str) -> tuple[str | None, str]:
    """Return section and key of a figure, None as section if there is no such figure.

    `reported.NAME` is the value that the framework printed.
    """
    if field.startswith(f"{REPORTED}."):
        name = field.removeprefix(f"{REPORTED}.")
        return (REPORTED if name in Reported.model_fields else None), name
    sections = (name for name, record in SECTIONS.items() if field in record.model_fields and field != REPORTED)
    return next(sections, None), field


def _explain_fact(result: Result, record: str, field: str, logs: Sequence[str]) -> str:
    """Return a setting with its origin: the flag that set it, or the lines that state it."""
    value, is_live = getattr(getattr(result, record), field), result.provenance.timing == "measured"
    key = f"model.{field}" if record == "model" else field
    if value is None or value == {}:
        flag = f"; {_FLAGS[key]} states it" if key in _FLAGS else ""
        why = "the training process did not record it" if is_live else f"no log states it{flag}"
        return f"{key} is unknown\n  {why}"
    shown = [f"{key} = {one_line(str(value))}"]
    if origin := result.provenance.assumed.get(key):
        return "\n".join([*shown, f"  {phrase(origin)}"])
    known = result.provenance.format
    for path in logs:
        if path != STDIN and known not in (None, "result"):
            found = citations.stating(
                Log(Path(path)), format_named(str(known)), result.provenance.segment, record, field
            )
            shown += [f"  {one_line(path)}:{line}: {one_line(text)}" for line, text in found]
    cited = result.provenance.citations.get(key)
    if len(shown) == 1 and cited:
        shown.append(f"  {one_line(cited)}")
    if len(shown) == 1:
        follows = "the training process recorded it" if is_live else "no line states it; it follows from other settings"
        shown.append(f"  {follows}")
    return "\n".join(shown)


def _explain_loss(result: Result) -> str:
    loss = explained(result).get("runs", {}).get("final_loss")
    if loss is None or loss.value is None:
        return "final_loss is unknown\n  no step has a loss"
    return "\n".join([f"final_loss = {quantities.digits_of(loss.value)}", *_shown(result, loss)])


def _shown(result: Result, figure: Figure) -> list[str]:
    """Return lines with a figure's formula and numbers and, if steps support it, their log lines and files."""
    return [f"  {line}" for line in (*figure.lines, *(origins(result) if figure.own_formula else ()))]


_FLAGS = {**FACT_FLAGS, "device_name": "--gpu", "model.name": "--model-name", "model.shape": "--shape"}
"""Setting → flag that states it for a log."""
_MODEL = ("model.name", "model.parameters", "model.shape", "parameters", "shape")
_FACTS: dict[str, type[TrainingConfig] | type[GpuInfo]] = {"training_config": TrainingConfig, "gpu_info": GpuInfo}
_BASES = {
    "step_times": "rates are work over measured step times",
    "reported_rates": "rates are the framework's own, row by row",
    "reported_means": "rates are the framework's own, once for the whole run",
}
