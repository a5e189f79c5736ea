"""The closing audit: comparison of the headline with the log's own clock, and contradictions."""

import re

import numpy as np
import plausible
import pytest
from each import in_each
from job_logs import Job, megatron

from tensorprimat import logs
from tensorprimat.audit import verdict
from tensorprimat.audit.evidence import DATES, Elapsed, Evidence, LogClock
from tensorprimat.core.errors import ContradictionError
from tensorprimat.core.provenance import Audit
from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import pool, summarise
from tensorprimat.logs.assemble import audited

START = 1.7e9


def rows(times, dates=None, **fields):
    """Return rows of one step each; dates: seconds since the start."""
    return Steps.of(
        Step(
            index=n,
            seconds=seconds,
            ended_at=None if dates is None else START + dates[n - 1],
            line=10 * n,
            **fields,  # type: ignore[arg-type]
        )
        for n, seconds in enumerate(times, start=1)
    )


def result(steps, *clocks, announced=None, warmup=None):
    return summarise(
        plausible.bare(
            training_config=TrainingConfig(global_batch_size=4, sequence_length=100, warmup_steps=warmup),
            steps=steps,
            evidence=Evidence(clocks=clocks, announced=announced or {}),
        )
    )


def test_a_log_without_a_clock_has_no_audit():
    assert audited(result(rows([3.0, *[1.0] * 9])), "run.log").audit is None


def test_a_clock_that_agrees_needs_no_explanation():
    outcome = audited(result(rows([1.0] * 20), LogClock(name="train_runtime", seconds=20.1)), "run.log")
    assert outcome.audit is not None
    assert (outcome.audit.clock, outcome.audit.work, outcome.audit.work_unit) == ("train_runtime", 8000.0, "tokens")
    assert outcome.audit.ratio == pytest.approx(1.005)
    assert outcome.audit.explained_by == ()
    assert verdict.gap_reason(outcome.audit) is None
    assert not any(warning.startswith("audit") for warning in outcome.warnings)


def test_start_up_explains_what_the_clock_counts_above_the_headline():
    outcome = audited(result(rows([12.0, *[1.0] * 19]), LogClock(name="train_runtime", seconds=31.0)), "run.log")
    assert outcome.audit.explained_by == ("start-up 11 s",)
    assert (
        verdict.gap_reason(outcome.audit) == "55.0 % above the rate by the log's clock 'train_runtime': start-up 11 s"
    )
    assert not any(warning.startswith("audit") for warning in outcome.warnings)


def test_evaluation_that_the_log_times_is_taken_out_of_its_clock():
    clock = LogClock(name="run_start to run_stop", seconds=51.0, spent=(("evaluation", 31.0),), has_every_pause=True)
    outcome = audited(result(rows([1.0] * 20), clock), "run.log")
    assert (outcome.audit.clock_seconds, outcome.audit.ratio) == (20.0, 1.0)
    assert outcome.audit.explained_by == ("evaluation 31 s, subtracted from the clock",)


def test_an_unexplained_difference_is_the_first_warning():
    outcome = audited(result(rows([1.0] * 100), LogClock(name="train_runtime", seconds=110.0)), "run.log")
    assert outcome.warnings[0] == (
        "audit: 100 steps take 100 s at the measured pace, but 110 s by train_runtime: 9 s (8 %) are unexplained"
    )
    assert (
        verdict.gap_reason(outcome.audit) == "10.0 % above the rate by the log's clock 'train_runtime': cause unknown"
    )


@pytest.mark.parametrize("seconds", [60.0, 160.0])
def test_a_clock_that_contradicts_the_headline_refuses_the_log(seconds):
    with pytest.raises(ContradictionError, match=r"100 steps take 100 s at the measured pace, but .* by train_runtime"):
        audited(result(rows([1.0] * 100), LogClock(name="train_runtime", seconds=seconds)), "run.log")


def test_rows_of_more_steps_than_the_log_counts_refuse_the_log():
    with pytest.raises(ContradictionError, match="the rows add up to 100 steps, but the log itself counts 50"):
        audited(result(rows([1.0] * 100), LogClock(name="run_start to run_stop", seconds=50.0, steps=50.0)), "run.log")


