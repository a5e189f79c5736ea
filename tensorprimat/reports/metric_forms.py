"""Digits and units of derived figures: one form for each metric, by its name."""

from __future__ import annotations

from tensorprimat.core import quantities
from tensorprimat.core.quantities import long_time, money, with_prefix


def _with(unit: str, form: quantities.Form = quantities.rate) -> quantities.Form:
    return lambda value: quantities.UNMEASURED if value is None else f"{form(value)}{unit}"


FORMS: dict[str, quantities.Form] = {
    "tokens_per_second_per_gpu": quantities.rate,
    "flops_per_token": with_prefix("FLOP"),
    "model_tflops_per_gpu": quantities.rate,
    "mfu": quantities.percent,
    "mfu_at_clock": quantities.percent,
    "hfu": quantities.percent,
    "achievable_fraction": quantities.percent,
    "reported_tflops_per_gpu_restated": quantities.rate,
    "memory_utilization": quantities.percent,
    "memory_headroom_gb": quantities.gigabytes,
    "largest_micro_batch_size": quantities.count,
    "power_watts_per_gpu": _with(" W"),
    "joules_per_token": with_prefix("J"),
    "joules_per_step": with_prefix("J"),
    "tokens_per_watt_hour": quantities.rate,
    "sampled_joules_per_token": with_prefix("J"),
    "sampled_joules_per_step": with_prefix("J"),
    "sampled_tokens_per_watt_hour": quantities.rate,
    "model_tflops_per_watt": quantities.rate,
    "price_usd_per_gpu_hour": _with("/h", money),
    "cost_usd_per_trillion_tokens": money,
    "tokens_per_dollar": with_prefix("tokens"),
    "time_to_1t_tokens_seconds": long_time,
    "time_to_15t_tokens_seconds": long_time,
    "budget_gpu_hours": quantities.rate,
    "budget_seconds": long_time,
    "budget_energy_kwh": _with(" kWh"),
    "budget_cost_usd": money,
    "budget_saving_usd": money,
    "break_even_price_usd_per_gpu_hour": _with("/h", money),
}
