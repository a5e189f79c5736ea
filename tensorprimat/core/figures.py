"""Every figure of a result: a row that declares it, and `Figure`, a value with everything that it rests on.

Tables, plots, JSON, `--explain` and messages take from the row title, unit, digits, better direction, section and
formula. `core/terms` computes the figures of steps, `analysis/metrics` the derived ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from tensorprimat.core import quantities
from tensorprimat.core.quantities import Form, count, gigabytes, long_time, money, percent, rate, with_prefix, with_unit
from tensorprimat.core.result import MEMORY_KINDS

Better = Literal["higher", "lower"]
MEASURED_ROWS, ALL_ROWS = "mean over the measured steps", "highest of all logged steps, maximum over ranks"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Description of one figure, the same wherever it is shown."""

    name: str
    title: str
    unit: str
    """Unit of the value in JSON; reports choose the unit that they show."""
    form: Form
    """Function that writes it with its digits and its unit."""
    formula: str = ""
    """Formula in symbols of a derived figure; for one of steps, over which of them it is, "" for the measured ones."""
    better: Better | None = None
    """Better direction; None if neither is better in general."""
    section: str | None = None
    """Section of the result or of the reports that holds it; None for a figure about a budget or a pair of sides."""


def _rows(section: str | None, rows: Iterable[tuple[object, ...]]) -> dict[str, Definition]:
    names = ("name", "title", "unit", "form", "formula", "better")
    found = (dict(zip(names, row, strict=False)) for row in rows)
    return {str(one["name"]): Definition(**one, section=section) for one in found}  # type: ignore[arg-type]


_STATED = ("power_watts_per_gpu", "price_usd_per_gpu_hour")
"""Figures whose formula names the origin of the value, which is not computed."""


STEP_FIGURES: dict[str, dict[str, Definition]] = {
    "performance_metrics": _rows("performance_metrics", (
        ("total_steps", "Steps logged", "steps", count),
        ("warmup_steps_dropped", "Warm-up steps left out", "steps", count),
        ("excluded_steps", "Steps with validation or checkpoint left out", "steps", count),
        ("measured_steps", "Steps measured", "steps", count),
        ("measured_time_seconds", "Time measured", "s", quantities.seconds),
        ("avg_step_time_seconds", "Step time, mean", "s", quantities.seconds, "", "lower"),
        ("median_step_time_seconds", "Step time, median", "s", quantities.seconds, "", "lower"),
        ("min_step_time_seconds", "Step time, minimum", "s", quantities.seconds, "", "lower"),
        ("max_step_time_seconds", "Step time, maximum", "s", quantities.seconds, "", "lower"),
        ("std_step_time_seconds", "Step time, standard deviation", "s", quantities.seconds, "", "lower"),
        ("cv_step_time", "Step time, CV", "fraction", percent, "", "lower"),
        ("steps_per_second", "steps/s", "steps/s", rate, "", "higher"),
        ("samples_per_second", "samples/s", "samples/s", rate, "", "higher"),
        ("tokens_per_second", "tokens/s", "tokens/s", rate, "", "higher"),
        ("tokens_per_second_per_gpu", "tokens/s/GPU", "tokens/s/GPU", rate, "", "higher"),
    )),
    "reported": _rows("reported", (
        ("tokens_per_second_per_gpu", "tokens/s/GPU, as reported", "tokens/s/GPU", rate, "", "higher"),
        ("tflops_per_gpu", "TFLOP/s/GPU, as reported", "TFLOP/s", rate, "", "higher"),
        ("mfu", "MFU, as reported", "fraction", percent, "", "higher"),
    )),
    "memory_metrics": _rows("memory_metrics", (
        (f"{statistic}_{kind}_gb", f"{word} {title}", "GB", gigabytes, of)
        for kind, title in MEMORY_KINDS.items()
        for statistic, word, of in (("avg", "Average", MEASURED_ROWS), ("peak", "Peak", ALL_ROWS))
    )),
    "power_metrics": _rows("power_metrics", (
        (
            "avg_power_watts_per_gpu", "Power of one GPU", "W", quantities.watts,
            "energy over time of the measured steps",
        ),
        ("energy_joules_per_gpu", "Energy of one GPU", "J", quantities.joules, "over the measured steps"),
        (
            "sampled_energy_joules_per_gpu", "Energy of one GPU, from samples", "J", quantities.joules,
            "sampled power over the measured steps, in addition to the device's own counter",
        ),
        ("avg_clock_hertz", "Clock, mean", "Hz", quantities.gigahertz, "of the compute units over the measured steps"),
        (
            "avg_temperature_celsius", "Temperature, mean", "°C", quantities.celsius,
            "hottest GPU over the measured steps",
        ),
        (
            "max_temperature_celsius", "Temperature, maximum", "°C", quantities.celsius,
            "hottest GPU, hottest measured step",
        ),
        ("throttled_seconds", "Time at a limit", "s", quantities.seconds, "measured time with a reduced clock"),
        (
            "slowdown_seconds", "Time at another limit than the power cap", "s", quantities.seconds,
            "of the measured time",
        ),
    )),
}  # fmt: skip
"""Figures of the measured steps: section of the result → field → row."""