def test_dates_that_agree_with_the_step_times_need_no_explanation():
    outcome = audited(result(rows([1.0] * 20, [1.001 * n for n in range(1, 21)])), "run.log")
    assert outcome.audit.clock == "the timestamps of the rows"
    assert outcome.audit.ratio == pytest.approx(1.001)
    assert outcome.audit.explained_by == ()


def test_a_gap_between_two_dates_is_a_pause_and_has_a_name_where_the_log_announced_it():
    dates = np.cumsum([1.001 + (30.0 if n == 9 else 7.0 if n == 14 else 0.0) for n in range(20)]).tolist()
    outcome = audited(result(rows([1.0] * 20, dates), announced={95: "validation"}), "run.log")
    assert outcome.audit.explained_by == ("pauses between rows 7 s", "evaluation 30 s")
    assert not any(warning.startswith("audit") for warning in outcome.warnings)


def test_a_night_between_two_rows_hides_no_contradiction():
    dates = [n * 0.5 + (30_000.0 if n > 10 else 0.0) for n in range(1, 21)]
    outcome = audited(result(rows([1.0] * 20, dates)), "run.log")
    assert outcome.warnings[0].startswith("audit: 19 steps take 19 s at the measured pace")


def test_an_excess_that_all_rows_share_is_a_longer_step_time_and_not_a_pause():
    with pytest.raises(ContradictionError, match="by the timestamps of the rows"):
        audited(result(rows([1.0] * 20, [1.5001 * n for n in range(1, 21)])), "run.log")


