"""Hugging Face Trainer: rows without times, clocks that give them, summaries that are means, JSON files, ms-swift."""

import json
import math

import pytest
from each import in_each

from tensorprimat.analysis.fairness import judge
from tensorprimat.core.errors import NotALogError
from tensorprimat.core.units import GIB
from tensorprimat.models import flops, shapes

SUMMARY = (
    "{'train_runtime': 836.4, 'train_samples_per_second': 1.196, 'train_steps_per_second': 0.005, 'train_loss': 2.1}"
)
HEADER = """***** Running training *****
  Num examples = 10,000
  Instantaneous batch size per device = 4
  Total train batch size (w. parallel, distributed & accumulation) = 64
  Gradient Accumulation steps = 2
  Total optimization steps = 40
"""


def row(loss=1.25, **more):
    return str({"loss": loss, "grad_norm": 0.75, "learning_rate": 2e-05, "epoch": 0.5, **more})


def bar(step, elapsed, total=40, name=""):
    return f"\r{name} {100 * step // total:2}%|███       | {step}/{total} [{elapsed}<01:00,  1.2s/it]"


def swift(step, seconds, **more):
    """Return a row of ms-swift: the running mean of a step, and the step."""
    minutes, rest = divmod(round(step * seconds), 60)
    return {
        "loss": 1.5,
        "learning_rate": 1e-5,
        "memory(GiB)": 38.5,
        "train_speed(s/it)": round(seconds, 6),
        "global_step/max_steps": f"{step}/100",
        "elapsed_time": f"{minutes}m {rest}s" if minutes else f"{rest}s",
        **more,
    }


def test_one_summary_per_rank_is_one_run_of_means(read_text):
    ranks = [SUMMARY.replace("836.4", f"836.{n}") for n in range(1, 8)]
    result = read_text(HEADER + "\n".join(ranks) + "\n", sequence_length=512, num_gpus=8)
    performance = result.performance_metrics
    assert (performance.basis, performance.samples_per_second) == ("reported_means", 1.196)
    assert performance.tokens_per_second_per_gpu == pytest.approx(1.196 * 512 / 8)
    assert performance.reported.runtime_seconds == 836.4
    assert (len(result.steps), performance.std_step_time_seconds, len(result.runs)) == (0, None, 1)
    assert "means_only" in [one.code for one in result.remarks]


def test_a_summary_alone_says_that_a_resumed_run_may_be_too_fast(read_text):
    document = {"epoch": 3.0, "train_runtime": 836.4, "train_samples_per_second": 1.196, "train_steps_per_second": 0.02}
    remark = "whether the run was resumed"
    assert any(remark in warning for warning in read_text(json.dumps(document, indent=4)).warnings)
    known = HEADER + "\n".join([row(2.5), row(2.0), SUMMARY]) + "\n"
    assert not any(remark in warning for warning in read_text(known).warnings)


def test_losses_without_times_are_kept_with_the_summary(read_text):
    result = read_text(HEADER + "\n".join([row(2.5), row(float("nan")), row(2.0), SUMMARY]) + "\n")
    assert [step.loss for step in result.steps][::2] == [2.5, 2.0]
    assert math.isnan(result.steps[1].loss)
    assert result.performance_metrics.samples_per_second == 1.196
    assert result.performance_metrics.basis == "reported_means"
    assert "loss_nan" in [one.code for one in result.remarks]


def test_configuration_comes_from_the_header(read_text):
    config = read_text(HEADER + SUMMARY + "\n").training_config
    assert (config.global_batch_size, config.micro_batch_size, config.max_steps) == (64, 4, 40)
    assert config.gradient_accumulation_steps == 2


def test_numbers_in_quotes_are_read(read_text):
    quoted = "{'train_runtime': '2.534e+04', 'train_samples_per_second': '4.197', 'train_steps_per_second': '0.066'}"
    result = read_text(
        "{'loss': '1.2', 'grad_norm': '0.7', 'learning_rate': '1e-05', 'epoch': '0.1'}\n" + quoted + "\n"
    )
    assert result.steps[0].loss == 1.2
    assert result.performance_metrics.samples_per_second == 4.197
    assert result.performance_metrics.reported.runtime_seconds == 25340


def test_losses_alone_are_refused(read_text):
    with pytest.raises(NotALogError):
        read_text("\n".join([row(2.5), row(2.25), row(2.0)]) + "\n")


