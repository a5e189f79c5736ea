"""Figures held against one another: counters, clocks, rates and TFLOP/s decide what a printed rate counts."""

import json

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.audit import agreement, reported
from tensorprimat.core.errors import ContradictionError, InputError
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Reported, Result, TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import summarise
from tensorprimat.logs.format import UserFacts
from tensorprimat.models import flops, presets

LENGTH, MICRO, SECONDS, STEPS = 4096, 4, 21.0, 40


def axolotl(gpus, accumulated, *, counts, bar, world):
    """Return a log of axolotl. counts: the tokens in its rate per GPU; bar: with a clock; world: states the GPUs."""
    of_step = LENGTH * MICRO * accumulated * gpus
    rate = {"one GPU": of_step / gpus, "all GPUs, one batch": of_step / accumulated}[counts] / SECONDS
    lines = ["rank: 0, local_rank: 0, world_size: 8, local_world_size: 8".replace("8", str(gpus))] * world
    lines += [
        f"  Instantaneous batch size per device = {MICRO}",
        f"  Total train batch size (w. parallel, distributed & accumulation) = {of_step // LENGTH}",
        f"  Gradient Accumulation steps = {accumulated}",
        f"  Total optimization steps = {STEPS}",
    ]
    for step in range(1, STEPS + 1):
        minutes, rest = divmod(int(step * SECONDS), 60)
        lines += [f" {100 * step // STEPS}%|##  | {step}/{STEPS} [{minutes:02}:{rest:02}<01:00, 21.00s/it]"] * bar
        row = {"loss": 2 - step / 1000, "grad_norm": 0.9, "learning_rate": 1e-5, "epoch": step / STEPS}
        lines.append(f"{row | {'tokens/train_per_sec_per_gpu': rate, 'tokens/trainable': of_step * step}}")
    runtime = STEPS * SECONDS + 30
    end = {"train_runtime": runtime, "train_samples_per_second": of_step / LENGTH * STEPS / runtime}
    lines.append(f"{end | {'train_steps_per_second': STEPS / runtime, 'train_loss': 1.98, 'epoch': 1.0}}")
    return "\n".join(lines) + "\n"


@in_each("world", [True, False])
@in_each("bar", [True, False])
@in_each("counts", ["one GPU", "all GPUs, one batch"])
@in_each(("gpus", "accumulated"), [(8, 1), (8, 4), (2, 8)])
def test_a_rate_per_gpu_counts_what_the_counters_and_the_clock_of_the_log_say(
    read_text, gpus, accumulated, counts, bar, world
):
    result = read_text(axolotl(gpus, accumulated, counts=counts, bar=bar, world=world))
    figures = result.performance_metrics
    assert figures.tokens_per_second_per_gpu == pytest.approx(LENGTH * MICRO * accumulated / SECONDS, rel=1e-3)
    assert figures.tokens_per_second == pytest.approx(gpus * LENGTH * MICRO * accumulated / SECONDS, rel=1e-3)
    assert figures.basis == ("step_times" if bar else "reported_rates")
    named = [warning for warning in result.warnings if "the GPUs" in warning or "all GPUs, because" in warning]
    assert bool(named) == (counts != "one GPU")


@in_each("name", ["train.log", "with_bar.log", "train_results.json"])
def test_the_final_rate_of_the_trainer_counts_one_process(shared, name):
    result = logs.read(shared / "cases" / "J-hf-tokens-per-process" / name)
    figures = result.performance_metrics
    assert (figures.tokens_per_second, figures.tokens_per_second_per_gpu) == (32768, 4096)
    assert ("process_rate_corrected", 4096) in [(one.code, one.values.get("printed")) for one in result.remarks]


def means(*, gpus=None, length=2048, samples=16.0, **printed):
    """Return a result of means of a whole run, with the rates that a log prints."""
    figures = PerformanceMetrics(samples_per_second=samples, basis="reported_means", reported=Reported(**printed))
    shape = presets.find_preset("llama").shape
    read = Result(
        platform="nvd",
        gpu_info=GpuInfo(device_name="H100 SXM"),
        model=Model(shape=shape),
        training_config=TrainingConfig(num_gpus=gpus, sequence_length=length),
        performance_metrics=figures,
    )
    return summarise(reported.with_means(agreement.with_scopes(read)))


def told(result):
    return [warning for warning in result.warnings if warning.startswith(("tokens_per_second: ", "tflops"))]


