"""Console rows of training examples (fms-fsdp, NeuronX Distributed, AWS, ColossalAI) and of Levanter."""

from typing import Any

import pytest
from keyvalue_rows import aws, fms_fsdp, levanter, log, neuronx

from tensorprimat.core.units import GIB

FMS_START = (
    "--> running with these configs train_config(model_variant='7b', seq_length=2048, sharding_strategy='hsdp', "
    "batch_size=8, num_steps=5000, report_interval=100)\n"
)


def test_the_blocks_of_fms_fsdp_state_the_mean_step_since_the_block_before(read_text: Any) -> None:
    blocks = [fms_fsdp(n).replace(f"step: {n}\n", f"step: {100 * n}\n") for n in range(1, 21)]
    total = [
        block.replace(f"tokens seen: {n * 131072}", f"tokens seen: {n * 13107200}") for n, block in enumerate(blocks, 1)
    ]
    total.insert(10, "Checkpoint saved in out/step_1000_ckp\nmodel_save_time = 31.5")
    result = read_text(FMS_START + "\n".join(total) + "\n")
    config, performance = result.training_config, result.performance_metrics
    assert (config.sequence_length, config.micro_batch_size, config.max_steps) == (2048, 8, 5000)
    assert performance.avg_step_time_seconds == pytest.approx(2.0)
    assert performance.tokens_per_second == pytest.approx(65536)
    assert performance.tokens_per_second_per_gpu == pytest.approx(8192)
    assert [step.index for step in result.steps if step.interrupted_by] == [1100]
    assert (result.steps[3].covers, result.steps[3].gradient_norm, result.steps[3].learning_rate) == (100, 1.25, 3e-4)
    assert result.steps[3].memory_reserved_peak_bytes == 60129542144


def test_projects_built_on_fms_fsdp_print_memory_with_its_unit(read_text: Any) -> None:
    text = log("fms_fsdp").replace("reserved memory: 60129542144", "reserved memory: 56.50 GiB")
    assert read_text(text).steps[3].memory_reserved_peak_bytes == 56.5 * GIB


def test_a_row_of_neuronx_has_the_time_of_its_step_and_a_mean_rate_that_is_not_read(read_text: Any) -> None:
    rows = [neuronx(n, 2.0 + (n % 2) * 0.5) for n in range(1, 21)]
    arguments = "Namespace(train_batch_size=64, tensor_parallel_size=8, pipeline_parallel_size=4, seq_len=8192)\n"
    result = read_text(arguments + "\n".join(rows) + "\n", global_batch_size=64)
    config, performance = result.training_config, result.performance_metrics
    assert (config.sequence_length, config.tensor_model_parallel_size, config.pipeline_model_parallel_size) == (
        8192,
        8,
        4,
    )
    assert performance.median_step_time_seconds == pytest.approx(2.0)
    assert "reported_samples_per_second" not in result.steps.seen
    assert (result.steps[0].loss, result.steps[1].gradient_norm) == (9.1234, pytest.approx(1.97434795))
    assert any("the mean of the last ten steps" in warning for warning in result.warnings)


