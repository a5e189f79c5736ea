"""Console rows of Lingua, picotron, InternEvo, PaddleNLP, MindSpore Transformers, fairseq and T5X."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from each import in_each
from keyvalue_rows import fairseq, lingua, log, mindformers, paddle, t5x

from tensorprimat import logs
from tensorprimat.core.errors import InputError
from tensorprimat.core.units import GIB


def test_linguas_rate_is_that_of_a_gpu_over_all_steps_since_the_row_before(read_text: Any) -> None:
    saved = "0: INFO    26-01-05 08:02:00.6 - 0:02:00 - Saving to: checkpoints/0000000120\n"
    rows = {n: lingua(n, 9200.0 if n == 130 else 18400.0) + "\n" + saved * (n == 120) for n in range(10, 210, 10)}
    middle = lingua(205).replace("acc: 0", "acc: 2") + "\n"
    result = read_text("0: INFO - Running on dp size : 16\n" + "".join(rows.values()) + middle)
    assert result.performance_metrics.tokens_per_second_per_gpu == 18400
    assert [step.index for step in result.steps if step.interrupted_by] == [130]
    assert (result.steps[5].covers, result.steps[5].loss, result.steps[5].reported_tflops_per_gpu) == (10, 11.94, 197)
    assert result.steps[-1].index == 200
    assert result.training_config.data_parallel_size == 16


def test_picotrons_step_time_is_tokens_over_rate_and_its_mfu_gives_flops_by_a_fixed_peak(read_text: Any) -> None:
    result = read_text(log("picotron"))
    performance = result.performance_metrics
    assert performance.avg_step_time_seconds == pytest.approx(524290 / 499320)
    assert performance.tokens_per_step == pytest.approx(524288, rel=1e-4)
    assert result.training_config.num_gpus == 8
    assert result.steps[3].reported_tflops_per_gpu == pytest.approx(0.4245 * 989.5)
    assert result.steps[3].memory_reserved_bytes == pytest.approx(60.1e9)
    assert result.provenance.rounding == pytest.approx(0.005 / 499.32, rel=0.1)


def test_picotrons_rows_of_2024_have_commas(read_text: Any) -> None:
    row = (
        "[rank 3] Step: {}, Loss: 9.1234, Global batch size: 1.05M, Tokens/s: 998.64K, Tokens/s/GPU: 124.83K, "
        "Tokens: {}.05M/100.00M, Memory usage: 23.45GB\n"
    )
    result = read_text("".join(row.format(n, n) for n in range(1, 20)))
    assert result.provenance.format == "picotron"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.05e6 / 998640)
    assert (result.training_config.num_gpus, result.steps[0].loss) == (8, 9.1234)


INTERNEVO_START = (
    "2026-01-05 08:00:00,006 INFO launch.py:354 in launch -- Distributed environment is initialized, data parallel "
    "size: 4, pipeline parallel size: 1, tensor parallel size: 2\n"
)


def test_internevos_step_time_follows_from_its_tokens_and_its_rate_per_gpu(read_text: Any) -> None:
    result = read_text(log("internevo", before=INTERNEVO_START))
    config, performance = result.training_config, result.performance_metrics
    assert (config.num_gpus, config.tensor_model_parallel_size, config.data_parallel_size) == (8, 2, 4)
    assert performance.tokens_per_step == 131072
    assert performance.avg_step_time_seconds == pytest.approx(131072 / 8 / 4096.25)
    assert (result.steps[3].gradient_norm, result.steps[3].reported_tflops_per_gpu) == (6.5, 181.5)
    assert not [warning for warning in result.warnings if warning.startswith("audit")]


def test_internevo_without_its_configuration_has_a_rate_per_gpu_and_no_step_time(read_text: Any) -> None:
    performance = read_text(log("internevo")).performance_metrics
    assert performance.tokens_per_second_per_gpu == pytest.approx(4096.25)
    assert performance.tokens_per_second is None


def test_internlms_rows_of_2023_have_commas(read_text: Any) -> None:
    row = (
        "2026-01-05 08:00:{:02},147\tINFO train.py:323 in record_current_batch_training_metrics -- "
        "tflops=189.65,step={},loss=10.149,tgs (tokens/gpu/second)=4270.52,lr=1.2e-06,grad_norm=51.58,micro_num=4,"
        "num_consumed_tokens={},inf_nan_skip_batches=0,fwd_bwd_time=3.68\n"
    )
    rows = "".join(row.format(round(3.8365 * n), n, 131072 * (n + 1)) for n in range(15))
    result = read_text(INTERNEVO_START + rows)
    assert result.provenance.format == "internevo"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(131072 / 8 / 4270.52)
    assert (result.steps[0].loss, result.steps[0].gradient_norm) == (10.149, 51.58)


PADDLE_START = """\
[2026-01-05 08:00:00,791] [   DEBUG] - bf16                          : True
[2026-01-05 08:00:00,798] [   DEBUG] - tensor_model_parallel_size    : -1
[2026-01-05 08:00:00,799] [   DEBUG] - dataset_world_size            : 4
[2026-01-05 08:00:00,800] [   DEBUG] - world_size                    : 8
[2026-01-05 08:00:00,808] [    INFO] - ***** Running training *****
[2026-01-05 08:00:00,808] [    INFO] -   Instantaneous batch size per device = 4
[2026-01-05 08:00:00,808] [    INFO] -   Total train batch size (w. parallel, distributed & accumulation) = 32
[2026-01-05 08:00:00,808] [    INFO] -   Gradient Accumulation steps = 2
[2026-01-05 08:00:00,808] [    INFO] -   Total optimization steps = 37,800
"""


def paddle_of(steps: Sequence[int], seconds: float = 2.048) -> list[str]:
    return [paddle(n // 10, seconds).replace(f"global_step: {n // 10},", f"global_step: {n},") + "\n" for n in steps]


def test_paddles_interval_is_the_time_of_all_steps_since_the_row_before(read_text: Any) -> None:
    result = read_text(PADDLE_START + "".join(paddle_of(range(510, 710, 10))))
    config, performance = result.training_config, result.performance_metrics
    assert (config.num_gpus, config.global_batch_size, config.sequence_length) == (8, 32, 4096)
    assert (config.micro_batch_size, config.max_steps, config.precision) == (4, 37800, "bf16")
    assert performance.avg_step_time_seconds == pytest.approx(2.048)
    assert set(result.steps.column("covers").tolist()) == {10}
    assert performance.tokens_per_second == pytest.approx(32 * 4096 / 2.048)
    assert result.steps[3].memory_reserved_peak_bytes == 16.5 * GIB


def test_paddles_tflops_are_multiples_of_2_to_the_40(read_text: Any) -> None:
    assert read_text(log("paddle")).steps[3].reported_tflops_per_gpu == pytest.approx(400 * 2**40 / 1e12)


def test_the_time_of_paddles_steps_after_an_evaluation_or_a_checkpoint_includes_it(read_text: Any) -> None:
    rows = paddle_of(range(10, 210, 10))
    rows.insert(15, "[2026-01-05 08:05:00,914] [    INFO] - Saving model checkpoint to out/checkpoint-150\n")
    rows.insert(10, "[2026-01-05 08:03:20,573] [    INFO] - ***** Running Evaluation *****\n")
    steps = read_text(PADDLE_START + "".join(rows)).steps
    assert {step.index: step.interrupted_by for step in steps if step.interrupted_by} == {
        110: "validation",
        160: "checkpoint",
    }


def test_a_row_of_paddle_whose_rounded_rate_leaves_its_steps_in_doubt_has_no_step_time(read_text: Any) -> None:
    result = read_text(PADDLE_START + "".join(paddle_of(range(10, 210, 10), 650.0)))
    assert result.performance_metrics.avg_step_time_seconds is None
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(32 * 4096 / 650 / 8, rel=1e-4)


MINDFORMERS_START = (
    "2026-01-05 08:00:00,308 - INFO - global_batch_size = per_batch_size * data_parallel = 4 * 8 = 32\n"
    "2026-01-05 08:00:00,308 - INFO - initial parallel_config from dict: {'data_parallel': 8, 'model_parallel': 1, "
    "'pipeline_stage': 1, 'use_seq_parallel': False}\n"
)


def test_the_gpus_of_mindformers_follow_from_its_batch_its_time_and_its_rate_of_samples(read_text: Any) -> None:
    result = read_text(log("mindformers", before=MINDFORMERS_START))
    config, step = result.training_config, result.steps[3]
    assert (config.global_batch_size, config.data_parallel_size, config.num_gpus) == (32, 8, 8)
    assert result.performance_metrics.avg_step_time_seconds == 1.75
    assert (step.loss, step.gradient_norm, step.reported_tflops_per_gpu) == (11.9, 10.5, 170.738)
    assert read_text(log("mindformers")).training_config.num_gpus is None


def test_mindformers_counts_steps_in_each_epoch_anew(read_text: Any) -> None:
    epochs = [log("mindformers", 9).replace("/  100]", "/    9]").replace("[  1/  2]", f"[  {n}/  2]") for n in (1, 2)]
    assert read_text("".join(epochs)).steps.column("index").tolist() == list(range(1, 19))


@pytest.mark.parametrize(("milliseconds", "is_measured"), [(100, True), (20, False)])
def test_a_step_time_that_is_cut_off_to_milliseconds_is_reported_or_left_out(
    read_text: Any, milliseconds: int, is_measured: bool
) -> None:
    rows = "".join(mindformers(n, milliseconds) + "\n" for n in range(20))
    result = read_text(re.sub("2026.*?INFO", "INFO", rows))
    assert (result.performance_metrics.avg_step_time_seconds is not None) == is_measured
    assert ("time_cut_off", 0.001) in [(one.code, one.values.get("unit")) for one in result.remarks]


FAIRSEQ_START = "2026-01-05 07:59:00 | INFO | fairseq_cli.train | training on 8 devices (GPUs/TPUs)\n"


def as_json(row: str) -> str:
    """Return a row of fairseq in its format json."""
    start, _, pairs = row.partition("epoch 001:")
    values = dict(pair.split("=") for pair in re.sub(r"^.*?/ \d+ ", "", pairs).split(", "))
    return start + json.dumps({"epoch": 1, "update": 0.1, **values})


@pytest.mark.parametrize("form", [str, as_json])
def test_fairseqs_step_time_is_the_words_of_a_batch_over_their_rate(read_text: Any, form: Callable[[str], str]) -> None:
    rows = [form(fairseq(n, every=100)) + "\n" for n in range(100, 2100, 100)]
    result = read_text(FAIRSEQ_START + "".join(rows))
    performance = result.performance_metrics
    assert performance.avg_step_time_seconds == pytest.approx(2.0)
    assert (performance.tokens_per_second, performance.tokens_per_second_per_gpu) == (262144, 32768)
    assert performance.samples_per_second == pytest.approx(128)
    assert (result.steps[3].covers, result.steps[3].gradient_norm) == (100, 1.25)
    assert result.provenance.format == "fairseq"
    assert not [warning for warning in result.warnings if warning.startswith(("audit", "format"))]


@in_each(("printed", "perplexity"), [("loss=9.255", 611.0), ("loss=9.9, nll_loss=9.255", 611.0)])
@in_each("form", [str, as_json])
def test_fairseqs_loss_in_bits_becomes_the_logarithm_of_its_perplexity(
    read_text: Any, form: Callable[[str], str], printed: str, perplexity: float
) -> None:
    rows = [re.sub(r"loss=[\d.]+", printed, fairseq(n)) for n in range(1, 20)]
    steps = read_text("".join(form(row) + "\n" for row in rows)).steps
    assert math.exp(steps[3].loss) == pytest.approx(perplexity, rel=1e-3)


def test_the_loss_of_the_gate_is_no_part_of_the_loss_of_a_mixture_in_fairseq(read_text: Any) -> None:
    rows = [as_json(re.sub(r"loss=[\d.]+", "loss=15.131, inner_loss=14.938", fairseq(n))) for n in range(1, 20)]
    assert math.exp(read_text("".join(row + "\n" for row in rows)).steps[3].loss) == pytest.approx(31389, rel=1e-3)


@pytest.mark.parametrize(
    "found",
    ["epoch 001 | valid on 'valid' subset | loss 9.1 | num_updates 600", '{"epoch": 1, "valid_loss": "17.953"}'],
)
def test_a_validation_of_fairseq_counts_in_the_next_row(read_text: Any, found: str) -> None:
    valid = f"2026-01-05 08:20:00 | INFO | valid | {found}\n"
    rows = [fairseq(n, 4.0 if n == 700 else 2.0, 100) + "\n" + valid * (n == 600) for n in range(100, 2100, 100)]
    result = read_text(FAIRSEQ_START + "".join(rows))
    assert [step.index for step in result.steps if step.interrupted_by] == [700]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


def test_the_running_means_of_older_versions_of_fairseq_are_not_read(read_text: Any) -> None:
    row = "| epoch 010  {} / 8223 loss=1.27 (1.50), wps=962, wpb=908, bsz=32, lr=0.001, clip=100%, gnorm=2.1427\n"
    with pytest.raises(InputError, match="no step times found"):
        read_text("".join(row.format(n) for n in range(1000, 9000, 1000)))


def test_the_figures_of_t5x_agree_with_one_another(read_text: Any) -> None:
    start = "I0105 08:00:00.000000 139812 train.py:99] Initialize/restore complete (9.50 seconds).\n"
    rows = [t5x(n).replace(f"] [{n}] ", f"] [{10 * n}] ") + "\n" for n in range(1, 21)]
    result = read_text(start + "".join(rows))
    performance, steps = result.performance_metrics, result.steps
    assert (result.source, result.training_config.num_gpus) == ("T5X", 8)
    assert steps.column("index").tolist() == list(range(10, 210, 10))
    assert set(steps.column("covers").tolist()) == {10}
    assert performance.avg_step_time_seconds == pytest.approx(2.048)
    assert performance.tokens_per_second == pytest.approx(32 * 4096 / 2.048)
    assert performance.tokens_per_second_per_gpu == pytest.approx(performance.tokens_per_second / 8)
    assert steps.column("reported_samples_per_second") == pytest.approx([32 / 2.048] * 20)
    assert steps.column("loss") == pytest.approx([9.1234] * 20)
    assert any("T5X counts target tokens" in warning for warning in result.warnings)


def test_rows_of_t5x_that_end_with_a_rate_are_read(read_text: Any) -> None:
    for last in ("timing/steps_per_second", "timing/target_tokens_per_second_per_core"):
        rows = [re.sub(rf"({last}=[\d.]+),.*", r"\1", t5x(n)) for n in range(1, 21)]
        steps = read_text("\n".join(rows) + "\n").steps
        assert steps.column("seconds") == pytest.approx([2.048] * 20)
        assert steps.has("reported_tokens_per_second_per_gpu") == last.endswith("core")


def test_rows_of_t5xs_evaluation_are_not_steps(read_text: Any) -> None:
    evaluation = t5x(21, 0.5).replace("collection=train ", "collection=training_eval/c4 ")
    assert len(read_text(log("t5x") + evaluation + "\n").steps) == 20


def test_tinygrads_rows_in_milliseconds_are_read(read_text: Any) -> None:
    row = (
        "{n:5} {ms:7.2f} ms run,   12.10 ms python,   3.50 ms fetch data, 1998.00 ms AMD * 6,  8.12 loss, "
        "0.000175 LR, 64.12 GB used, 654321.00 GFLOPS"
    )
    result = read_text("".join(row.format(n=n, ms=2010.25 + n % 3) + "\n" for n in range(1, 40)))
    assert result.provenance.format == "tinygrad"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0113, rel=1e-3)
    assert result.steps.column("loss")[0] == 8.12


def test_a_damaged_rate_of_t5x_is_no_rate(read_text: Any) -> None:
    rows = [re.sub("timing/steps_per_second=[^,]+", "timing/steps_per_second=nan", t5x(n)) + "\n" for n in range(1, 5)]
    assert not read_text("".join(rows)).steps.has("seconds")


def test_a_setting_above_rows_of_several_lines_has_the_line_that_states_it(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(log("fms_fsdp", before="starting\noptimizer: AdamW\n" + "loading\n" * 99), encoding="utf-8")
    assert logs.read(path, cited=True).provenance.citations["optimizer"] == "train.log:2"
