"""`Metric`, a derived figure that carries its formula and its inputs, or the reason why it cannot be known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tensorprimat.core.figures import DERIVED_FIGURES, Definition


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
        return DERIVED_FIGURES[self.name]

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