def test_the_step_time_of_trl_is_not_a_step_time(read_text):
    with pytest.raises(NotALogError, match="step_time, which does not include the optimizer"):
        read_text("\n".join(row(0.5 + n / 100, step_time=8.25) for n in range(40)))


def test_the_bar_around_a_row_gives_its_step_and_a_coarse_clock_its_time(read_text):
    text = bar(0, "00:00")
    for step, elapsed in ((10, "05:00"), (20, "10:00"), (30, "15:10")):
        text += bar(step, elapsed) + f"\n{row()}\n" + bar(step, elapsed)
    result = read_text(HEADER + text + "\n")
    assert result.steps.column("index").tolist() == [10, 20, 30]
    assert [step.seconds for step in result.steps] == [None, 30.0, 31.0]
    assert result.steps.column("covers").tolist() == [10, 10, 10]


def test_a_bar_that_is_not_drawn_again_after_a_row_gives_its_time_before_an_evaluation(read_text):
    text, seconds = bar(0, "00:00", 400), 0
    for step in range(1, 401):
        seconds += 3
        text += bar(step, f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}", 400)
        if step % 100 == 0:
            text += f"\n{row()}\n" + bar(8, "00:59", 8) + "\n{'eval_loss': 1.5, 'eval_runtime': 60.0, 'epoch': 0.5}\n"
            seconds += 60
    steps = read_text(text + "\n").steps
    assert steps.column("index").tolist() == [100, 200, 300, 400]
    assert [step.seconds for step in steps[1:]] == pytest.approx([3.6] * 3)
    assert [step.interrupted_by for step in steps[1:]] == ["validation"] * 3


def test_a_clock_too_coarse_for_a_step_gives_none(read_text):
    text = bar(0, "00:00")
    for step, elapsed in ((10, "00:05"), (20, "00:10"), (30, "00:15")):
        text += bar(step, elapsed) + f"\n{row()}\n" + bar(step, elapsed)
    result = read_text(HEADER + text + "\n" + SUMMARY + "\n")
    assert "seconds" not in result.steps.seen
    assert result.performance_metrics.samples_per_second == 1.196


def test_progress_bars_of_loading_and_evaluation_are_not_training_steps(read_text):
    text = bar(4, "00:01", 4, "Loading checkpoint shards:") + bar(1, "00:00", 1)  # the second one is of the data
    text += bar(0, "00:00") + bar(10, "05:00") + f"\n{row()}\n"
    text += bar(10, "05:00") + bar(3, "00:09", 5) + "\n{'eval_loss': 1.5, 'eval_runtime': 9.1, 'epoch': 0.5}\n"
    text += bar(20, "10:20") + f"\n{row()}\n" + bar(20, "10:20") + f"\n{row()}\n" + bar(30, "15:20")
    text += "\n***** Running TOFU evaluation suite *****\n" + bar(40, "20:20") + f"\n{row()}\n"
    kinds = [(step.index, step.interrupted_by) for step in read_text(text).steps]
    assert kinds == [(10, ""), (20, "validation"), (30, ""), (40, "validation")]
    assert read_text(bar(0, "00:00", 3) + f"\n{SUMMARY}\n").training_config.max_steps is None


def test_the_running_mean_of_swift_becomes_times_of_steps(read_text):
    means = {10: 2.500001, 20: 2.000001, 30: 1.900001, 40: 1.850001}
    text = "\n".join(json.dumps(swift(step, mean)) for step, mean in means.items()) + "\n"
    result = read_text(text)
    assert result.steps.column("index").tolist() == [10, 20, 30, 40]
    assert [step.seconds for step in result.steps[1:]] == pytest.approx([1.5, 1.7, 1.7], rel=1e-5)
    assert result.steps[0].memory_reserved_peak_bytes == 38.5 * GIB


def test_a_mean_rounded_to_four_digits_gives_no_times(read_text):
    rows = [swift(step, 1.881) | {"train_speed(s/it)": "1.881"} for step in (2000, 2005, 2010, 2015)]
    result = read_text("\n".join(str(changes) for changes in rows) + "\n")
    assert "seconds" not in result.steps.seen
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.881)
    assert result.performance_metrics.basis == "reported_means"