DERIVED_FIGURES: dict[str, Definition] = {
    **_rows("Efficiency", (
        ("tokens_per_second_per_gpu", "tokens/s/GPU", "tokens/s", rate, "Σ tokens / Σ seconds / GPUs", "higher"),
        ("flops_per_token", "FLOPs per token", "FLOP", with_prefix("FLOP"), "forward and backward, by the convention"),
        ("model_tflops_per_gpu", "model TFLOP/s per GPU", "TFLOP/s", rate, "tokens/s/GPU × FLOPs per token", "higher"),
        ("mfu", "MFU", "fraction", percent, "tokens/s/GPU × FLOPs per token / dense peak", "higher"),
        ("mfu_at_clock", "MFU at the mean clock", "fraction", percent, "MFU × clock of the peak / mean clock"),
        ("hfu", "HFU", "fraction", percent, "MFU with the FLOPs of recomputed activations"),
        (
            "achievable_fraction", "share of best matrix rate", "fraction", percent,
            "model TFLOP/s per GPU / best measured matrix rate",
        ),
        (
            "reported_tflops_per_gpu_restated", "reported TFLOP/s, restated", "TFLOP/s", rate,
            "reported TFLOP/s per GPU × FLOPs per token by the convention / FLOPs per token by the framework's "
            "convention",
        ),
    )),
    **_rows("Memory", (
        ("memory_utilization", "memory utilisation", "fraction", percent, "peak memory / device memory"),
        ("memory_headroom_gb", "memory head-room", "GB", gigabytes, "device memory - peak memory"),
        (
            "largest_micro_batch_size", "largest micro batch (estimate)", "sequences", count,
            "(95 % of device memory - fixed state) / ((peak memory - fixed state) / micro batch size)",
        ),
    )),
    **_rows("Energy, cost and time", (
        ("power_watts_per_gpu", "power per GPU", "W", with_unit(" W"), "as measured, or nameplate"),
        ("joules_per_token", "energy per token", "J", with_prefix("J"), "power per GPU / tokens/s/GPU"),
        ("joules_per_step", "energy per step", "J", with_prefix("J"), "energy per token × tokens of a step"),
        (
            "tokens_per_watt_hour", "tokens per watt-hour", "tokens/Wh", rate, "tokens/s/GPU × 3600 / power per GPU",
            "higher",
        ),
        (
            "sampled_joules_per_token", "energy per token, sampled", "J", with_prefix("J"),
            "sampled power / tokens/s/GPU",
        ),
        (
            "sampled_joules_per_step", "energy per step, sampled", "J", with_prefix("J"),
            "sampled energy per token × tokens of a step",
        ),
        (
            "sampled_tokens_per_watt_hour", "tokens/Wh, sampled", "tokens/Wh", rate,
            "tokens/s/GPU × 3600 / sampled power",
        ),
        ("model_tflops_per_watt", "model TFLOP/s per watt", "TFLOP/s/W", rate, "model TFLOP/s per GPU / power per GPU"),
        ("price_usd_per_gpu_hour", "price", "USD/h", with_unit("/h", money), "as stated"),
        (
            "cost_usd_per_trillion_tokens", "cost of 1 T tokens", "USD", money,
            "10¹² / (tokens/s/GPU × 3600) × price", "lower",
        ),
        ("tokens_per_dollar", "tokens per dollar", "tokens/USD", with_prefix("tokens"), "tokens/s/GPU × 3600 / price"),
        ("time_to_1t_tokens_seconds", "time to 1 T tokens", "s", long_time, "10¹² / tokens/s over all GPUs", "lower"),
        ("time_to_15t_tokens_seconds", "time to 15 T tokens", "s", long_time, "15·10¹² / tokens/s over all GPUs"),
    )),
    **_rows(None, (
        ("budget_gpu_hours", "GPU-hours for the budget", "h", rate, "budget / tokens/s/GPU / 3600"),
        ("budget_seconds", "time for the budget", "s", long_time, "budget / tokens/s over all GPUs"),
        ("budget_energy_kwh", "energy for the budget", "kWh", with_unit(" kWh"), "budget × energy per token"),
        ("budget_cost_usd", "cost of the budget", "USD", money, "GPU-hours for the budget × price"),
        (
            "break_even_price_usd_per_gpu_hour", "break-even price", "USD/h", with_unit("/h", money),
            "baseline price × tokens/s/GPU / baseline tokens/s/GPU",
        ),
        (
            "budget_saving_usd", "saving on the budget", "USD", money,
            "cost of the budget on the baseline - cost of the budget",
        ),
    )),
}  # fmt: skip
"""Every derived figure by name."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One thing that a figure rests on, under the name that it has in the formula."""

    name: str
    value: float | str | None
    unit: str = ""
    in_formula: bool = True
    """False for a number that makes up another one of the formula."""
    source: str | None = None
    """Origin of the value: "measured over 20 steps", a data sheet, a flag."""
    because: str | None = None
    """Reason for None."""
    root_reasons: tuple[str, ...] = ()
    """Reasons for its missing inputs, one by one, if the value is itself derived."""
    stated_for: str | None = None
    """Device for which the user stated the value, "" for every one; None for a value of another origin."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons why the value is None, one per missing input."""
        return self.root_reasons or (self.because or f"{self.name} is not known",)


