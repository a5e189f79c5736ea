"""In logs of Megatron-Core since 0.16, the mean of the second line includes the first iteration, at any interval."""

from datetime import datetime, timedelta

import pytest
from each import in_each

from tensorprimat import logs

FIRST, STEP = 30.0, 0.5  # seconds of the first iteration, and of every later one


def read(folder, times, *, timer_is_reset, dated=True, first=1, written_together=0):
    """Read a log of every iteration. times: seconds that each iteration really took.

    written_together: first lines that a collector dated at one moment.
    """
    now, lines = datetime(2026, 1, 16, 7, 32, 24, 123456), []
    for place, seconds in enumerate(times):
        now += timedelta(seconds=0 if 0 < place < written_together else seconds)
        printed = seconds if timer_is_reset or place != 1 else (times[0] + times[1]) / 2
        lines.append(
            (f" [{now}]" if dated else "")
            + f" iteration {first + place:8d}/{500:8d} | consumed samples: {8 * (first + place):12d} | elapsed time "
            f"per iteration (ms): {1000 * printed:.1f} | learning rate: 1.0E-05 | global batch size:     8 | "
            f"lm loss: {9 - place / 100:.6E} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    path = folder / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path)


@in_each("dated", [True, False])
@in_each("first", [1, 101])
def test_the_second_line_holds_the_mean_of_both_iterations_where_the_timer_was_not_reset(tmp_path, dated, first):
    result = read(tmp_path, [FIRST, 0.75, *[STEP] * 3], timer_is_reset=False, dated=dated, first=first)
    found = result.performance_metrics
    assert (found.avg_step_time_seconds, found.measured_steps) == (STEP, 3)
    assert found.total_time_seconds == pytest.approx(FIRST + 0.75 + 3 * STEP, rel=1e-3)


@pytest.mark.parametrize("dated", [True, False])
def test_a_second_line_that_holds_only_its_own_iteration_covers_one_step(tmp_path, dated):
    result = read(tmp_path, [FIRST, *[STEP] * 4], timer_is_reset=True, dated=dated)
    assert result.performance_metrics.measured_steps == 4
    assert result.performance_metrics.total_time_seconds == pytest.approx(FIRST + 4 * STEP)


def test_dates_distinguish_a_slow_second_iteration_from_a_mean(tmp_path):
    result = read(tmp_path, [FIRST, 15.4, *[STEP] * 10], timer_is_reset=True)
    assert result.performance_metrics.total_time_seconds == pytest.approx(FIRST + 15.4 + 10 * STEP)


def test_two_lines_that_a_buffer_wrote_at_one_moment_prove_nothing_about_the_timer(tmp_path):
    result = read(tmp_path, [3.0, 2.0, *[1.9] * 10], timer_is_reset=True, written_together=2)
    assert result.performance_metrics.total_time_seconds == pytest.approx(3.0 + 2.0 + 10 * 1.9)


def test_the_dates_of_rows_agree_with_a_log_whose_timer_ran_on(tmp_path):
    result = read(tmp_path, [FIRST, 0.75, *[STEP] * 12], timer_is_reset=False)
    assert result.audit is not None
    assert result.audit.ratio == pytest.approx(1, abs=0.001)
    assert not [warning for warning in result.warnings if "audit" in warning]
