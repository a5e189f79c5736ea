"""The arithmetic of intervals, against scipy.stats and against simulation."""

import math

import numpy as np
import pytest
from each import in_each
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats as reference

from tensorprimat.analysis import stats

RUNS = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=12, unique=True)


@given(RUNS)
def test_an_interval_over_runs_is_students_t_on_logarithms(runs):
    logs = np.log(runs)
    if logs.std() < 1e-6:
        return
    low, high = stats.of_runs(runs).interval(0.95)
    expected = reference.t.interval(0.95, len(runs) - 1, loc=logs.mean(), scale=reference.sem(logs))
    assert np.log([low, high]) == pytest.approx(expected, abs=1e-9)


@given(RUNS, RUNS)
def test_a_ratio_of_equal_numbers_of_runs_is_tested_between_student_and_welch(ours, theirs):
    fewest = min(len(ours), len(theirs))
    ours, theirs = ours[:fewest], theirs[:fewest]
    if np.log(ours).std() < 1e-6 or np.log(theirs).std() < 1e-6:
        return
    difference = stats.welch_log_ratio(stats.of_runs(ours), stats.of_runs(theirs))
    welch = reference.ttest_ind(np.log(ours), np.log(theirs), equal_var=False)
    student = reference.ttest_ind(np.log(ours), np.log(theirs))  # the same statistic where the counts are equal
    assert student.pvalue * (1 - 1e-6) - 1e-12 <= difference.p_value() <= welch.pvalue * (1 + 1e-6) + 1e-12
    assert welch.df * (1 - 1e-9) <= difference.degrees <= 2 * (fewest - 1)


def alarms(ours, theirs, count=1500, seed=11):
    """Return the share of comparisons of equal sides that are called different."""
    random = np.random.default_rng(seed)
    sides = [np.exp(0.01 * random.standard_normal((count, runs))) for runs in (ours, theirs)]
    p_values = [
        stats.welch_log_ratio(stats.of_runs(a), stats.of_runs(b)).p_value() for a, b in zip(*sides, strict=True)
    ]
    return np.mean(np.array(p_values) < 0.05)


@in_each("runs", [2, 3, 4, 5, 8])
@in_each("noisier", [1, 4])
def test_equal_numbers_of_runs_give_few_false_alarms_whichever_side_varies_more(runs, noisier):
    random = np.random.default_rng(3)
    sides = [0.01 * factor * random.standard_normal((3000, runs)) for factor in (1, noisier)]
    p_values = [
        stats.welch_log_ratio(*(stats.of_runs(np.exp(one)) for one in pair)).p_value()
        for pair in zip(*sides, strict=True)
    ]
    assert np.mean(np.array(p_values) < 0.05) < 0.067  # 6 % and what 3,000 comparisons vary by


@in_each(("ours", "theirs"), [(2, 10), (10, 2), (2, 5), (3, 10)])
def test_few_runs_against_many_give_few_false_alarms(ours, theirs):
    assert 0.015 < alarms(ours, theirs) < 0.06


@given(RUNS, RUNS, st.floats(0.6, 0.995))
@example([2.0, 1.5, 0.53125], [0.71875, 0.734375], 0.65625)
def test_an_interval_excludes_1_exactly_where_the_p_value_is_below_its_level(ours, theirs, confidence):
    found = stats.welch_log_ratio(stats.of_runs(ours), stats.of_runs(theirs))
    low, high = found.interval(confidence)
    if abs(found.p_value() - (1 - confidence)) > 1e-6:
        assert (low > 1 or high < 1) == (found.p_value() < 1 - confidence)


def test_a_drift_widens_the_interval_on_top_of_the_scatter():
    plain, drifting = stats.of_runs([1.0, 1.01, 1.02]), stats.of_runs([1.0, 1.01, 1.02], drift=0.05)
    assert drifting.half_width(0.95) > max(plain.half_width(0.95), 1.9 * 0.05)


def test_looks_after_every_run_do_not_raise_the_rate_of_false_alarms():
    random = np.random.default_rng(4)
    ours, theirs = (np.exp(0.01 * random.standard_normal((1000, 10))) for _ in range(2))
    alarm = np.zeros(1000, bool)
    for look, runs in enumerate(range(2, 11), start=1):
        level = 1 - stats.level_of_look(0.95, look)
        alarm |= [
            stats.welch_log_ratio(stats.of_runs(a[:runs]), stats.of_runs(b[:runs])).p_value() < level
            for a, b in zip(ours, theirs, strict=True)
        ]
    assert alarm.mean() < 0.06
    assert stats.level_of_look(0.95, 1) == pytest.approx(0.95)