@in_each(
    ("rates", "right"),
    [
        ({"tokens_per_second": 32768.0, "gpus": 8}, 32768),
        ({"tokens_per_second": 4096.0, "gpus": 8}, 32768),  # of one GPU
        ({"tokens_per_second": 4096.0}, None),  # 8 times as much, and nothing says what 8 is
        ({"tokens_per_second": 30000.0}, 30000),  # sequences are shorter than the longest
        ({"tokens_per_second": 4096.0, "counted_tokens_per_second": 32768.0}, 32768),
        ({"tokens_per_second_per_gpu": 32768.0, "gpus": 8}, 32768),  # of all GPUs
        ({"tokens_per_second_per_process": 4096.0, "length": None}, None),
        ({"tokens_per_second": 4096.0, "tokens_per_second_per_gpu": 4096.0, "gpus": 8, "length": None}, None),
    ],
)
def test_of_means_that_contradict_one_another_the_one_that_others_support_holds(rates, right):
    result = means(**rates)
    assert result.performance_metrics.tokens_per_second == right
    is_consistent = rates.get("tokens_per_second") == 32768
    assert bool(told(result)) != is_consistent
    assert summarise(result) == result


def test_tflops_choose_between_readings_that_a_known_factor_separates_and_remove_nothing_else():
    of_one = flops.per_token(presets.find_preset("llama").shape, 2048) * 4096 / 1e12
    rates = {"tokens_per_second": 4096.0, "tokens_per_second_per_gpu": 4096.0, "gpus": 8, "samples": 3.0}
    assert means(**rates, tflops_per_gpu=of_one).performance_metrics.tokens_per_second == 32768
    off = means(tokens_per_second=32768.0, gpus=8, tflops_per_gpu=3 * of_one)
    assert off.performance_metrics.tokens_per_second_per_gpu == 4096
    assert [warning.split(":")[0] for warning in told(off)] == ["tflops_per_gpu"]


TOTAL, PER_GPU, SAMPLES = agreement.TOTAL, agreement.PER_GPU, "reported_samples_per_second"


@in_each(
    ("columns", "gpus", "right", "why"),
    [
        ({TOTAL: 4096.0, SAMPLES: 16.0}, 8, 4096, "counts one GPU, because samples/s"),
        ({TOTAL: 4096.0, SAMPLES: 16.0}, None, None, "no known factor explains the difference; it is left out"),
        ({TOTAL: 4096.0, "tokens": 65536.0, "seconds": 16.0}, 8, 4096, "counts one GPU, because the work of the rows"),
        ({PER_GPU: 32768.0, "tokens": 65536.0}, 8, 4096, "counts all GPUs, because the work of the rows"),
        ({PER_GPU: 4096.0, "tokens": 65536.0}, 8, 4096, None),
        ({TOTAL: 4096.0, "tokens": 65536.0}, None, None, "counts one of 8 processes, because the work of the rows"),
        ({TOTAL: 4096.0, PER_GPU: 4096.0}, 8, None, "nothing decides between them"),
    ],
)
def test_rates_of_rows_count_what_samples_counters_and_dates_imply(columns, gpus, right, why):
    rows = [Step(index=n, seconds=columns.get("seconds"), ended_at=2.0 * n) for n in range(1, 20)]
    read = means(gpus=gpus).changed(steps=Steps.of(rows).replace(**columns), performance_metrics=PerformanceMetrics())
    result = summarise(reported.with_means(agreement.with_scopes(read)))
    assert result.performance_metrics.tokens_per_second_per_gpu == right
    assert result.performance_metrics.avg_step_time_seconds == (2.0 if {"seconds", "tokens"} & columns.keys() else None)
    assert not any(why is None and "because" in warning for warning in result.warnings)
    assert why is None or any(why in warning for warning in result.warnings)


@in_each(
    ("printed", "right", "why"),
    [
        (16.0, 16.0, None),
        (2.0, 16.0, "counts one of 8 processes, because the work of the rows over the time between them is 16"),
        (9.3, None, None),
        (20.0, 20.0, None),  # rows also hold what the rate leaves out
    ],
)
def test_a_rate_of_samples_is_not_below_the_samples_counted_over_a_clock(printed, right, why, tmp_path):
    rows = [{"step": n, "consumed_samples": 32 * n, "timestamp": 1.7e9 + 2 * n} for n in range(1, 30)]
    log = tmp_path / "own.jsonl"
    log.write_text("".join(json.dumps(row | {"samples_per_second": printed, "loss": 3.0}) + "\n" for row in rows))
    if right is None:
        with pytest.raises(InputError, match=r"none to measure.*no known factor explains the difference"):
            logs.read(log, format="metrics")
        return
    result = logs.read(log)
    assert result.performance_metrics.samples_per_second == pytest.approx(right)
    assert any((why or "") in warning for warning in result.warnings)


@in_each(["jsonl", "csv"])
def test_columns_that_repeat_one_number_are_settings(container, tmp_path):
    rows = [
        {"step": n, "step_time_s": 2.01, "tokens_per_second": 1024.5, "num_gpus": 8, "seq_len": 1024, "seed": n}
        | {"global_batch_size": 16}
        for n in range(1, 30)
    ]
    log = tmp_path / f"own.{container}"
    lines = map(json.dumps, rows) if container == "jsonl" else [",".join(map(str, row.values())) for row in rows]
    head = [] if container == "jsonl" else [",".join(rows[0])]
    log.write_text("\n".join([*head, *lines]) + "\n")
    result = logs.read(log)
    config = result.training_config
    assert (config.num_gpus, config.sequence_length, config.global_batch_size, config.seed) == (8, 1024, 16, None)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16 * 1024 / 2.01 / 8, rel=1e-3)
    codes = [one.code for one in result.remarks]
    assert "reported_differs" in codes
    assert "rate_of_all_assumed" not in codes