def test_the_rate_that_swift_prints_per_row_is_a_rate(read_text):
    rows = [
        str(swift(step, 1.881) | {"train_speed(s/it)": "1.881", "tokens_per_gpu_per_sec": "256.8"})
        for step in (5, 10, 15)
    ]
    assert read_text("\n".join(rows) + "\n").performance_metrics.tokens_per_second_per_gpu == pytest.approx(256.8)


def test_a_resumed_swift_is_timed_by_its_steps_since_the_resume(read_text):
    rows = []
    for step in range(45, 145, 5):
        elapsed = 3.3 + 1.2617 * (step - 40)
        rows.append(
            {"loss": round(5 - step / 100, 8), "learning_rate": 1e-05, "epoch": step / 50}
            | {"global_step/max_steps": f"{step}/140", "elapsed_time": f"{int(elapsed // 60)}m {int(elapsed % 60)}s"}
            | {"train_speed(s/it)": round(elapsed / (step - 40), 6)}
        )
    result = read_text("".join(json.dumps(row) + "\n" for row in rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.2617, rel=1e-4)


def test_the_warnings_of_an_untimed_resume_are_not_those_of_the_timed_training(read_text):
    def row(step, began, pace):
        values = {"loss": round(5 - step / 100, 8), "learning_rate": 1e-05, "epoch": step / 50}
        speed = {"elapsed_time": f"{int(pace * (step - began))}s", "train_speed(s/it)": pace}
        return values | {"global_step/max_steps": f"{step}/100"} | speed

    def end(step, loss):
        rates = {"train_samples_per_second": round(8 * step / 16.2, 3), "train_steps_per_second": round(step / 16.2, 3)}
        return {"train_runtime": 16.2, **rates, "train_loss": loss, "epoch": step / 50} | {
            "global_step/max_steps": f"{step}/100", "elapsed_time": "16s", "train_speed(s/it)": 0.27
        }  # fmt: skip

    whole = [*(row(step, 0, 0.270123) for step in range(5, 65, 5)), end(60, 4.7)]
    resumed = [*(row(step, 40, 0.260668) for step in range(45, 105, 5)), end(100, 2.6)]
    result = read_text("".join(json.dumps(one) + "\n" for one in [*whole, *resumed]))
    assert result.performance_metrics.measured_steps == 50
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.270123, rel=1e-5)
    assert not [warning for warning in result.warnings if "step times" in warning and "unknown" in warning]
    assert {"means_only", "figure_of_run_only", "summary_only"}.isdisjoint(one.code for one in result.remarks)


def state(**more):
    """Return the text of trainer_state.json of a run that counted its tokens."""
    rows = [
        {"epoch": 0.1, "loss": 3.0 - n / 10, "learning_rate": 1e-5, "step": 10 * n, "train_runtime": 7.5123 + 5 * n}
        | {"num_input_tokens_seen": 40960 * n, "train_tokens_per_second": 999.9}
        for n in range(1, 6)
    ]
    last = {"epoch": 1.0, "step": 50, "train_loss": 2.7, "train_runtime": 35.0, "train_samples_per_second": 11.4}
    last |= {"train_steps_per_second": 1.429, "total_flos": 1.5e15}
    document = {"global_step": 50, "max_steps": 50, "train_batch_size": 2, "log_history": [*rows, last], **more}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def test_the_state_of_a_checkpoint_that_states_no_time_is_refused_for_that_reason(read_text):
    rows = [{"loss": 2.5, "learning_rate": 1e-05, "epoch": step / 40, "step": step} for step in range(10, 160, 10)]
    text = json.dumps({"global_step": 150, "max_steps": 400, "logging_steps": 10, "log_history": rows})
    with pytest.raises(
        NotALogError, match=r"15 rows but none to measure: no row states a time or a rate; read another"
    ):
        read_text(text)


def test_trainer_state_gives_times_and_tokens_from_its_counters(read_text):
    result = read_text(state())
    assert result.steps.column("index").tolist() == [10, 20, 30, 40, 50]
    assert [step.seconds for step in result.steps[1:]] == pytest.approx([0.5] * 4)
    assert result.steps[2].tokens == 4096
    assert result.performance_metrics.tokens_per_second == pytest.approx(8192)
    assert result.performance_metrics.reported.samples_per_second == 11.4
    assert (result.training_config.max_steps, result.training_config.micro_batch_size) == (50, 2)


