"""Units as the project uses them: SI in the code, GB and ms only in reports."""

from __future__ import annotations

MIB = 2**20
GB = 10**9  # vendors' memory sizes and every *_gb key of a result
GIB = 2**30  # the unit of allocators and of Primus' "hip mem usage", under every label

GIGA = 10**9
TERA = 10**12
NUMBER_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}  # by precision
SECONDS_PER_HOUR = 3600.0


def significant(value: float, digits: int) -> float:
    """Round to a number of significant digits.

    >>> significant(0.000123456, 4)
    0.0001235
    """
    return float(f"{value:.{digits}g}")


def rounded(value: float) -> float:
    """Round a summary figure: 3 decimals, or 4 significant digits where 3 decimals would lose more.

    >>> rounded(13425.12345), rounded(0.005065), rounded(0.09792)
    (13425.123, 0.005065, 0.09792)
    """
    return round(value, 3) if abs(value) >= 1 else significant(value, 4)
