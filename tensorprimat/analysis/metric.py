"""`Metric`, a derived figure that carries its formula and its inputs, or the reason why it cannot be known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Input:
    """One thing that a figure rests on."""

    name: str
    value: float | str | None
    unit: str = ""
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
class Definition:
    """The definition of a metric: title, unit and formula."""

    title: str
    unit: str
    """Unit of the value in JSON; reports choose the unit that they show."""
    formula: str
    section: str | None = None
    """Section of the reports that shows it; None for a figure about a budget or a pair of sides."""
    is_stated: bool = False
    """`formula` names the origin of the value, which is not computed."""


_TABLE: dict[str | None, tuple[tuple[str, str, str, str], ...]] = {
    "Efficiency": (
        ("tokens_per_second_per_gpu", "tokens/s/GPU", "tokens/s", "Σ tokens / Σ seconds / GPUs"),
        ("flops_per_token", "FLOPs per token", "FLOP", "forward and backward, by the convention"),
        ("model_tflops_per_gpu", "model TFLOP/s per GPU", "TFLOP/s", "tokens/s/GPU × FLOPs per token"),
        ("mfu", "MFU", "fraction", "tokens/s/GPU × FLOPs per token / dense peak"),
        ("mfu_at_clock", "MFU at the mean clock", "fraction", "MFU × clock of the peak / mean clock"),
        ("hfu", "HFU", "fraction", "MFU with the FLOPs of recomputed activations"),
        (
            "achievable_fraction",
            "share of best matrix rate",
            "fraction",
            "model TFLOP/s per GPU / best measured matrix rate",
        ),
        (
            "reported_tflops_per_gpu_restated",
            "reported TFLOP/s, restated",
            "TFLOP/s",
            "reported TFLOP/s per GPU × FLOPs per token by the convention / FLOPs per token by the framework's "
            "convention",
        ),
    ),
    "Memory": (
        ("memory_utilization", "memory utilisation", "fraction", "peak memory / device memory"),
        ("memory_headroom_gb", "memory head-room", "GB", "device memory - peak memory"),
        (
            "largest_micro_batch_size",
            "largest micro batch (estimate)",
            "sequences",
            "(95 % of device memory - fixed state) / ((peak memory - fixed state) / micro batch size)",
        ),
    ),
    "Energy, cost and time": (
        ("power_watts_per_gpu", "power per GPU", "W", "as measured, or nameplate"),
        ("joules_per_token", "energy per token", "J", "power per GPU / tokens/s/GPU"),
        ("joules_per_step", "energy per step", "J", "energy per token × tokens of a step"),
        ("tokens_per_watt_hour", "tokens per watt-hour", "tokens/Wh", "tokens/s/GPU × 3600 / power per GPU"),
        ("sampled_joules_per_token", "energy per token, sampled", "J", "sampled power / tokens/s/GPU"),
        ("sampled_joules_per_step", "energy per step, sampled", "J", "sampled energy per token × tokens of a step"),
        ("sampled_tokens_per_watt_hour", "tokens/Wh, sampled", "tokens/Wh", "tokens/s/GPU × 3600 / sampled power"),
        ("model_tflops_per_watt", "model TFLOP/s per watt", "TFLOP/s/W", "model TFLOP/s per GPU / power per GPU"),
        ("price_usd_per_gpu_hour", "price", "USD/h", "as stated"),
        ("cost_usd_per_trillion_tokens", "cost of 1 T tokens", "USD", "10¹² / (tokens/s/GPU × 3600) × price"),
        ("tokens_per_dollar", "tokens per dollar", "tokens/USD", "tokens/s/GPU × 3600 / price"),
        ("time_to_1t_tokens_seconds", "time to 1 T tokens", "s", "10¹² / tokens/s over all GPUs"),
        ("time_to_15t_tokens_seconds", "time to 15 T tokens", "s", "15·10¹² / tokens/s over all GPUs"),
    ),
    None: (
        ("budget_gpu_hours", "GPU-hours for the budget", "h", "budget / tokens/s/GPU / 3600"),
        ("budget_seconds", "time for the budget", "s", "budget / tokens/s over all GPUs"),
        ("budget_energy_kwh", "energy for the budget", "kWh", "budget × energy per token"),
        ("budget_cost_usd", "cost of the budget", "USD", "GPU-hours for the budget × price"),
        (
            "break_even_price_usd_per_gpu_hour",
            "break-even price",
            "USD/h",
            "baseline price × tokens/s/GPU / baseline tokens/s/GPU",
        ),
        ("budget_saving_usd", "saving on the budget", "USD", "cost of the budget on the baseline - cost of the budget"),
    ),
}
_STATED = ("power_watts_per_gpu", "price_usd_per_gpu_hour")
DEFINITIONS: dict[str, Definition] = {
    name: Definition(title=title, unit=unit, formula=formula, section=section, is_stated=name in _STATED)
    for section, rows in _TABLE.items()
    for name, title, unit, formula in rows
}
"""Every metric by name."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A derived figure with everything that it rests on."""

    name: str
    value: float | None
    inputs: tuple[Input, ...]
    reasons: tuple[str, ...] = ()
    """Reasons for a value of None, one per missing input."""
    remark: str | None = None
    """Remark shown with the value: nameplate, estimate, advice."""
    own_formula: str | None = None
    """Formula of this value if it can differ from result to result; None if it is that of the definition."""
    origin: str | None = None
    """Origin of a value that a file states, which takes the place of its formula."""

    @property
    def formula(self) -> str:
        """Return the formula of this value, or the origin of a stated one."""
        return self.origin or self.own_formula or self.definition.formula

    @property
    def is_stated(self) -> bool:
        """Return True if the value is not computed; `formula` then names its origin."""
        return self.origin is not None or (self.own_formula is None and self.definition.is_stated)

    @property
    def because(self) -> str | None:
        """Return the reason why value is None."""
        return "; ".join(self.reasons) or None

    @property
    def definition(self) -> Definition:
        return DEFINITIONS[self.name]

    def as_input(self) -> Input:
        """Return this figure as an input of another."""
        definition = self.definition
        return Input(
            name=definition.title,
            value=self.value,
            unit=definition.unit,
            source=self.remark or self.formula,
            because=self.because,
            root_reasons=self.reasons,
        )


def derive(name: str, inputs: tuple[Input, ...], compute: Callable[..., float], *, remark: str | None = None) -> Metric:
    """Return a metric from its inputs: `compute` gets the values of those that are numbers, in their order.

    Where an input is None so is the metric, with every reason; also where the result is not a finite number.
    """
    reasons = tuple(dict.fromkeys(reason for i in inputs if i.value is None for reason in i.reasons))
    if reasons:
        return Metric(name=name, value=None, inputs=inputs, reasons=reasons)
    try:
        value = float(compute(*(i.value for i in inputs if not isinstance(i.value, str))))
    except (ZeroDivisionError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        return Metric(name=name, value=None, inputs=inputs, reasons=("its inputs give no finite number",))
    return Metric(name=name, value=value, inputs=inputs, remark=remark)


def unknown(name: str, because: str, inputs: tuple[Input, ...] = ()) -> Metric:
    """Return a metric that cannot be known, with the reason."""
    return Metric(name=name, value=None, inputs=inputs, reasons=(because,))