@in_each("resumes", [(60,), (60, 100), (110,)])
def test_the_state_of_a_resumed_training_counts_the_time_of_every_process(read_text, resumes):
    rows, began = [], 0
    for step in range(5, 125, 5):
        began = max((resume for resume in resumes if resume < step), default=0)
        rows.append({"epoch": step / 50, "loss": 5.0 - step / 100, "learning_rate": 1e-5, "step": step})
        rows[-1] |= {"train_runtime": 0.4 + 0.5 * (step - began), "num_input_tokens_seen": 1000 * step}
    end = {"epoch": 2.4, "step": 120, "train_loss": 2.4, "train_runtime": 0.5 + 0.5 * (120 - began)}
    end |= {"train_samples_per_second": 85.3, "train_steps_per_second": round(120 / end["train_runtime"], 3)}
    document = {"global_step": 120, "max_steps": 120, "logging_steps": 5, "log_history": [*rows, end]}
    result = read_text(json.dumps(document, indent=2))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5)
    assert result.performance_metrics.tokens_per_second == pytest.approx(2000)
    assert not [warning for warning in result.warnings if "outlier" in warning or warning.startswith("audit")]


@pytest.mark.parametrize(("mean_loss", "rate"), [(2.05, 8.0), (0.35, None)], ids=["whole", "resumed"])
def test_a_mean_loss_far_below_all_losses_shows_a_resume_that_the_rates_hide(read_text, mean_loss, rate):
    rows = [{"epoch": n / 10, "loss": 3.0 - n / 10, "learning_rate": 1e-5, "step": 10 * n} for n in range(1, 11)]
    end = {"epoch": 1.0, "step": 100, "train_loss": mean_loss, "train_runtime": 800.0}
    end |= {"train_samples_per_second": 8.0, "train_steps_per_second": 0.125}
    document = {"global_step": 100, "max_steps": 100, "log_history": [*rows, end]}
    if rate is None:
        with pytest.raises(NotALogError, match="the mean loss shows a resume at about step 82"):
            read_text(json.dumps(document, indent=2))
    else:
        assert read_text(json.dumps(document, indent=2)).performance_metrics.samples_per_second == rate


def test_steps_of_a_state_keep_the_line_of_their_entry(read_text):
    lines = state().split("\n")
    for step in read_text(state()).steps:
        entry = "\n".join(lines[step.line - 1 : step.line + 9])
        assert f'"step": {step.index}' in entry


@pytest.mark.parametrize("key", ["train_samples", "total_flos"])
def test_a_trainers_results_file_gives_reported_means(read_text, key):
    document = {"epoch": 1.0, key: 1000, "train_loss": 2.1, "train_runtime": 836.4, "train_samples_per_second": 1.196}
    result = read_text(json.dumps({**document, "train_steps_per_second": 0.005}, indent=4))
    assert (result.provenance.format, result.performance_metrics.samples_per_second) == ("huggingface", 1.196)


@in_each("text", ['{"a": ' * 20000, '{"loss": 1}', "{}", "{'loss': 1.5}", '[{"loss": 1.5, "epoch": 1}', "{\n"])
def test_other_dictionaries_are_refused(read_text, text):
    with pytest.raises(NotALogError):
        read_text(text + "\n")


def test_a_row_printed_twice_counts_once_but_equal_rows_of_a_run_without_progress_all_count(read_text):
    row = "{{'loss': {0}, 'grad_norm': {1}, 'learning_rate': 1e-05, 'epoch': 0.5}}\n"
    end = "{'train_runtime': 836.3, 'train_samples_per_second': 1.196, 'train_steps_per_second': 0.005}\n"
    assert len(read_text("".join(row.format(9 - n / 10, 1.5) * 2 for n in range(20)) + end).steps) == 20
    assert len(read_text("".join(row.format(0.0, "nan") for n in range(20)) + end).steps) == 20


def test_two_ranks_that_report_at_their_own_pace_are_one_run(read_text):
    def rows(rank, first, last):
        steps = (f"'loss': {9 - n / 10}, 'grad_norm': 1.5, 'epoch': {n}" for n in range(first, last))
        return "".join(f"{rank}: {{{changes}}}\n" for changes in steps)

    end = "0: {'train_runtime': 836.3, 'train_samples_per_second': 1.196, 'train_steps_per_second': 0.005}\n"
    assert len(read_text(rows(0, 0, 5) + rows(1, 0, 9) + rows(0, 5, 9) + end).steps) == 9


def g4(value):
    """Return a float as transformers 5 prints it."""
    return f"{value:.4g}"


