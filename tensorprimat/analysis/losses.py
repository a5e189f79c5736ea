"""Loss parity: comparison of the losses of two sides, because the speed of a run that does not learn means nothing.

Two curves over the same data are compared in windows of a few steps: the gap between the means of a window is compared
with its noise. Runs with equal seeds read the data in the same order and are compared in pairs, so the effect of a
batch on both cancels. The noise is the scatter of the gap over the pairs or, for one pair, between neighbouring steps
(von Neumann's estimator). If seeds differ, two runs on each side give the seed-to-seed noise. Correlation is not used,
because any two falling curves correlate.

Curves differ if the interval of one window's gap lies beyond the tolerance; the confidence is corrected for the number
of windows (Bonferroni). They agree if the interval of every window lies within the tolerance. Otherwise the comparison
is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorprimat.analysis import stats
from tensorprimat.analysis.records import Fairness, LossParity, LossVerdict
from tensorprimat.analysis.sides import Group
from tensorprimat.core.quantities import as_stated, count, counted, signed, significant, stated_share
from tensorprimat.core.result import Result
from tensorprimat.core.steps import FloatArray, finite

TOLERANCE = 0.0025  # of the loss: FP8 differed less from BF16 in DeepSeek-V3 (arXiv:2412.19437, 3.3)
_FEWEST_STEPS = 10
WINDOWS = 20  # at most: short enough to name a step, long enough to average the batches' own noise
GENERATED = ("synthetic", "mock")  # data that each framework makes in its own way


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """The losses of one run by optimizer step."""

    seed: int | None
    loss: dict[int, float]


def parity(
    baseline: Group, candidate: Group, fairness: Fairness, *, tolerance: float = TOLERANCE, confidence: float = 0.95
) -> LossParity | None:
    """Return the verdict on whether two sides' losses agree; None if a side logged no loss.

    fairness: of the two sides; tolerance: largest gap that counts as agreement, as a fraction of the baseline's loss.
    """
    sides = (baseline, candidate)
    if not all(group.result.steps.has("loss") for group in sides):
        return None
    for group in sides:
        if failure := failed_to_learn(group.result):
            return LossParity(verdict="failed", sentence=f"{group.label}: {failure}")
    if reason := _other_data(baseline.result, candidate.result, fairness):
        return _not_comparable(reason)
    ours, theirs = ([_curve(run) for run in group.runs] for group in sides)
    pairs = _same_seeds(ours, theirs)
    if not pairs and min(len(ours), len(theirs)) < 2:
        reason = "no two runs have equal seeds, and a side has fewer than two runs to measure the effect of the seed"
        return _not_comparable(reason)
    if pairs:
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    common = sorted(set.intersection(*(set(curve.loss) for curve in (*ours, *theirs))))
    if len(common) < _FEWEST_STEPS:
        return _not_comparable(f"only {len(common)} logged steps in common")
    base, other = (np.array([[curve.loss[step] for step in common] for curve in side]) for side in (ours, theirs))
    return _verdict(base, other, np.array(common), bool(pairs), tolerance, confidence)


def _not_comparable(reason: str) -> LossParity:
    return LossParity(verdict="not_comparable", sentence=f"The losses cannot be compared: {reason}.")


def failed_to_learn(result: Result) -> str | None:
    """Return a clause that says why a side does not learn (its loss is nan, or flat); None if the losses are normal."""
    steps = result.steps
    nan_rows = np.flatnonzero(steps.logged_nan("loss"))
    if len(nan_rows):
        first, known = steps.column("index")[nan_rows[0]], np.flatnonzero(np.isfinite(steps.column("loss")))
        if len(known) and known[-1] > nan_rows[0]:
            return f"the loss is nan in {counted(len(nan_rows), 'row')}, the first at step {first}."
        return f"the loss is nan from step {first} on."
    losses = finite(steps.column("loss"))
    if len(losses) >= _FEWEST_STEPS and np.ptp(losses) <= 1e-6 * abs(float(losses[0])):
        return f"the loss stays at {as_stated(losses[0])} over {len(losses)} rows."
    return None


def _curve(run: Result) -> _Curve:
    index, losses = run.steps.column("index"), run.steps.column("loss")
    known = np.isfinite(losses)
    seed = run.runs[0].seed if run.runs and run.runs[0].seed is not None else run.training_config.seed
    return _Curve(seed=seed, loss=dict(zip(index[known].tolist(), losses[known].tolist(), strict=True)))


def _other_data(baseline: Result, candidate: Result, fairness: Fairness) -> str | None:
    """Return the reason why the sides read other tokens or another order; None if nothing indicates that."""
    ours, theirs = baseline.training_config, candidate.training_config
    if not fairness.same_work:
        return "the sides did different work, or a side does not state its work"
    if ours.data_fingerprint and theirs.data_fingerprint:
        return None if ours.data_fingerprint == theirs.data_fingerprint else "the fingerprints of the data differ"
    if ours.data is None or theirs.data is None:
        return "at least one side does not state which data it read"
    if ours.data != theirs.data:
        return f"{ours.data} data on one side, {theirs.data} data on the other"
    if ours.data in GENERATED and ours.framework != theirs.framework:
        return f"each framework generates its own {ours.data} data"
    return None


def _same_seeds(ours: Sequence[_Curve], theirs: Sequence[_Curve]) -> list[tuple[_Curve, _Curve]]:
    """Return pairs of runs of equal seed, each seed once: a repeated one does not show the effect of the seed."""
    first_ours, first_theirs = (
        {curve.seed: curve for curve in reversed(side) if curve.seed is not None} for side in (ours, theirs)
    )
    return [(first_ours[seed], first_theirs[seed]) for seed in sorted(first_ours.keys() & first_theirs.keys())]


def _verdict(
    base: FloatArray, other: FloatArray, common: np.ndarray, paired: bool, tolerance: float, confidence: float
) -> LossParity:
    """Return the verdict on two arrays of losses.

    base, other: losses of each side, shape (runs, steps). paired: run i of one belongs to run i of the other.
    """
    windows = np.array_split(np.arange(len(common)), min(WINDOWS, len(common) // (_FEWEST_STEPS // 2)))
    gap, error, degrees, source = (_paired_gap if paired else _gap_of_means)(base, other, windows)
    margin = stats.student(1 - (1 - confidence) / len(windows), degrees) * error
    allowed = np.array([tolerance * abs(float(base[:, window].mean())) for window in windows])
    beyond = np.flatnonzero(np.abs(gap) - margin > allowed)
    largest = int(np.argmax(np.abs(gap)))
    first, at = (int(common[windows[place][0]]) for place in (beyond[0] if len(beyond) else 0, largest))
    verdict: LossVerdict = "undecided"
    found, doubt = "No loss difference detected", ", but too noisy to confirm a match"
    if len(beyond):
        verdict, found, doubt = "diverge", f"Loss curves differ from step {first}", ""
    elif (np.abs(gap) + margin <= allowed).all():
        verdict, found, doubt = "agree", f"The losses agree within {stated_share(tolerance)}", ""
    size = f"largest gap {signed(gap[largest])} near step {at}, noise ±{significant(margin, 2)} from {source}"
    return LossParity(
        verdict=verdict,
        sentence=f"The losses are equal at all {count(len(common))} common steps."
        if np.array_equal(base, other)
        else f"{found} ({size}){doubt}.",
        steps=len(common),
        largest_gap=float(gap[largest]),
        largest_gap_step=at,
        noise=float(margin),
        first_divergence_step=first if len(beyond) else None,
    )


Gap = tuple[FloatArray, float, float, str]
"""Gap of every window, its standard error, degrees of freedom, and the basis of the error."""


def _paired_gap(base: FloatArray, other: FloatArray, windows: Sequence[np.ndarray]) -> Gap:
    difference = other - base
    if len(difference) > 1:
        gaps = _means(difference, windows)
        error, degrees = _scatter(gaps)
        return gaps.mean(axis=1), error / math.sqrt(len(difference)), degrees, f"{len(difference)} pairs of equal seeds"
    jumps = np.diff(difference[0])
    error = math.sqrt(float((jumps**2).mean()) / 2 / min(map(len, windows)))
    return _means(difference, windows)[:, 0], error, len(jumps), "the steps of one run"


def _gap_of_means(base: FloatArray, other: FloatArray, windows: Sequence[np.ndarray]) -> Gap:
    ours, theirs = _means(base, windows), _means(other, windows)
    (error_a, degrees_a), (error_b, degrees_b) = _scatter(ours), _scatter(theirs)
    error = math.sqrt(error_a**2 / len(base) + error_b**2 / len(other))
    rests_on = f"{len(base)} and {len(other)} runs"
    return theirs.mean(axis=1) - ours.mean(axis=1), error, min(degrees_a, degrees_b), rests_on


def _means(losses: FloatArray, windows: Sequence[np.ndarray]) -> FloatArray:
    """Return the mean of every window: losses of shape (runs, steps) become means of shape (windows, runs)."""
    return np.array([losses[:, window].mean(axis=1) for window in windows])


def _scatter(means: FloatArray) -> tuple[float, float]:
    """Return the standard deviation of one run's window mean, taken together over the windows, and its degrees of
    freedom.

    means: shape (windows, runs). The windows of one run deviate together, so each run adds one degree of freedom.
    """
    runs = means.shape[1]
    return math.sqrt(float(means.var(axis=1, ddof=1).mean())), runs - 1
