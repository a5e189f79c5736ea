"""Megatron-Bridge's additional line for each iteration line: `Step Time : 4.15s GPU utilization:
1253.0MODEL_TFLOP/s/GPU`, at first without `MODEL_`.

Rank 0 prints it, in every version, from the same reading of the clock as the iteration line of the last rank, with two
decimals and without the iteration's number (megatron/bridge/training/utils/train_utils.py, `training_log`). So it
states the rate of the neighbouring iteration whose time it rounds; a log that was reduced to these lines has them as
its rows.
"""

from __future__ import annotations

import re

import numpy as np

from tensorprimat.core.steps import FloatArray

LINE = re.compile(rb"Step Time : (\d{1,9}\.\d\d)s GPU utilization: (-?\d{1,9}\.\d) ?(?:MODEL_)?TFLOP/s/GPU")
_ROUNDED = 0.00506  # seconds: rounding error of two decimals, plus that of the iteration line (0.1 ms)

BRIDGE_NEEDLE = b"s GPU utilization: "


class StepTimes:
    """The lines of one log, block by block."""

    def __init__(self) -> None:
        self._lines: list[int] = []
        self._seconds: list[float] = []
        self._tflops: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, first_line: int, block: bytes) -> None:
        """Take in a block of whole lines whose first has this number."""
        if BRIDGE_NEEDLE not in block:
            return
        number, counted = first_line, 0
        for match in LINE.finditer(block):
            number += block.count(b"\n", counted, match.start())
            counted = match.start()
            self._lines.append(number)
            self._seconds.append(float(match[1]))
            self._tflops.append(float(match[2]))

    def append(self, later: StepTimes, *, lines_before: int) -> None:
        """Add the lines of the next part of the log, whose line numbers start at 1 there."""
        self._lines += [line + lines_before for line in later._lines]
        self._seconds += later._seconds
        self._tflops += later._tflops

    def rates_of(self, line: FloatArray, seconds: FloatArray) -> FloatArray:
        """Return the TFLOP/s per GPU of each iteration line, NaN without a `Step Time` line of its own; (rows,).

        line: line numbers, ascending, (rows,); seconds: step time of each iteration line, (rows,). Ranks print in any
        order, so a `Step Time` line may come before or after its iteration line: it belongs to the next iteration line
        if their times agree, else to the previous one if theirs do.
        """
        rates = np.full(len(line), np.nan)
        following = np.searchsorted(line, self._lines)
        own_seconds, tflops = np.array(self._seconds), self._rates()
        free = np.ones(len(own_seconds), np.bool_)
        for row in (following, following - 1):
            inside = free & (row >= 0) & (row < len(line))
            agrees = inside.copy()
            agrees[inside] = np.abs(seconds[row[inside]] - own_seconds[inside]) <= _ROUNDED
            rates[row[agrees]] = tflops[agrees]
            free &= ~agrees
        return rates

    def fields(self) -> dict[str, FloatArray]:
        """Return the lines as rows, numbered from 1, for a log without iteration lines; columns of shape (lines,)."""
        return {
            "index": np.arange(1.0, len(self._lines) + 1),
            "line": np.array(self._lines, np.float64),
            "seconds": np.array(self._seconds),
            "reported_tflops_per_gpu": self._rates(),
        }

    def _rates(self) -> FloatArray:
        """Return rates without zeros, which Megatron-Bridge prints for models whose cost it cannot compute."""
        rates = np.array(self._tflops)
        rates[rates <= 0] = np.nan
        return rates