def test_neuronx_without_step_times_has_a_rate_over_a_window_of_steps(read_text: Any) -> None:
    row = (
        "LOG Mon Jan  5 08:{:02}:{:02} 2026 - (0, {}) step_loss : {:.4f} learning_rate : 1.00e-05 throughput : 128.00 "
        "seq/s grad-norm : 1.25\n"
    )
    result = read_text("".join(row.format(2 * n // 60, 2 * n % 60, n, 10 - n / 100) for n in range(1, 41)))
    assert result.provenance.format == "neuronx"
    assert result.performance_metrics.samples_per_second == pytest.approx(128)
    assert (result.steps[3].loss, result.steps[3].gradient_norm) == (9.96, 1.25)
    assert "windows_unknown" in [one.code for one in result.remarks]


def test_a_batch_of_awss_examples_is_a_step_with_a_rate_over_all_gpus(read_text: Any) -> None:
    result = read_text(log("aws"), global_batch_size=64, sequence_length=4096, num_gpus=8)
    performance = result.performance_metrics
    assert performance.samples_per_second == pytest.approx(32)
    assert performance.tokens_per_second_per_gpu == pytest.approx(32 * 4096 / 8)
    assert (result.steps[3].reported_tflops_per_gpu, result.steps[3].gradient_norm) == (28.64, 1.25)


def test_newer_rows_of_awss_examples_state_the_tokens_per_second_too(read_text: Any) -> None:
    rates = "Tokens/s: 131072, TFLOPS/GPU: 28.6, MFU: 0.029, lr: 0.000049"
    rows = [aws(n).replace("Model TFLOPS/GPU: 28.64, lr: 0.000049, gradnorm: 1.2500", rates) for n in range(1, 21)]
    performance = read_text("\n".join(rows) + "\n").performance_metrics
    assert performance.tokens_per_second == pytest.approx(131072)
    assert performance.samples_per_second == pytest.approx(32)


def test_levanters_progress_lines_time_the_steps_by_their_clock(read_text: Any) -> None:
    rows = [levanter(n) for n in range(1, 21)]
    rows.insert(10, "Progress on:eval 1.00it/16.0it rate:- remaining:? elapsed:00:00 postfix:-")
    result = read_text("\n".join(rows) + "\n")
    performance = result.performance_metrics
    assert (result.source, result.provenance.timing, result.training_config.max_steps) == ("Levanter", "timestamps", 70)
    assert (performance.avg_step_time_seconds, performance.measured_steps) == (pytest.approx(120.0), 17)
    assert [step.index for step in result.steps if step.interrupted_by] == [11]


def test_the_rounded_counts_of_long_levanter_trainings_give_no_wrong_step_times(read_text: Any) -> None:
    drawn = [(round(minute * 60 / 2.4), 30 + minute * 60) for minute in range(1, 400)]
    line = "Progress on:train {}it/10.0kit rate:2.4s/it remaining:1:05:15 elapsed:{}:{:02}:{:02} postfix:loss=2.31\n"
    counts = [(f"{done / 1000:.2f}k" if done > 999 else f"{done:.1f}", clock) for done, clock in drawn]
    text = "".join(line.format(count, t // 3600, t // 60 % 60, t % 60) for count, t in counts)
    result = read_text(text)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.4, rel=0.003)
    assert result.steps.column("seconds")[2:-1].tolist() == pytest.approx([2.4] * (len(result.steps) - 3), rel=0.01)
    assert result.training_config.max_steps is None


def test_the_json_records_of_levanter_count_rather_than_its_progress_lines(read_text: Any) -> None:
    record = '{{"tracker": "json_logger", "event": "log", "step": {}, "metrics": {{"throughput/duration": 119.5}}}}\n'
    result = read_text("".join(levanter(n) + "\n" + record.format(n) for n in range(1, 21)))
    assert (result.provenance.format, result.performance_metrics.avg_step_time_seconds) == ("metrics", 119.5)
    assert not any(warning.startswith("format:") for warning in result.warnings)


MEAN_OF_COLOSSALAI = "Throughput: 3.30 samples/sec, TFLOPS per GPU by Megatron: 175.25, TFLOPS per GPU: 163.02\n"


def test_colossalais_step_times_are_counted_and_its_mean_rate_is_only_reported(read_text: Any) -> None:
    row = "                    INFO     colossalai - colossalai - INFO: Step time: 19.714  \n"
    result = read_text(20 * row + MEAN_OF_COLOSSALAI, num_gpus=8)
    performance = result.performance_metrics
    assert (performance.avg_step_time_seconds, performance.measured_steps) == (pytest.approx(19.714), 19)
    assert performance.reported.samples_per_second == 3.3


def test_a_log_of_colossalai_without_step_times_has_the_mean_rate_that_it_prints(read_text: Any) -> None:
    arguments = "Namespace(config='13b', plugin='gemini', batch_size=8, num_steps=5, max_length=4096, mbs=1)\n"
    result = read_text(arguments + "Step 0 loss: 10.5\n" + MEAN_OF_COLOSSALAI, num_gpus=8)
    performance = result.performance_metrics
    assert (performance.samples_per_second, performance.tokens_per_second_per_gpu) == (3.3, pytest.approx(3.3 * 512))
    assert (performance.reported.tflops_per_gpu, result.training_config.max_steps) == (163.02, 5)