DISPUTED = {"step_time_s": 1.0004, "tokens_per_second": 90000.5, "global_batch_size": 16, "sequence_length": 4096}


def table(tmp_path, columns, clock=None):
    """Return a file of rows with some columns. clock: seconds between the rows, if they have dates."""
    log = tmp_path / "own.jsonl"
    dates = [{} if clock is None else {"timestamp": 1.7e9 + clock * n} for n in range(30)]
    rows = ({"step": n, "loss": 3 - n / 100} | columns | date for n, date in enumerate(dates, 1))
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return log


@in_each(
    ("columns", "clock", "tokens", "seconds", "field"),
    [
        ({}, None, None, 1.0, "tokens_per_second"),  # two figures, and nothing decides
        ({}, 1.0, 65536, 1.0, "tokens_per_second"),  # the clock confirms the time
        (
            {"step_time_s": 0.7204, "tokens_per_second": 120000.5},
            1.0,
            None,
            0.72,
            "tokens_per_second",
        ),  # each contradicts both others
        ({"step_time_s": 0.7304, "tokens_per_second": 65536.5}, 1.0, 65536, None, "step_time"),
        ({"samples_per_second": 16.02}, None, 65536, 1.0, "tokens_per_second"),
        ({"tokens_per_second_per_gpu": 8192.5, "num_gpus": 8}, None, 65536, 1.0, "tokens_per_second"),
        ({"tokens_per_second_per_gpu": 11250.5, "num_gpus": 8}, None, None, 1.0, "tokens_per_second"),  # of one timer
        ({"tokens_per_second": 65536.5, "samples_per_second": 20.5}, None, None, 1.0, "samples_per_second"),
        ({"tokens_per_second": 66100.5}, None, 65536, 1.0, None),
        ({"tokens_per_second": 8192.5, "num_gpus": 8}, None, 65536, 1.0, None),  # a known factor
    ],
)
def test_of_figures_of_rows_that_no_factor_reconciles_the_one_without_support_goes(
    tmp_path, columns, clock, tokens, seconds, field
):
    result = logs.read(table(tmp_path, DISPUTED | columns, clock))
    figures = result.performance_metrics
    assert figures.avg_step_time_seconds == (None if seconds is None else pytest.approx(seconds, rel=1e-3))
    assert figures.tokens_per_second == (None if tokens is None else pytest.approx(tokens, rel=1e-3))
    odd = [one.field for one in result.remarks if one.code in ("rows_undecided", "rate_contradicted")]
    assert odd == [field] * (field is not None)
    assert summarise(result) == result


def test_a_work_of_a_step_that_the_user_states_is_not_in_dispute(tmp_path):
    result = logs.read(table(tmp_path, DISPUTED), facts=UserFacts(global_batch_size=16))
    assert result.performance_metrics.tokens_per_second == pytest.approx(65536, rel=1e-3)


@in_each(
    ("columns", "right"),
    [
        ({"tokens_per_second": 90000.5, "tokens_per_second_per_gpu": 8192.5, "num_gpus": 8}, None),
        ({"tokens_per_second": 90000.5, "sequence_length": 4096}, None),
        ({"tokens_per_second": 50000.5, "sequence_length": 4096}, 50000.5),  # sequences are shorter than the longest
    ],
)
def test_rates_without_times_hold_only_where_they_imply_one_another(tmp_path, columns, right):
    result = logs.read(table(tmp_path, {"samples_per_second": 16.02} | columns))
    assert result.performance_metrics.tokens_per_second == (right and pytest.approx(right))
    assert result.performance_metrics.samples_per_second == pytest.approx(16.02)


def test_a_rate_that_only_the_clock_of_a_logger_can_check_is_refused_where_it_contradicts(tmp_path):
    def read(**measured):
        rows = ({"step": n, "loss": 9 - n / 100, "timestamp": 1.7e9 + 1.27 * n, **measured} for n in range(1, 200))
        (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return logs.read(tmp_path / "steps.jsonl")

    for rest in ({"tokens_per_step": 65536}, {"seq_len": 4096, "global_batch_size": 16}):
        with pytest.raises(ContradictionError, match="by the clock of the logged rows"):
            read(tokens_per_sec=65536.5, **rest)
    timed = read(step_time_s=1.0005)
    assert timed.provenance.format == "metrics"
    assert timed.performance_metrics.avg_step_time_seconds == pytest.approx(1.0005)
    assert any("are unexplained" in warning for warning in timed.warnings)