@in_each("degrees", [1, 30, math.inf])
def test_the_quantile_is_finite_at_the_level_of_any_look(degrees):
    level = stats.level_of_look(0.95, 10**18)
    assert level == 1.0
    assert stats.student(0.95, degrees) < stats.student(level, degrees) < math.inf


def test_one_run_has_no_interval_over_runs():
    with pytest.raises(ValueError, match="at least two"):
        stats.of_runs([1.0])


def test_runs_on_one_host_count_once_when_hosts_differ():
    runs, hosts = [1.00, 1.01, 1.10, 1.11, 1.20, 1.21], ["a", "a", "b", "b", "c", "c"]
    by_host = stats.of_runs(runs, hosts)
    assert by_host.degrees == 2
    assert by_host.variance > stats.of_runs(runs).variance


@in_each("hosts", [["a"] * 4, ["a", "b", None, "b"], [None] * 4])
def test_hosts_count_only_where_every_run_names_one_and_they_differ(hosts):
    assert stats.of_runs([1, 1.1, 1.2, 1.3], hosts).degrees == 3


def test_equal_runs_have_an_interval_without_width():
    same = stats.of_runs([2.0, 2.0, 2.0])
    assert same.interval(0.95) == pytest.approx((2.0, 2.0))
    assert stats.welch_log_ratio(same, same).p_value() == 1.0
    assert stats.welch_log_ratio(same, stats.of_runs([1.0, 1.0])).p_value() == 0.0


def test_the_geometric_mean_of_ratios_narrows_with_their_number():
    one = stats.LogEstimate(log=math.log(1.2), variance=1e-4, degrees=8)
    mean = stats.geometric_mean([one, one, one, one])
    assert math.exp(mean.log) == pytest.approx(1.2)
    assert mean.variance == pytest.approx(1e-4 / 4)
    assert mean.degrees == pytest.approx(32)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_the_comparisons_that_the_textbook_rejects(p_values):
    levels = stats.holm(p_values, 0.95)
    ordered = sorted(p_values)
    rejected = 0
    while rejected < len(ordered) and ordered[rejected] <= 0.05 / (len(ordered) - rejected):
        rejected += 1
    assert sum(p <= 1 - level + 1e-15 for p, level in zip(p_values, levels, strict=True)) == rejected


def test_a_single_comparison_is_not_corrected():
    assert stats.holm([0.04], 0.95) == (pytest.approx(0.95),)


def test_the_influence_of_rows_gives_the_error_of_a_ratio_of_sums():
    random = np.random.default_rng(3)
    tokens, seconds = 1000 + 50 * random.standard_normal((4000, 40)), 1 + 0.1 * random.standard_normal((4000, 40))
    ratios = np.log(tokens.sum(axis=1) / seconds.sum(axis=1))
    moves = np.array([stats.influences(t, s) for t, s in zip(tokens[:200], seconds[:200], strict=True)])
    assert moves.mean() == pytest.approx(0, abs=1e-12)
    assert (moves.std(axis=1).mean() / math.sqrt(40)) == pytest.approx(ratios.std(), rel=0.05)


def test_the_effective_number_of_independent_rows_is_close_to_their_number():
    random = np.random.default_rng(5)
    _, effective = stats.half_widths_of_series(random.standard_normal((300, 200)))
    assert 150 < np.median(effective) <= 200
    alternating = np.tile([1.0, -1.0], 20) + 0.1 * random.standard_normal(40)
    assert stats.of_one_run(alternating).effective <= 40


def test_autocorrelated_rows_are_worth_fewer():
    random = np.random.default_rng(6)
    noise = random.standard_normal((200, 100))
    for row in range(1, 100):
        noise[:, row] = 0.8 * noise[:, row - 1] + 0.6 * noise[:, row]
    _, effective = stats.half_widths_of_series(noise)
    assert 6 < np.median(effective) < 18  # 11.6 in truth


def test_constant_rows_have_no_width_and_are_worth_their_number():
    assert stats.of_one_run(np.zeros(30)) == stats.OneRun(half_width=0.0, effective=30.0)


def test_a_long_series_is_batched_and_gives_the_same_answer():
    random = np.random.default_rng(8)
    noise = random.standard_normal(100_000)
    for row in range(1, len(noise)):
        noise[row] = 0.5 * noise[row - 1] + math.sqrt(0.75) * noise[row]
    expected = 1.96 * math.sqrt(3 / len(noise))  # (1 + φ) / (1 − φ) = 3
    assert stats.of_one_run(noise).half_width == pytest.approx(expected, rel=0.15)


def test_two_rows_give_no_interval():
    with pytest.raises(ValueError, match="at least three"):
        stats.of_one_run(np.array([1.0, 2.0]))


def test_two_runs_suffice_without_scatter_and_no_number_with_too_much():
    assert stats.runs_needed([0.0], 0.01) == 2
    assert stats.runs_needed([5.0], 0.01) is None
