"""The arithmetic of efficiency, cost and time, as functions of plain numbers.

SI units, except that memory counts 10**9 bytes, peaks 10**12 FLOP per second, and money USD per hour of one GPU.
Nothing is guessed here: `analysis/inputs` finds their arguments.
"""

from __future__ import annotations

from tensorprimat.core.units import SECONDS_PER_HOUR, TERA


def calculate_mfu(tokens_per_second_per_gpu: float, flops_per_token: float, peak_tflops: float) -> float:
    """Return the model FLOPs utilisation as a fraction: FLOPs that the model needs over those that the GPU could do.

    peak_tflops: dense peak at the precision that ran. Source: Chowdhery et al., PaLM, 2022, appendix B.

    >>> round(calculate_mfu(10_000, 51_470_401_536, 989.4), 3)
    0.52
    """
    return tokens_per_second_per_gpu * flops_per_token / (peak_tflops * TERA)


def calculate_tflops(tokens_per_second_per_gpu: float, flops_per_token: float) -> float:
    """Return the model TFLOP/s of one GPU.

    >>> calculate_tflops(10_000, 51_470_401_536)
    514.70401536
    """
    return tokens_per_second_per_gpu * flops_per_token / TERA


def calculate_memory_utilization(used_gb: float, total_gb: float) -> float:
    """Return the fraction of the device's memory that the peak took.

    >>> calculate_memory_utilization(60.0, 80.0)
    0.75
    """
    return used_gb / total_gb


def calculate_joules_per_token(watts_per_gpu: float, tokens_per_second_per_gpu: float) -> float:
    """Return the energy of one token.

    >>> calculate_joules_per_token(700, 10_000)
    0.07
    """
    return watts_per_gpu / tokens_per_second_per_gpu


def calculate_tokens_per_watt_hour(tokens_per_second_per_gpu: float, watts_per_gpu: float) -> float:
    """Return the tokens that a watt-hour trains.

    >>> calculate_tokens_per_watt_hour(7_000, 700)
    36000.0
    """
    return tokens_per_second_per_gpu * SECONDS_PER_HOUR / watts_per_gpu


def calculate_tokens_per_dollar(tokens_per_second_per_gpu: float, usd_per_gpu_hour: float) -> float:
    """Return the tokens that a dollar trains.

    >>> calculate_tokens_per_dollar(10_000, 4.0)
    9000000.0
    """
    return tokens_per_second_per_gpu * SECONDS_PER_HOUR / usd_per_gpu_hour


def calculate_cost(tokens: float, tokens_per_second_per_gpu: float, usd_per_gpu_hour: float) -> float:
    """Return USD that training on so many tokens costs, whatever the number of GPUs.

    >>> round(calculate_cost(1e12, 10_000, 3.6))
    100000
    """
    return tokens / calculate_tokens_per_dollar(tokens_per_second_per_gpu, usd_per_gpu_hour)


def calculate_cost_per_trillion_tokens(tokens_per_second_per_gpu: float, usd_per_gpu_hour: float) -> float:
    """Return USD per 10**12 tokens."""
    return calculate_cost(TERA, tokens_per_second_per_gpu, usd_per_gpu_hour)


def calculate_gpu_hours(tokens: float, tokens_per_second_per_gpu: float) -> float:
    """Return the hours of one GPU that so many tokens take.

    >>> calculate_gpu_hours(3.6e10, 10_000)
    1000.0
    """
    return tokens / tokens_per_second_per_gpu / SECONDS_PER_HOUR


def calculate_time_to_train(tokens: float, tokens_per_second: float) -> float:
    """Return the seconds that so many tokens take at a rate over all GPUs, if nothing ever stops.

    >>> calculate_time_to_train(1e12, 1e6)
    1000000.0
    """
    return tokens / tokens_per_second


def calculate_break_even_price(
    usd_per_gpu_hour: float, tokens_per_second_per_gpu: float, other_tokens_per_second_per_gpu: float
) -> float:
    """Return the price of the other GPU at which its tokens cost as much as this one's.

    >>> calculate_break_even_price(4.0, 10_000, 7_500)
    3.0
    """
    return usd_per_gpu_hour * other_tokens_per_second_per_gpu / tokens_per_second_per_gpu
