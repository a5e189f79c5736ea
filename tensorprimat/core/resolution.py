"""The digits of printed step times, and the error that rounding leaves in their mean.

Where rows vary by more than half of the last printed digit, rounding errors of single rows cancel in the mean. Where
they vary by less, every row of every run is rounded the same way, and the error stays however many rows there are.
"""

from __future__ import annotations

import math

import numpy as np

from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray

MOST_DECIMALS = 9
COARSEST = 0.01  # relative; 6 s printed as "6" was hardly rounded to whole seconds by more than that
LOOKED_AT = 200  # rows; more hold no more digits


def rounding_deviation(seconds: FloatArray) -> float:
    """Return the relative standard deviation that rounding leaves in the mean of printed times; 0 for measured ones.

    seconds: shape (rows,), of every run of a side, NaN where unknown. The last digit is taken from the rows themselves:
    the fewest decimals that write all of them. An error of 1 unit is uniform, so its deviation is 1/√12; with noise of
    standard deviation σ in the rows it shrinks by exp(−2π²σ²) (the first term of the Fourier series of rounding).
    """
    known = seconds[np.isfinite(seconds) & (seconds > 0)]
    if not len(known):
        return 0.0
    decimals = _decimals(known[:: max(1, len(known) // LOOKED_AT)])
    if decimals is None:
        return 0.0
    level = median(known)
    unit = min(10.0**-decimals, COARSEST * level)
    within = max(float(known.var()) / unit**2 - 1 / 12, 0.0)  # Sheppard's correction
    return unit / math.sqrt(12) / level * math.exp(-2 * math.pi**2 * within)


def _decimals(values: FloatArray) -> int | None:
    """Return the fewest decimals that write every value, or None for more than MOST_DECIMALS."""
    for decimals in range(MOST_DECIMALS + 1):
        if np.allclose(np.round(values, decimals), values, rtol=1e-12, atol=0.0):
            return decimals
    return None