def missing(name: str, because: str, *, unit: str = "") -> Input:
    """Return an input without a value, with the reason."""
    return Input(name=name, value=None, unit=unit, because=because)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure with everything that it rests on, or the reason why it cannot be known."""

    name: str = ""
    """Its name in STEP_FIGURES or DERIVED_FIGURES."""
    value: float | None
    inputs: tuple[Input, ...] = ()
    """Numbers that give the value: those of the formula by name, then those that make them up."""
    reasons: tuple[str, ...] = ()
    """Reasons for a value of None, one per missing input."""
    remark: str | None = None
    """Remark shown with the value: nameplate, estimate, advice."""
    own_formula: str | None = None
    """Formula of this value if it can differ from result to result; None if it is that of the definition. The part
    after the last colon, up to a comma or semicolon, is the arithmetic."""
    put_in: str | None = None
    """The formula with its numbers."""
    made: str | None = None
    """Origin of step times that no line prints."""
    origin: str | None = None
    """Description of where the value comes from; it takes the place of the formula of a value that a file states."""

    @property
    def formula(self) -> str:
        """Return the formula of this value, or the origin of a stated one."""
        return self.own_formula or self.origin or self.definition.formula

    @property
    def is_stated(self) -> bool:
        """Return True if the value is not computed; `formula` then names its origin."""
        return self.own_formula is None and (self.origin is not None or self.name in _STATED)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the formula, the formula with its numbers, and the origin of computed step times; or the origin."""
        if self.is_stated:
            return (self.formula,)
        return tuple(f"= {line}" for line in (self.formula, self.put_in, self.made) if line)

    @property
    def because(self) -> str | None:
        """Return the reason why value is None."""
        return "; ".join(self.reasons) or None

    @property
    def definition(self) -> Definition:
        return DERIVED_FIGURES[self.name]

    def as_input(self) -> Input:
        """Return this figure as an input of another."""
        return Input(
            name=self.definition.title,
            value=self.value,
            unit=self.definition.unit,
            source=self.remark or self.formula,
            because=self.because,
            root_reasons=self.reasons,
        )


def derive(name: str, inputs: tuple[Input, ...], compute: Callable[..., float], *, remark: str | None = None) -> Figure:
    """Return a derived figure: `compute` gets the values of those inputs that are numbers, in their order.

    Where an input is None so is the figure, with every reason; also where the result is not a finite number.
    """
    reasons = tuple(dict.fromkeys(reason for i in inputs if i.value is None for reason in i.reasons))
    if reasons:
        return Figure(name=name, value=None, inputs=inputs, reasons=reasons)
    try:
        value = float(compute(*(i.value for i in inputs if not isinstance(i.value, str))))
    except (ZeroDivisionError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        return unknown(name, "its inputs give no finite number", inputs)
    return Figure(name=name, value=value, inputs=inputs, remark=remark)


def unknown(name: str, because: str, inputs: tuple[Input, ...] = ()) -> Figure:
    """Return a figure that cannot be known, with the reason."""
    return Figure(name=name, value=None, inputs=inputs, reasons=(because,))
