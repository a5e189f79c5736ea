"""The record of a run's measured rows: rows left out as warm-up or interruption, and whether the times settled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The measured rows of one run."""

    run: int
    of_run: np.ndarray
    """Positions of all rows of the run."""
    of_training: np.ndarray
    """Positions of all rows of the measured segments."""
    rows: np.ndarray
    """Positions of the measured rows, in their order."""
    segment: int
    """Number of the longest measured segment (stretch between restarts)."""
    segments: int
    measured_segments: tuple[int, ...]
    """Segments whose rows are measured: the longest, and those that it continues or that continue it."""
    off_level: tuple[int, ...]
    """Segments left out only because their step time differs from that of the longest."""
    dropped_steps: int
    """Optimizer steps of the segment left out as warm-up."""
    excluded_steps: int
    """Optimizer steps after warm-up left out because they contain other work."""
    settled: bool
    """True if the step times of this run reached a stable level."""
    side_settled: bool = True
    """True if the step times of all runs together reached a stable level."""
    drift: float = 0.0
    """Relative amount by which the mean may deviate from the level that follows warm-up, of all runs together."""
    declared_steps: int | None = None
    """Optimizer steps that were declared as warm-up, where more were dropped."""