def five(step, seconds, *, epoch):
    changes = {"loss": g4(2.0), "grad_norm": g4(1.0), "learning_rate": g4(5e-5), "epoch": g4(epoch)}
    return str(
        {**changes, "num_input_tokens_seen": step * 1000, "train_runtime": g4(seconds), "train_tokens_per_second": "1"}
    )


def test_rows_whose_clock_has_four_digits_are_merged_until_it_is_fine_enough(read_text):
    text = bar(0, "00:00", 5000)
    for step in range(10, 5001, 10):
        elapsed = f"{step // 3600}:{step // 60 % 60:02}:{step % 60:02}"
        text += bar(step, elapsed, 5000) + f"\n{five(step, 1.0 * step, epoch=step / 5000)}\n" + bar(step, elapsed, 5000)
    text += (
        "\n{'train_runtime': '5000', 'train_samples_per_second': '8', 'train_steps_per_second': '1', 'epoch': '1'}\n"
    )
    result = read_text(text)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0, rel=2e-3)
    assert result.performance_metrics.measured_steps > 4500
    assert result.audit.clock == "train_runtime"
    assert result.audit.ratio == pytest.approx(1.0, rel=3e-3)


def test_rows_without_a_bar_count_their_share_of_the_steps_of_the_summary(read_text):
    rows = [five(step, 0.3 * step + 2, epoch=step / 500) for step in range(10, 501, 10)]
    summary = (
        "{'train_runtime': '152', 'train_samples_per_second': '26.32', 'train_steps_per_second': '3.289', 'epoch': '1'}"
    )
    result = read_text("\n".join([*rows, summary]) + "\n")
    assert result.steps.column("index").tolist()[-1] == 500
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.3, rel=0.01)
    assert any("start-up" in sentence or result.audit.ratio < 1.02 for sentence in (*result.audit.explained_by, ""))


