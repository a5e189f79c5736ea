"""Interval arithmetic against the same figures computed another way: by scipy, by matrices, by a search."""

import math

import numpy as np
import pytest
from each import in_each
from scipy import optimize
from scipy import stats as reference

from tensorprimat.analysis import stats


@in_each("degrees", [1, 2.5, 8, 40, 300])
@in_each("confidence", [0.8, 0.95, 0.99])
def test_the_quantile_is_students_t_for_any_degrees_of_freedom(degrees, confidence):
    assert stats.student(confidence, degrees) == pytest.approx(reference.t.ppf((1 + confidence) / 2, degrees))


def test_a_mean_over_runs_or_pairs_varies_at_least_by_rounding():
    assert stats.of_runs([2.0, 2.0, 2.0], rounding=0.01).half_width(0.95) == pytest.approx(0.01)
    assert stats.of_pairs([2.0] * 3, [1.0] * 3, rounding=0.01).half_width(0.95) == pytest.approx(0.01)


def test_a_drift_that_a_pair_shares_cancels_and_the_ratio_is_candidate_over_baseline():
    shared = np.array([1.0, 1.3, 0.8, 1.1])
    paired = stats.of_pairs(1.1 * shared, shared)
    assert math.exp(paired.log) == pytest.approx(1.1)
    assert paired.half_width(0.95) < 1e-9
    assert paired.degrees == 3


def test_a_difference_is_candidate_over_baseline():
    found = stats.welch_log_ratio(stats.of_runs([1.1, 1.12, 1.08]), stats.of_runs([1.0, 1.02, 0.98]))
    assert math.exp(found.log) == pytest.approx(1.1, rel=1e-3)


def test_drifts_of_both_sides_add_like_independent_errors():
    sides = stats.of_runs([1.0, 1.01, 1.02], drift=0.03), stats.of_runs([1.0, 1.01, 1.02], drift=0.04)
    assert stats.welch_log_ratio(*sides).drift == pytest.approx(0.05)
    drifting = stats.LogEstimate(log=0.1, variance=1e-6, degrees=4, drift=0.02)
    assert stats.geometric_mean([drifting] * 4).drift == pytest.approx(0.01)


def test_a_drift_brings_no_degrees_of_freedom_of_its_own():
    """Satterthwaite: (v + d²)² / (v² / degrees), because the drift is not estimated from the runs."""
    found = stats.LogEstimate(log=0.0, variance=1e-4, degrees=2, drift=0.02)
    assert found.half_width(0.95) == pytest.approx(reference.t.ppf(0.975, 50) * math.sqrt(5e-4))


def test_unequal_numbers_of_runs_keep_the_degrees_of_welch_and_count_the_drift():
    random = np.random.default_rng(2)
    few, many = (np.exp(0.01 * random.standard_normal(runs)) for runs in (2, 10))
    welch = reference.ttest_ind(np.log(few), np.log(many), equal_var=False)
    assert stats.welch_log_ratio(stats.of_runs(few), stats.of_runs(many)).degrees == pytest.approx(welch.df)
    drifting = stats.welch_log_ratio(stats.of_runs(few, drift=0.05), stats.of_runs(many))
    assert drifting.half_width(0.95) > 1.9 * 0.05
    assert drifting._p_value(0.05) > 0.3


def test_the_mean_of_one_ratio_is_that_ratio_also_of_unequal_numbers_of_runs():
    one = stats.welch_log_ratio(stats.of_runs([1.1, 1.12]), stats.of_runs([1.0, 1.02, 0.98, 1.01, 0.99, 1.0]))
    assert stats.geometric_mean([one]).interval(0.95) == pytest.approx(one.interval(0.95))


def test_the_geometric_mean_is_of_all_ratios():
    ratios = [stats.LogEstimate(log=math.log(value), variance=1e-4, degrees=8) for value in (1.0, 1.2, 1.5)]
    assert math.exp(stats.geometric_mean(ratios).log) == pytest.approx((1.0 * 1.2 * 1.5) ** (1 / 3))


@in_each(("scatters", "half_width"), [([0.02], 0.01), ([0.02, 0.01], 0.01), ([0.005, 0.03], 0.02)])
def test_the_runs_needed_are_those_of_a_search_with_scipy(scatters, half_width):
    deviation = math.sqrt(sum(scatter**2 for scatter in scatters))

    def suffices(runs):
        return reference.t.ppf(0.975, len(scatters) * (runs - 1)) * deviation / math.sqrt(runs) <= half_width

    assert stats.runs_needed(scatters, half_width) == next(runs for runs in range(2, 1000) if suffices(runs))


def half_width_by_matrices(series, confidence):
    """Return the half-width of the mean of an AR(1) series by full covariance matrices and a root search."""
    rows = len(series)
    x, ones = series - series.mean(), np.ones(rows)
    lag = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows)))
    log_posterior, centres, scales = [], [], []
    for phi in stats._PHI:
        covariance = phi**lag / (1 - phi**2)
        precision = np.linalg.inv(covariance)
        weight = ones @ precision @ ones
        centre = ones @ precision @ x / weight
        residual = (x - centre) @ precision @ (x - centre)
        log_posterior.append(
            -0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * math.log(weight) - (rows - 1) / 2 * math.log(residual)
        )
        centres.append(centre)
        scales.append(math.sqrt(residual / (rows - 1) / weight))
    weights = np.exp(np.array(log_posterior) - max(log_posterior))
    weights /= weights.sum()

    def missing(half):
        inside = reference.t.cdf((half - np.array(centres)) / scales, rows - 1)
        below = reference.t.cdf((-half - np.array(centres)) / scales, rows - 1)
        return float((weights * (inside - below)).sum()) - confidence

    return optimize.brentq(missing, 0.0, 1e3 * max(scales))


@in_each(("seed", "phi"), [(1, 0.0), (2, 0.5), (3, 0.9), (4, -0.4)])
@in_each("confidence", [0.8, 0.95])
def test_the_interval_of_one_run_is_that_of_full_covariance_matrices(seed, phi, confidence):
    random = np.random.default_rng(seed)
    series = 0.01 * random.standard_normal(30)
    for row in range(1, 30):
        series[row] += phi * series[row - 1]
    series += np.linspace(0.0, 0.02, 30) ** 2  # ends that differ move the centre away from the plain mean
    assert stats.of_one_run(series, confidence).half_width == pytest.approx(
        half_width_by_matrices(series, confidence), rel=1e-4
    )
