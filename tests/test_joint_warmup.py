"""The end of warm-up of several runs together, and what their figures rest on."""

import math

import numpy as np
import pytest
from each import in_each
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import stdtr

from tensorprimat.analysis.estimates import rounding_of
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import select_measured
from tensorprimat.core.warmup import find_warmup, p_of_t


def runs(curve, count=5, noise=0.01, seed=0, level=0.005):
    random = np.random.default_rng(seed)
    return [
        np.exp(level * random.standard_normal()) * curve * (1 + noise * random.standard_normal(len(curve)))
        for _ in range(count)
    ]


def decay(height, time, rows=50):
    return 1 + height * np.exp(-np.arange(rows) / time)


def steps_of(series):
    lengths = [len(one) for one in series]
    return Steps(
        {
            "index": np.concatenate([np.arange(1, length + 1) for length in lengths]),
            "seconds": np.concatenate(series),
            "run": np.repeat(np.arange(len(series)), lengths),
        }
    )


def test_level_runs_lose_the_first_row_and_show_no_drift():
    found = [find_warmup(runs(np.ones(50), seed=seed)) for seed in range(60)]
    assert sum(one.settled for one in found) >= 59
    assert sum(one.drift > 0 for one in found) <= 8
    assert np.mean([run.start for one in found for run in one.runs]) < 3


def test_a_gradual_warm_up_is_cut_off_or_widens_the_interval_or_leaves_the_run_unsettled():
    for seed in range(40):
        series = runs(decay(0.05, 10), seed=seed)
        found = find_warmup(series)
        left = np.mean([np.mean(decay(0.05, 10)[run.start :] - 1) for run in found.runs])
        assert not found.settled or left < 0.003 + found.drift, seed


def test_a_slow_decay_is_never_called_settled():
    assert not any(find_warmup(runs(decay(0.10, 15), seed=seed)).settled for seed in range(30))


def test_a_decay_over_most_of_a_short_run_is_not_settled():
    found = [find_warmup(runs(decay(0.05, 10, rows=20), seed=seed)).settled for seed in range(40)]
    assert sum(found) <= 6


def test_the_uncertainty_about_a_warm_up_of_few_rows_widens_the_interval():
    """Several decay times fit 20 noisy rows; the shortest of them leaves next to no drift."""
    wrong = 0
    for time, rows in ((5, 15), (8, 20), (8, 25)):
        level = decay(0.03, time, rows=rows)
        for seed in range(60):
            found = find_warmup(runs(level, seed=seed))
            left = np.mean([np.mean(level[run.start :] - 1) for run in found.runs])
            wrong += found.settled and left > 0.0015 + 2 * found.drift
    assert wrong <= 20, "35 by the best decay time alone"


def test_the_possible_remainder_of_a_warm_up_as_long_as_the_run_counts():
    """The rows after the cut are too few to show it: without it, the mean counts as exact."""
    level = decay(0.02, 20)
    found = [find_warmup(runs(level, seed=seed)) for seed in range(200)]
    left = [np.mean([np.mean(level[run.start :] - 1) for run in one.runs]) for one in found]
    spoken = [(one.drift, rest) for one, rest in zip(found, left, strict=True) if one.settled]
    assert len(spoken) >= 20
    assert np.mean([drift == 0 for drift, _ in spoken]) < 0.2
    assert np.mean([rest < 0.0015 + 2 * drift for drift, rest in spoken]) > 0.8


def test_slow_noise_of_single_runs_is_not_a_common_drift():
    settled = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        noise = random.standard_normal((5, 50))
        for row in range(1, 50):
            noise[:, row] = 0.9 * noise[:, row - 1] + math.sqrt(0.19) * noise[:, row]
        settled.append(find_warmup(list(1 + 0.01 * noise)).settled)
    assert sum(settled) >= 36


def test_a_declared_warm_up_that_is_too_short_is_corrected_and_reported():
    ramp = 1 + 0.5 * np.clip(1 - np.arange(50) / 15, 0, None)
    selections = select_measured(steps_of(runs(ramp)), warmup_steps=5)
    assert all(abs(selection.dropped_steps - 15) <= 2 for selection in selections)
    assert {selection.declared_steps for selection in selections} == {5}


def test_a_declared_warm_up_that_suffices_stays_as_declared():
    selections = select_measured(steps_of(runs(np.ones(50))), warmup_steps=12)
    assert {(selection.dropped_steps, selection.declared_steps) for selection in selections} == {(12, None)}


def test_a_log_that_begins_after_warm_up_keeps_every_row():
    selections = select_measured(steps_of(runs(decay(0.05, 10))), warmup_steps=0)
    assert {selection.dropped_steps for selection in selections} == {0}


def test_a_short_run_together_with_a_long_one_keeps_half_of_its_rows():
    long, short = runs(np.where(np.arange(500) < 15, 1.5, 1.0), count=1)[0], runs(np.ones(20), count=1)[0]
    assert find_warmup([long, short]).runs[1].start <= 10


def test_unknown_rows_are_skipped():
    series = runs(np.ones(40))
    for run in series:
        run[[3, 17]] = np.nan
    assert find_warmup(series).settled
    assert find_warmup([np.full(20, np.nan)] * 2).drift == 0


@in_each(("rows", "unit"), [([6.06] * 10, 0.01), ([2.5] * 5, 0.025), ([0.25] * 5, 0.0025), ([137.4, 137.4], 0.1)])
def test_rows_with_equal_digits_may_share_one_rounding_error(rows, unit):
    assert rounding_of(np.array(rows)) == pytest.approx(unit / 2 / np.median(rows))


def test_rows_that_vary_by_more_than_a_digit_have_independent_rounding_errors():
    random = np.random.default_rng(1)
    assert rounding_of(np.round(6.06 + 0.03 * random.standard_normal(50), 2)) == 0
    assert rounding_of(6.06 + 1e-6 * random.standard_normal(50)) == 0


@given(st.floats(0, 1e6), st.integers(1, 2000))
@example(7.2921866300043935e-09, 1)
def test_the_p_of_students_t_is_that_of_scipy(score, freedom):
    assert p_of_t(score, freedom) == pytest.approx(2 * stdtr(freedom, -score), abs=1e-8)  # scipy's own error near 0
    if freedom == 1:  # Cauchy's distribution
        assert p_of_t(score, freedom) == pytest.approx(1 - 2 / math.pi * math.atan(score), abs=1e-11)