def test_llama_factorys_elapsed_time_times_rows_that_count_no_tokens(read_text):
    rows = [
        {"current_steps": n, "total_steps": 400, "loss": 2.5 - n / 1000, "lr": 1e-05, "epoch": n / 100}
        | {"elapsed_time": f"{3 * n // 3600}:{3 * n // 60 % 60:02}:{3 * n % 60:02}"}
        for n in range(100, 401, 100)
    ]
    result = read_text("".join(json.dumps(row) + "\n" for row in rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(3.0)


def factory(n, seconds, **more):
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    row = {"current_steps": n, "total_steps": 500, "loss": 2.5 - n / 1000, "lr": 1e-05, "epoch": n / 100}
    row |= {"elapsed_time": clock, **more}
    return json.dumps(row) + "\n"


def test_the_clock_of_a_resumed_training_excludes_the_steps_before(read_text):
    rows = [factory(n, 6 * n) for n in range(10, 310, 10)] + [factory(n, 6 * (n - 300)) for n in range(310, 510, 10)]
    result = read_text("".join(rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(6.0)
    assert "reported_differs" not in [one.code for one in result.remarks]


RESUMED = HEADER + "  Continuing training from checkpoint, will skip to saved global_step\n"
STATED = "  Continuing training from global step 36\n"
FEW_STEPS = "".join(bar(*each) for each in ((0, "00:00"), (37, "02:00"), (38, "03:00"), (39, "04:00"), (40, "05:00")))
ALL_SAMPLES = "{'train_runtime': 320.0, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.125, 'epoch': 1.0}"


def test_rates_of_a_resumed_training_count_only_the_steps_that_its_clock_timed(read_text):
    result = read_text(RESUMED + STATED + f"{FEW_STEPS}\n{ALL_SAMPLES}\n")
    assert result.performance_metrics.samples_per_second == pytest.approx(8.0 * 4 / 40)
    assert ("resume_corrected", "resumed at step 36", "40") in [
        (one.code, one.values.get("what"), one.values.get("whole")) for one in result.remarks
    ]
    newer = "  Resuming training from checkpoint with epoch 0 and global step 36\n"
    assert read_text(HEADER + newer + f"{FEW_STEPS}\n{ALL_SAMPLES}\n").warnings == result.warnings
    assert read_text(HEADER + f"{FEW_STEPS}\n{ALL_SAMPLES}\n").performance_metrics.samples_per_second == 8.0  # fresh


def test_the_tokens_of_a_resumed_training_count_no_step_before_it(read_text):
    tokens = ALL_SAMPLES.replace("}", ", 'train_tokens_per_second': 2048.0, 'num_input_tokens_seen': 5242880}")
    figures = read_text(RESUMED + STATED + f"{FEW_STEPS}\n{tokens}\n").performance_metrics
    assert figures.tokens_per_second == pytest.approx(8 * 2048 * 4 / 40)  # of 8 processes


def test_a_resume_that_only_the_bar_shows_reduces_the_rates_as_well(read_text):
    result = read_text(RESUMED + f"{FEW_STEPS}\n{ALL_SAMPLES}\n{row()}\n")
    assert result.performance_metrics.samples_per_second == pytest.approx(8.0 * 4 / 40)
    assert any("resumed at about step 36" in warning for warning in result.warnings)


def test_rates_that_count_only_the_steps_since_a_resume_stay_as_they_are(read_text):
    since = ALL_SAMPLES.replace("8.0", "0.8").replace("0.125", "0.0125")  # of transformers 5.19 and later
    for text in (RESUMED + STATED + FEW_STEPS, HEADER + FEW_STEPS):
        result = read_text(f"{text}\n{since}\n{row()}\n")
        assert result.performance_metrics.samples_per_second == 0.8
        assert "resume_corrected" not in [one.code for one in result.remarks]


def test_rates_of_a_training_that_stopped_early_count_only_its_own_steps(read_text):
    early = "".join(bar(step, f"0{step // 6}:{step % 6}0") for step in range(31))
    summary = ALL_SAMPLES.replace("320.0", "301.0").replace("0.125", "0.133")
    result = read_text(HEADER + f"{early}\n{summary}\n{row()}\n")
    assert result.performance_metrics.samples_per_second == pytest.approx(8.0 * 30 / 40)
    assert ("resume_corrected", "stopped at step 30", "40") in [
        (one.code, one.values.get("what"), one.values.get("whole")) for one in result.remarks
    ]


def test_the_last_drawing_alone_shows_an_early_stop_and_no_resume(read_text):
    summary = ALL_SAMPLES.replace("320.0", "301.0").replace("0.125", "0.133")
    result = read_text(HEADER + f"{row()}\n{row()}\n{row()}\n{bar(30, '05:00')}\n{summary}\n")
    assert result.performance_metrics.samples_per_second == pytest.approx(8.0 * 30 / 40)


def test_a_summary_of_weights_and_biases_states_the_step_of_an_early_stop(read_text):
    summary = {"train/global_step": 33, "train_runtime": 5.18, "train_samples_per_second": 92.521, "_wandb": {}}
    result = read_text(json.dumps(summary | {"train_steps_per_second": 11.565, "_runtime": 9, "train/loss": 6.9}))
    assert result.performance_metrics.samples_per_second == pytest.approx(92.521 * 33 / 60, rel=2e-3)


def test_a_bar_that_the_log_lost_is_no_early_stop(read_text):
    early = "".join(bar(step, f"0{step // 6}:{step % 6}0") for step in range(31))
    summary = ALL_SAMPLES.replace("320.0", "400.0").replace("0.125", "0.1")
    assert read_text(HEADER + f"{early}\n{summary}\n{row()}\n").performance_metrics.samples_per_second == 8.0


@pytest.mark.parametrize("stated", [STATED, ""], ids=["stated", "by the bar"])
def test_the_pace_of_a_resumed_training_without_a_summary_excludes_the_steps_before(read_text, stated):
    result = read_text(RESUMED + stated + f"{FEW_STEPS}\n{row()}\n")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(75.0)


def test_a_training_that_starts_anew_after_a_resumed_one_counts_all_of_its_steps(read_text):
    result = read_text(RESUMED + STATED + f"{FEW_STEPS}\n" + HEADER + f"{bar(40, '05:20')}\n{ALL_SAMPLES}\n")
    assert result.performance_metrics.samples_per_second == 8.0


def test_the_audit_of_a_resumed_training_compares_its_own_steps(read_text):
    text = bar(0, "00:00")
    for step, elapsed in ((22, "02:00"), (24, "04:00"), (26, "06:00"), (28, "08:00"), (30, "10:00")):
        text += bar(step, elapsed, 30) + f"\n{row()}\n" + bar(step, elapsed, 30)
    end = "{'train_runtime': 601.0, 'train_samples_per_second': 3.195, 'train_steps_per_second': 0.0499168}"
    header = RESUMED.replace("steps = 40", "steps = 30")
    result = read_text(header + "  Continuing training from global step 20\n" + text + f"\n{end}\n")
    assert (result.audit.clock, result.audit.ratio) == ("train_runtime", pytest.approx(1.0, rel=0.01))


def test_llama_factorys_memory_is_the_peak_of_the_allocator(read_text):
    memory = read_text("".join(factory(n, 6 * n, vram_allocated=40.25, vram_reserved=50.5) for n in range(10, 310, 10)))
    peaks = memory.memory_metrics
    assert (peaks.peak_memory_allocated_gb, peaks.peak_memory_reserved_gb) == pytest.approx((43.218, 54.224), rel=1e-4)


def test_optimum_habanas_gb_are_gib_of_the_allocators_peak(read_text):
    memory = {"memory_allocated (GB)": 20.5, "max_memory_allocated (GB)": 40.25, "total_memory_available (GB)": 94.62}
    peaks = read_text("".join(factory(n, 6 * n, **memory) for n in range(10, 310, 10))).memory_metrics
    assert (peaks.peak_memory_allocated_gb, peaks.peak_memory_reserved_gb) == (pytest.approx(43.218, rel=1e-4), None)


COLLECTED = {
    "docker": "2026-01-05T08:{:02}:{:02}.250000000Z ",
    "docker compose": "trainer-1  | 2026-01-05T08:{:02}:{:02}.250000000Z ",
    "journald": "Jan 05 08:{:02}:{:02} node1 python[123]: ",
}


def collected(style, *lines):
    """Return lines with the timestamps of a collector, six seconds apart."""
    return "".join(COLLECTED[style].format(6 * n // 60, 6 * n % 60) + line + "\n" for n, line in enumerate(lines))


def losses(count):
    return [f"{{'loss': {3 - n / 100:.4f}, 'grad_norm': 1.5, 'learning_rate': 1e-05}}" for n in range(count)]


@in_each("style", COLLECTED)
def test_rows_without_any_clock_are_timed_by_the_stamps_of_a_collector(read_text, style):
    result = read_text(collected(style, "TrainingArguments(logging_steps=10, )", *losses(80)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.6)
    assert result.provenance.timing == "timestamps"


def test_stamps_of_rows_that_cover_an_unknown_number_of_steps_are_not_a_clock(read_text):
    with pytest.raises(NotALogError, match=r"does not say how many steps a row covers \(logging_steps\)"):
        read_text(collected("docker", *losses(80)))


def test_a_row_that_a_callback_of_llama_factory_prints_too_is_one_row(read_text):
    text, tokens = "", 0
    for n in range(1, 31):
        tokens += 131072
        text += f"{{'loss': {2 - n / 100}, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': {n / 10}, "
        text += f"'num_input_tokens_seen': {tokens}}}\n"
        text += f"[INFO|2026-01-05 08:00:00] llamafactory.train.callbacks:143 >> {{'loss': {2 - n / 100:.4f}, "
        text += f"'learning_rate': 5.0000e-05, 'epoch': {n / 10:.2f}, 'throughput': {1000 + n:.2f}}}\n"
        text += bar(n, f"{10 * n}:00", total=30) + "\n"
    result = read_text(text, num_gpus=8)
    assert len(result.steps) == 30
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(600)
    assert result.performance_metrics.tokens_per_second == pytest.approx(131072 / 600)


UNSLOTH = r"""
   \\   /|    NVIDIA H100 80GB HBM3. Num GPUs = 1. Max memory: 79.097 GB. Platform: Linux.
   \\   /|    Num examples = 51,760 | Num Epochs = 1 | Total steps = 40
O^O/ \_/ \    Batch size per device = 2 | Gradient accumulation steps = 4
\        /    Data Parallel GPUs = 1 | Total batch size (2 x 4 x 1) = 8
"""


def test_unsloths_banner_states_the_batch_and_the_gpus(read_text):
    config = read_text(UNSLOTH + row() + "\n" + row(1.5) + "\n" + SUMMARY).training_config
    assert (config.micro_batch_size, config.gradient_accumulation_steps) == (2, 4)
    assert (config.global_batch_size, config.num_gpus) == (8, 1)
    earlier = "Unsloth - 2x faster free finetuning | Num GPUs = 2\n" + row() + "\n" + row(1.5) + "\n" + SUMMARY
    assert read_text(earlier).training_config.num_gpus == 2


@in_each(
    ("line", "trainable", "every"),
    [
        ("trainable params: 20,971,520 || all params: 8,051,232,768 || trainable%: 0.2605", 20_971_520, 8_051_232_768),
        (' "-____-"     Trainable parameters = 41,943,040 of 8,072,204,288 (0.52% trained)', 41_943_040, 8_072_204_288),
        (
            "trainable params: 8,030,261,248 || all params: 8,030,261,248 || trainable%: 100",
            8_030_261_248,
            8_030_261_248,
        ),
        ("  Number of trainable parameters = 1,003,782,656", None, None),  # of one GPU under FSDP
    ],
)
def test_trainable_parameters_are_read_where_the_whole_model_is_stated_with_them(read_text, line, trainable, every):
    model = read_text(f"{line}\n{HEADER}{row()}\n{row(1.2)}\n{SUMMARY}\n").model
    assert (model.trainable_parameters, model.parameters) == (trainable, every)


def trainers_count(read_text, count, gpus):
    line = f"  Number of trainable parameters = {count}"
    text = f"{HEADER}{line}\n{row()}\n{SUMMARY}\n"
    return read_text(text, model_name="llama", sequence_length=2048, num_gpus=gpus)


@in_each(("gpus", "of_full"), [(1, "8,030,261,248"), (8, "8,030,261,248"), (8, "1,003,782,656")])
def test_the_trainers_count_of_one_process_shows_that_adapters_train(read_text, gpus, of_full):
    full, lora = trainers_count(read_text, of_full, gpus), trainers_count(read_text, "20,971,520", gpus)
    assert full.model.trainable_parameters is None, "a share under FSDP, so it states no total"
    assert "one side trains only some of its parameters" in judge(full, lora).sentence
    assert judge(full, full).verdict != "not_comparable"
    shaped = lora.model_copy(update={"model": lora.model.model_copy(update={"shape": shapes.of_name("llama").shape})})
    assert flops.charged_per_token(shaped) is None, "which layers are frozen decides what a token costs"


def test_a_log_of_adapters_is_not_compared_with_one_of_full_training(read_text):
    of_8 = " || all params: 8,051,232,768 || trainable%: x"
    full, lora = (
        read_text(
            f"trainable params: {count}{of_8}\n{HEADER}{row()}\n{SUMMARY}\n",
            model_name="llama",
            sequence_length=2048,
            num_gpus=8,
        )
        for count in ("8,051,232,768", "20,971,520")
    )
    fairness = judge(full, lora)
    assert fairness.verdict == "not_comparable"
    assert "trainable parameters all against 20,971,520" in fairness.sentence


def test_axolotl_rows_with_torchtunes_name_of_a_rate_are_read_as_rows_of_the_trainer(read_text):
    text = ""
    for step in range(1, 31):
        text += (
            f" {100 * step // 30}%|███   | {step}/30 [{21 * step // 60:02d}:{21 * step % 60:02d}<00:50,  21.0s/it]\r"
        )
        text += (
            f"{{'loss': {1.5 - step / 100:.4f}, 'grad_norm': 0.91, 'learning_rate': 1.8e-05, "
            "'memory/max_allocated (GiB)': 21.1, 'memory/device_reserved (GiB)': 24.3, "
            f"'tokens_per_second_per_gpu': {1950 + step}.25, 'total_tokens': {40960 * step}, "
            f"'epoch': {step / 30:.2f}}}\n"
        )
    result = read_text(text)
    assert len(result.steps) == 30
    assert result.performance_metrics.tokens_per_second == pytest.approx(40960 / 21)
    assert result.memory_metrics.peak_memory_reserved_gb == pytest.approx(24.3 * 1.073741824, rel=1e-3)


def test_the_engine_of_deepspeed_under_the_trainer_states_precision_and_stage(read_text):
    stated = ("fp16_enabled ....... True", "zero_optimization_stage ...... 3", "optimizer_name ..... adamw")
    dump = "".join(f"[2026-01-05 08:00:00,100] [INFO] [config.py:752:print]   {line}\n" for line in stated)
    config = read_text(f"{dump}{HEADER}{row()}\n{SUMMARY}\n").training_config
    assert (config.precision, config.strategy, config.optimizer) == ("fp16", "zero-3", "adamw")
    assert config.global_batch_size == 64
