"""Counts of simulated benchmarks: one record per row of the tables that perf/calibration.py writes."""

from __future__ import annotations

from dataclasses import dataclass

GATE_LIMIT = 0.03
FEWEST_SPOKEN = 0.25  # share of comparisons with a verdict below which their coverage is a selection


@dataclass(frozen=True, kw_only=True)
class Count:
    """Shares of the comparisons of one world."""

    name: str
    coverage: float
    """Share of the intervals that contain the true ratio, of the comparisons that have a verdict."""
    false_alarms: float
    """Share of all comparisons in which two equal sides are called different."""
    unsettled: float
    """Share without a verdict, because step time drifts."""
    found: float
    """Share in which a side that is 2 % faster is called faster."""
    bootstrap_coverage: float
    """Of the percentile bootstrap over runs, which many tools use."""


@dataclass(frozen=True, kw_only=True)
class GateCount:
    """Shares of the decisions of a gate that tolerates a slowdown of 3 %."""

    name: str
    passed_at_limit: float
    """Share of candidates slower by just the limit that pass."""
    failed_at_limit: float
    """Share of candidates slower by just the limit that fail."""
    failed_equal: float
    """Share of candidates as fast as the baseline that fail."""
    passed_equal: float
    failed_double: float
    """Share of candidates slower by twice the limit that fail."""


@dataclass(frozen=True, kw_only=True)
class OneRunCount:
    """The quality of the interval that one run gives for its mean."""

    name: str
    rows: int
    shown: float
    """Share of the runs for which the tool shows an interval."""
    coverage: float
    """Share of the intervals that contain the true mean; nan where hardly any run has an interval."""
    others: tuple[float, ...]
    """Coverage of the alternatives over the same rows, in the order of ALTERNATIVES."""


@dataclass(frozen=True, kw_only=True)
class SteadyCount:
    """The results of find_steady on one kind of series."""

    name: str
    truth: int | None
    """True end of the warm-up; None if there is none."""
    within_two: float
    too_early: float
    settled: float
    dropped: float
    """Mean share of rows left out."""
    clean: bool
    """True for a warm-up under independent noise alone."""
