"""Tests of warm-up detection and outliers."""

import numpy as np
from each import in_each
from hypothesis import given
from hypothesis import strategies as st

from tensorprimat.core.steady import LONGEST_SERIES, find_outliers, find_steady, median


def noisy(curve, noise=0.01, seed=1):
    return curve * (1 + noise * np.random.default_rng(seed).standard_normal(len(curve)))


def ramp(length, rows=50, height=0.5):
    return 1 + height * np.clip(1 - np.arange(rows) / length, 0, None)


def test_an_empty_series_has_no_warm_up():
    assert find_steady(np.empty(0)).start == 0


@in_each("rows", [1, 2, 3, 5])
def test_of_up_to_five_rows_only_the_first_is_warm_up(rows):
    steady = find_steady(np.linspace(3.0, 1.0, rows))
    assert (steady.start, steady.settled) == (1, True)


@in_each("length", [3, 5, 10, 20])
@in_each("seed", range(10))
def test_a_clean_ramp_ends_within_two_steps_of_its_end(length, seed):
    steady = find_steady(noisy(ramp(length), seed=seed))
    assert abs(steady.start - length) <= 2
    assert steady.settled


def test_only_a_single_slow_first_step_is_dropped():
    assert find_steady(noisy(np.array([30.0] + [1.0] * 40))).start == 1


def test_warm_up_may_be_faster_than_the_rest():
    steady = find_steady(noisy(np.where(np.arange(60) < 8, 0.93, 1.0)))
    assert abs(steady.start - 8) <= 1


@in_each("rows", [8, 12, 20, 50])
def test_noise_alone_is_not_cut(rows):
    starts = [find_steady(noisy(np.ones(rows), noise=0.05, seed=seed)).start for seed in range(200)]
    assert np.mean(np.array(starts) <= 2) > 0.9


def test_one_outlier_late_in_the_series_moves_nothing():
    series = noisy(np.ones(40))
    series[30] *= 20
    steady = find_steady(series)
    assert (steady.start, steady.settled) == (1, True)


def test_a_drift_never_settles_and_keeps_its_rows():
    steady = find_steady(noisy(np.linspace(1.0, 1.1, 60)))
    assert not steady.settled
    assert steady.start < 30


def test_a_late_change_of_level_never_settles():
    steady = find_steady(noisy(np.where(np.arange(60) < 42, 1.0, 1.05)))
    assert not steady.settled
    assert steady.start <= 2


def test_a_ramp_beyond_the_middle_never_settles_and_costs_at_most_half():
    steady = find_steady(noisy(ramp(40)))
    assert not steady.settled
    assert steady.start <= 25


def test_a_slow_warm_up_of_small_size_is_seen_in_a_long_series():
    steady = find_steady(noisy(np.where(np.arange(200) < 60, 1.02, 1.0)))
    assert abs(steady.start - 60) <= 10
    assert steady.settled


def test_a_constant_series_settles_after_its_first_row():
    steady = find_steady(np.full(30, 0.25))
    assert (steady.start, steady.settled) == (1, True)


def test_rounded_digits_are_not_a_change_of_speed():
    series = np.array([0.123, 0.1231, 0.123, 0.123] + [0.123] * 30)
    assert find_steady(series).start == 1


@in_each("between_ticks", [0.2, 0.35, 0.4, 0.45, 0.5])
@in_each("jitter", [0.01, 0.3, 0.6])
def test_a_coarse_clock_settles_like_a_fine_one(between_ticks, jitter):
    random = np.random.default_rng(3)
    found = [
        find_steady(np.round(97 + between_ticks + jitter * random.standard_normal(200)) / 1000) for _ in range(100)
    ]
    assert sum(steady.settled for steady in found) >= 95
    assert np.mean([steady.start for steady in found]) < 10


def test_a_coarse_clock_hides_no_change_of_three_ticks():
    series = np.round(noisy(np.where(np.arange(300) < 200, 97.4, 100.4), noise=0.003)) / 1000
    assert not find_steady(series).settled
    warming = np.round(noisy(np.where(np.arange(300) < 20, 110.4, 97.4), noise=0.003)) / 1000
    assert abs(find_steady(warming).start - 20) <= 2


def test_interrupted_rows_are_skipped():
    series = noisy(np.concatenate([ramp(5, rows=30)]))
    series[[2, 10, 11]] = np.nan
    assert abs(find_steady(series).start - 5) <= 2


def test_nothing_but_interrupted_rows_is_not_a_series():
    assert find_steady(np.full(12, np.nan)).start == 1


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=80))
def test_at_least_half_of_any_series_stays(times):
    steady = find_steady(np.array(times))
    assert min(1, len(times)) <= steady.start <= max(1, len(times) // 2)


@given(st.lists(st.floats(0.5, 2.0), min_size=6, max_size=60), st.sampled_from([2.0**-10, 0.25, 8.0, 2.0**10]))
def test_the_unit_of_time_does_not_matter(times, unit):
    assert find_steady(np.array(times)) == find_steady(np.array(times) * unit)  # powers of two round no ties apart


@in_each("length", [1, 400, 30_000])
def test_the_end_of_a_warm_up_is_found_among_hundreds_of_thousands_of_rows(length):
    rows = 3 * LONGEST_SERIES + 1234
    steady = find_steady(noisy(ramp(length, rows=rows)))
    assert abs(steady.start - length) <= max(2, length // 20)
    assert steady.settled


def test_a_late_change_of_level_of_a_very_long_series_is_seen():
    rows = 3 * LONGEST_SERIES
    assert not find_steady(noisy(np.where(np.arange(rows) < 0.7 * rows, 1.0, 1.05))).settled


def test_a_very_long_series_may_have_rows_without_a_time():
    series = noisy(ramp(5, rows=2 * LONGEST_SERIES))
    series[7 : LONGEST_SERIES // 2] = np.nan
    assert find_steady(series).start <= 8


def test_outliers_are_far_from_the_median_in_both_senses():
    series = noisy(np.ones(60), noise=0.002)
    series[[20, 40]] = 1.6, 1.03  # 1.03 is many deviations off, but nobody would care
    assert find_outliers(series).tolist() == [20]


def test_unmeasured_rows_are_not_outliers():
    series = noisy(np.ones(30))
    series[3] = np.nan
    assert not len(find_outliers(series))


@in_each("count", [1, 2, 7, 1000, 1001, 1002, 5000])
def test_the_median_equals_that_of_numpy_for_any_number_of_rows(count):
    rows = np.random.default_rng(count).normal(size=count)
    assert median(rows) == np.median(rows)
