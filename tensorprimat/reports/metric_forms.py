"""Digits and units of derived figures: one form for each metric, by its name."""

from __future__ import annotations

from tensorprimat.core.units import SECONDS_PER_HOUR
from tensorprimat.reports import formatting


def duration(value: float | None) -> str:
    """Return a long time.

    >>> [duration(v) for v in (1800.0, 90_000.0, 8_640_000.0, 9.5e7)]
    ['0.50 hours', '25 hours', '100 days', '3.0 years']
    """
    if value is None:
        return formatting.UNMEASURED
    hours = value / SECONDS_PER_HOUR
    if hours < 10:
        return f"{hours:.2f} hours"
    if hours < 72:
        return f"{hours:.0f} hours"
    days = hours / 24
    return f"{days:,.0f} days" if days < 1000 else f"{days / 365.25:,.1f} years"


def money(value: float | None) -> str:
    """Return USD.

    >>> [money(v) for v in (2.1, 123456.7, -20.0)]
    ['$2.10', '$123,457', '-$20.00']
    """
    if value is None:
        return formatting.UNMEASURED
    sign, amount = "-" if value < 0 else "", abs(value)
    return f"{sign}${amount:,.2f}" if amount < 1000 else f"{sign}${amount:,.0f}"


def with_prefix(unit: str) -> formatting.Form:
    """Return figures with T, G, M, k or m before the unit.

    >>> with_prefix("FLOP")(51_470_401_536.0), with_prefix("tokens")(2500.0), with_prefix("J")(0.04968)
    ('51.47 GFLOP', '2.5 ktokens', '49.68 mJ')
    """

    def form(value: float | None) -> str:
        if value is None:
            return formatting.UNMEASURED
        for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
            if value >= size:
                return f"{value / size:.4g} {prefix}{unit}"
        return f"{1000 * value:.4g} m{unit}"

    return form


def _unit(unit: str, form: formatting.Form = formatting.rate) -> formatting.Form:
    return lambda value: formatting.UNMEASURED if value is None else f"{form(value)} {unit}"


FORMS: dict[str, formatting.Form] = {
    "tokens_per_second_per_gpu": formatting.rate,
    "flops_per_token": with_prefix("FLOP"),
    "model_tflops_per_gpu": formatting.rate,
    "mfu": formatting.percent,
    "hfu": formatting.percent,
    "achievable_fraction": formatting.percent,
    "reported_tflops_per_gpu_restated": formatting.rate,
    "memory_utilization": formatting.percent,
    "memory_headroom_gb": formatting.gigabytes,
    "largest_micro_batch_size": formatting.count,
    "power_watts_per_gpu": _unit("W"),
    "joules_per_token": with_prefix("J"),
    "tokens_per_watt_hour": formatting.rate,
    "price_usd_per_gpu_hour": lambda value: formatting.UNMEASURED if value is None else f"{money(value)}/h",
    "cost_usd_per_trillion_tokens": money,
    "tokens_per_dollar": with_prefix("tokens"),
    "time_to_1t_tokens_seconds": duration,
    "time_to_15t_tokens_seconds": duration,
    "budget_gpu_hours": formatting.count,
    "budget_seconds": duration,
    "budget_energy_kwh": _unit("kWh"),
    "budget_cost_usd": money,
    "budget_saving_usd": money,
    "break_even_price_usd_per_gpu_hour": lambda value: formatting.UNMEASURED if value is None else f"{money(value)}/h",
}