def test_dates_of_a_copy_of_the_log_are_not_a_clock():
    outcome = audited(result(rows([10.0] * 60, [float(n // 7) for n in range(60)])), "run.log")
    assert outcome.audit is None
    assert outcome.warnings[0].startswith(
        "audit: the steps took 590 s, but the timestamps of their lines span only 8 s: a program that copied the"
    )


def test_dates_that_leave_no_time_for_the_rows_are_a_warning_because_lines_may_have_been_copied():
    outcome = audited(result(rows([10.0] * 20, [float(n) for n in range(1, 21)])), "run.log")
    assert outcome.warnings[0].startswith("audit: 19 steps take 190 s at the measured pace, but 19 s by the timestamps")


@pytest.mark.parametrize("seconds", [2.0, 11.0])
def test_dates_of_whole_minutes_are_not_pauses(seconds):
    dates = [60.0 * (seconds * n // 60) for n in range(1, 200)]
    outcome = audited(result(rows([seconds] * 199, dates)), "run.log")
    assert outcome.audit.explained_by == ()
    assert not any(warning.startswith("audit") for warning in outcome.warnings)


def test_dates_of_whole_seconds_with_a_constant_fraction_are_not_pauses():
    dates = [int(0.05 * n) + 0.25 for n in range(1, 400)]
    outcome = audited(result(rows([0.05] * 399, dates)), "run.log")
    assert outcome.audit.explained_by == ()
    assert not any(warning.startswith("audit") for warning in outcome.warnings)


def test_rows_that_a_buffer_wrote_together_are_not_pauses():
    dates = [2.0 * (n // 16 * 16 + 16) for n in range(160)]
    outcome = audited(result(rows([2.0] * 160, dates)), "run.log")
    assert outcome.audit.explained_by == ()
    assert not any(warning.startswith("audit") for warning in outcome.warnings)


def test_missing_rows_are_not_a_pause():
    steps = rows([1.0] * 40, [1.001 * n for n in range(1, 41)])
    outcome = audited(result(steps.take(np.r_[0:10, 30:40])), "run.log")
    assert outcome.audit.explained_by == ()
    assert outcome.audit.ratio == pytest.approx(1.001)


def test_dates_of_whole_seconds_may_differ_by_their_rounding_without_a_warning():
    outcome = audited(result(rows([0.12] * 10, [float(int(0.12 * n)) for n in range(1, 11)])), "run.log")
    assert not any(warning.startswith("audit") for warning in outcome.warnings)


def test_a_million_rows_are_audited_in_groups():
    count = 300_000
    steps = Steps(
        {
            "index": np.arange(1, count + 1),
            "seconds": np.full(count, 1.0),
            "ended_at": START + np.arange(count) + 500.5 * (np.arange(count) > count // 2),
            "line": np.arange(count),
        }
    )
    outcome = audited(result(steps), "run.log").audit
    assert outcome.clock_seconds == pytest.approx(count + 500.5, rel=1e-4)
    assert outcome.ratio == pytest.approx(1 + 500.5 / count, rel=1e-4)


def test_a_growing_batch_counts_by_its_tokens():
    sizes = [2.0] * 10 + [4.0] * 10
    steps = rows([size / 4 for size in sizes], np.cumsum([size / 4 for size in sizes]).tolist())
    grown = steps.replace(samples=np.array(sizes), tokens=np.array(sizes) * 100)
    outcome = audited(result(grown, warmup=10), "run.log")
    assert outcome.audit.ratio == pytest.approx(1.0)


def test_pooled_runs_add_up_their_work_and_clocks():
    runs = [
        audited(result(rows([start, *[1.0] * 19]), LogClock(name="train_runtime", seconds=start + 19)), "run.log")
        for start in (11.0, 6.0)
    ]
    pooled = pool(runs).audit
    assert (pooled.work, pooled.clock_seconds, pooled.ratio) == (16000.0, 55.0, pytest.approx(55 / 40))
    assert pooled.explained_by == ("run 1: start-up 10 s", "run 2: start-up 5 s")


def test_an_older_file_names_the_clock_of_timestamps_as_a_new_one_does():
    older = Audit.model_validate({"clock": "the dates of the rows", "work": 10, "clock_seconds": 5.0})
    assert older == Audit(clock=DATES, work=10, clock_seconds=5.0)


def test_the_audit_is_in_the_result_of_a_real_log(shared):
    outcome = logs.read(shared / "logs/mlperf/v5.1_nvidia_gb200x8_llama31_8b.txt").audit
    assert outcome.clock == "run_start to run_stop"
    assert outcome.clock_seconds == pytest.approx(4026.5, abs=0.1)
    assert outcome.ratio == pytest.approx(1.0114, abs=1e-3)
    assert any("training without logged rows 45 s" in sentence for sentence in outcome.explained_by)


def test_a_headline_that_differs_from_the_clock_states_the_reason_and_a_contradiction_comes_first(capsys):
    from tensorprimat.cli.extract import say_summary
    from tensorprimat.session.extract import Extracted

    outcome = audited(result(rows([1.0] * 100), LogClock(name="train_runtime", seconds=110.0)), "run.log")
    say_summary(Extracted(logs=("run.log",), result=outcome))
    told = capsys.readouterr().err.splitlines()
    assert told[1].startswith("  warning: audit: 100 steps take 100 s")
    off = "10.0 % above the rate by the log's clock 'train_runtime'"
    assert any("tokens/s" in line and off in line for line in told)


def test_a_clock_that_rows_state_is_compared_with_them_and_only_warns():
    elapsed = Elapsed(name="_runtime", seconds={n: 2.0 * n for n in range(1, 21)}, resolution=0.001)
    steps = rows([1.0] * 20)
    outcome = audited(result(steps).model_copy(update={"evidence": Evidence(elapsed=elapsed)}), "history.csv")
    assert outcome.audit.clock == "_runtime"
    assert outcome.warnings[0].startswith("audit: 19 steps take 19 s at the measured pace, but 38 s by _runtime")


def test_an_interruption_that_megatron_announces_between_rows_names_the_pause(tmp_path):
    lines = megatron(Job(seconds=2.0, last=40))
    place = next(n for n, line in enumerate(lines) if "iteration       20/" in line)
    told = " validation loss at iteration 20 | lm loss value: 1.1E+01 | lm loss PPL: 5.9E+04 |"
    later = [re.sub(r"08:(\d\d):", lambda match: f"08:{int(match[1]) + 1:02}:", line) for line in lines[place + 1 :]]
    (tmp_path / "a.log").write_text("\n".join([*lines[: place + 1], told, *later]) + "\n")
    outcome = logs.read(tmp_path / "a.log")
    assert outcome.audit.explained_by == ("evaluation 60 s",)


def test_composers_training_clock_is_compared_with_its_steps(tmp_path):
    row = (
        "[batch={0}/50]:\n\t Train time/train: {1:.4f}\n\t Train throughput/device/tokens_per_sec: 4096.0000\n"
        "\t Train time/secs_per_step: 20.0000\n"
    )
    for seconds, contradicted in ((20.0, False), (30.0, True)):
        text = "".join(row.format(n, n * seconds / 3600) for n in range(1, 21))
        (tmp_path / "a.log").write_text(text)
        outcome = logs.read(tmp_path / "a.log")
        assert outcome.audit.clock == "time/train"
        assert any(warning.startswith("audit: ") for warning in outcome.warnings) == contradicted


def test_deepspeeds_mean_since_the_start_is_compared_with_its_rows_and_only_warns(tmp_path):
    def log(seconds_of_others):
        path, timed = tmp_path / "run.log", 0.0
        lines = ["[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   train_batch_size ............. 64"]
        for step in range(1, 201):
            timed += (2.0 if step % 10 == 0 else seconds_of_others) if step > 2 else 0.0
            if step % 10 == 0:
                mean = (step - 2) * 64 / timed
                lines.append(
                    f"epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec={mean}, "
                    "CurrSamplesPerSec=32.0"
                )
        path.write_text("\n".join([*lines, ""]))
        return path

    audit = logs.read(log(2.0)).audit
    assert audit is not None
    assert (audit.clock, audit.ratio) == ("RunningAvgSamplesPerSec", pytest.approx(1.0))
    warned = logs.read(log(3.0)).warnings[0]
    assert warned.startswith("audit: 190 steps take 380 s at the measured pace, but 551 s by RunningAvgSamplesPerSec")


def test_faster_first_rows_are_not_reported_as_negative_start_up():
    outcome = audited(
        result(rows([1.0, *[1.0] * 4, *[1.5] * 40]), LogClock(name="train_runtime", seconds=65.0)), "run.log"
    )
    assert not any("-" in sentence for sentence in outcome.audit.explained_by)
    assert outcome.audit.explained_by == ("first rows 2.5 s faster than the measured pace",)


def test_a_contradiction_states_the_time_that_the_clock_leaves_to_the_steps():
    dates = np.cumsum([0.9 + (10.0 if n == 50 else 0.0) for n in range(101)]).tolist()
    outcome = audited(result(rows([1.0] * 101, dates), announced={505: "validation"}), "run.log")
    assert outcome.warnings[0] == (
        "audit: 100 steps take 100 s at the measured pace, but 90 s by the timestamps of the rows, not counting "
        "evaluation 9.9 s: 9.8 s (10 %) are unexplained"
    )


def test_a_contradiction_states_the_whole_clock_where_its_parts_do_not_fit_into_it():
    of_work = np.arange(100) % 10 == 5
    steps = rows(np.where(of_work, 31.0, 1.0).tolist(), list(range(100))).replace(interrupted_by=of_work * 1)
    [warned] = [text for text in audited(result(steps), "run.log").warnings if text.startswith("audit")]
    assert "plus evaluation 300 s, but 99 s in all by the timestamps" in warned


def test_two_times_that_round_to_one_number_are_reported_with_more_digits():
    assert verdict.different_seconds(10.42, 10.38) == ("10.42 s", "10.38 s")
    assert verdict.different_seconds(0.52, 0.61) == ("0.5 s", "0.6 s")


def test_what_was_subtracted_from_the_clock_does_not_explain_a_gap():
    subtracted = Audit(
        clock="the timestamps of the rows",
        ratio=1.2,
        unexplained_seconds=9.0,
        explained_by=("evaluation 60 s, subtracted from the clock",),
    )
    assert verdict.gap_reason(subtracted) == "20.0 % above the rate by the timestamps of the rows: cause unknown"
    counted = subtracted.changed(explained_by=("checkpoint 30 s", *subtracted.explained_by))
    assert verdict.gap_reason(counted).endswith("rows: checkpoint 30 s")


def test_every_measured_segment_is_compared_with_its_dates():
    resumed = [100.0 + 1.3 * n for n in range(1, 16)]
    steps = rows([1.0] * 35, [*np.arange(1.0, 21.0).tolist(), *resumed])
    outcome = audited(result(steps.replace(segment=np.repeat([0, 1], [20, 15]))), "run.log")
    assert "14 steps take 14 s at the measured pace, but 18 s by the timestamps" in outcome.warnings[0]


def test_a_warm_up_that_is_faster_than_the_steps_after_it_is_suspected(read_text):
    def warnings(*times):
        lines = [f'{{"step": {n}, "step_time_s": {time}, "loss": 2.5}}\n' for n, time in enumerate(times, 1)]
        return {one.code: one.values for one in read_text("".join(lines)).remarks}

    noisy = (1.0, 1.1, 0.9, 1.05, 0.95)
    slow = [5 * time for time in noisy]
    assert warnings(*noisy * 2, *slow * 4)["warmup_faster"] == {"steps": 10, "share": pytest.approx(0.2)}
    assert "warmup_faster" not in warnings(*slow * 2, *noisy * 4)
    of_two = rows([*noisy, *slow * 4]).replace(segment=np.repeat([0, 1], [5, 20]))
    assert "warmup_faster" not in [one.code for one in result(of_two).remarks]


def warned(times, dates):
    """Return the warning of the audit, empty if there is none."""
    outcome = audited(result(rows(times, dates)), "a")
    return next((warning for warning in outcome.warnings if warning.startswith("audit")), "")


def test_few_dates_that_contradict_the_steps_only_warn():
    assert "but 9.6 s by the timestamps" in warned([2.0] * 4, [3.2 * n for n in range(4)])
    assert "but 6.4 s by the timestamps" in warned([2.0] * 3, [3.2 * n for n in range(3)])
    assert warned([2.0] * 3, [0.0, 2.0, 6.4]) == "", "one of two gaps may be a pause"
    assert warned([2.0] * 2, [0.0, 3.2]) == ""


@in_each("count", [3, 4, 7, 8, 20])
@in_each(("own", "gap"), [(0.1, 0.3), (0.1, 1.0), (0.3, 0.1), (0.1, 0.1006), (0.02, 0.025)])
def test_short_steps_are_compared_with_dates_as_long_ones_are(count, own, gap):
    """A second of printing, which dates of long trainings may hide, is ten steps of 0.1 s."""
    dates = [gap * n + 0.0007 * (n % 2) for n in range(count)]
    if count >= 8 and gap in (0.3, 1.0) and (count - 1) * (gap - own) > 2:
        with pytest.raises(ContradictionError):
            warned([own] * count, dates)
    else:
        assert ("are unexplained" in warned([own] * count, dates)) == (max(own, gap) > 1.5 * min(own, gap))


def test_a_difference_within_a_second_never_refuses_a_log():
    assert "1.9 s at the measured pace, but 2.9 s" in warned(
        [0.1] * 20, [0.15 * n + 0.0007 * (n % 2) for n in range(20)]
    )
    assert "0.7 s at the measured pace, but 1.6 s" in warned([0.1] * 8, [0.23 * n + 0.0007 * (n % 2) for n in range(8)])


def test_short_steps_with_dates_of_whole_seconds_may_differ_by_their_rounding():
    assert warned([0.4] * 4, [0.0, 1.0, 2.0, 2.0]) == ""
    assert "but 3.0 s by the timestamps" in warned([0.1] * 4, [0.0, 1.0, 2.0, 3.0])


def test_a_log_of_few_dates_is_not_refused_because_one_of_them_goes_back():
    """Prefixes and rows of one log with two dates: 45 days forward, back, and forward again."""
    dates = [4e6 if n in (6, 8) else 0.0 for n in range(1, 9)]
    (warning,) = (text for text in audited(result(rows([1e-4] * 8, dates)), "run.log").warnings if "audit" in text)
    assert "are unexplained" in warning


def test_dates_that_go_back_often_are_no_clock():
    dates = [1.5 * n - (100.0 if n % 5 == 0 else 0.0) for n in range(40)]
    assert audited(result(rows([1.0] * 40, dates)), "run.log").audit is None


def test_stamps_too_coarse_to_see_a_difference_explain_no_gap():
    steps = rows([1.0] * 10, [100.0, 101.0, 102.0, 103.0, 104.0, 106.0, 107.0, 108.0, 109.0, 110.0])
    outcome = audited(result(steps), "run.log")
    assert outcome.audit.ratio > 1.02
    assert verdict.gap_reason(outcome.audit) is None


def test_printed_step_times_may_be_off_by_half_a_digit():
    exact = result(rows([0.9] * 200), LogClock(name="train_runtime", seconds=188.0))
    rounded = exact.changed(provenance=exact.provenance.changed(rounding=0.05 / 0.9))
    told = [any(text.startswith("audit") for text in audited(one, "run.log").warnings) for one in (exact, rounded)]
    assert told == [True, False]
