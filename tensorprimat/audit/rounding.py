"""The error that the last printed digit leaves in a mean of printed values.

A value printed in whole units may be half a unit off. Where many values are averaged, the errors cancel only if the
values themselves vary by about a unit, so that they are rounded up as often as down; values that vary by less are all
rounded the same way, and the error of one value is that of the mean.
"""

from __future__ import annotations

import math

import numpy as np

from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray

_FEWEST_OF_A_VALUE = 3  # rows, and 5 % of them: of each of three neighbouring values, for the errors to cancel
_SHARE_OF_A_VALUE = 0.05
_WIDE = 2.0  # units between the quartiles; no single value need be frequent then
_FINEST = 1e-9  # of the largest value: printed digits beyond it are those of a float
_DIGITS_OF_32_BITS = 7
_LEAST, _LARGEST = 1e-30, 1e30  # values outside are no times or rates
_LOOKED_AT = 200  # rows; enough to see how many digits are printed


def as_decimals(values: FloatArray) -> FloatArray:
    """Return numbers that a container keeps with 32 bits as the decimal numbers that they stand for.

    >>> float(as_decimals(np.array([0.9], np.float32).astype(float))[0])
    0.9
    """
    with np.errstate(all="ignore"):
        scale = 10.0 ** (_DIGITS_OF_32_BITS - np.ceil(np.log10(np.abs(values))))
        decimals = np.round(values * scale) / scale
        return np.where(
            (values.astype(np.float32) == values) & (decimals.astype(np.float32) == values), decimals, values
        )


def printed_unit(values: FloatArray) -> float | None:
    """Return the largest power of ten of which every value is a multiple; None for values that were not rounded.

    values: shape (rows,), positive. Zeros at the end of printed numbers are not seen, so the unit is an upper limit
    where all values are equal.
    """
    spread = values[:: max(1, len(values) // _LOOKED_AT)]  # not the first rows alone: values can repeat with a period
    looked_at = np.concatenate((values[:_LOOKED_AT], spread))
    if not len(looked_at) or not _LEAST < looked_at.min() <= looked_at.max() < _LARGEST:
        return None
    highest = math.floor(math.log10(looked_at.max()))
    for exponent in range(highest, highest + round(math.log10(_FINEST)) - 1, -1):
        ticks = looked_at * 10.0**-exponent if exponent < 0 else looked_at / 10.0**exponent
        if (np.abs(ticks - np.round(ticks)) <= 1e-9 + 1e-12 * ticks).all():  # a fifth of the time of np.allclose
            return float(10.0**exponent)
    return None


def unit_of_values(values: FloatArray) -> float:
    """Return the unit in which values were printed, as they alone show it; 0 for those that were not rounded.

    Where all are equal, that of a whole number is 1. values: shape (rows,), positive.
    """
    is_whole = len(values) > 0 and np.ptp(values) == 0 and float(values[0]).is_integer()
    return 1.0 if is_whole else printed_unit(values) or 0.0


def error_of_mean(values: FloatArray, unit: float) -> float:
    """Return the largest relative error of the mean of values that were rounded to a unit; 0 where errors cancel.

    values: shape (rows,), positive. Errors cancel where the values vary by at least about half a unit (standard
    deviation): three neighbouring values are frequent, or the quartiles lie units apart.
    """
    level = median(values)
    if not unit or not level:
        return 0.0
    low, high = np.quantile(values, (0.25, 0.75))
    if high - low >= _WIDE * unit:
        return 0.0
    ticks, rows = np.unique(np.round(values / unit), return_counts=True)
    frequent = ticks[rows >= max(_FEWEST_OF_A_VALUE, _SHARE_OF_A_VALUE * len(values))]
    cancels = bool((frequent[2:] - frequent[:-2] == 2).any()) if len(frequent) > 2 else False
    return 0.0 if cancels else unit / 2 / level
