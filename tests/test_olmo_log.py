"""OLMo's blocks: one line with the step, and below it, indented, one value per line."""

from typing import Any

import job_logs
import pytest

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError

CONFIGURATION = (
    "2026-01-05 08:00:00.016\tnode-3:0\ttrain:98\tINFO\tTrainConfig(run_name='small', seed=6198, model=ModelConfig("
    "d_model=2048, n_heads=16, n_kv_heads=None, n_layers=16, mlp_ratio=8, mlp_hidden_size=None, "
    "activation_type='swiglu', max_sequence_length=4096, vocab_size=50280, embedding_size=50304, weight_tying=False, "
    "flash_attention=True, precision='amp_bf16'), optimizer=OptimizerConfig(name='adamw', learning_rate=0.0003), "
    "scheduler=SchedulerConfig(name='cosine_with_warmup'), activation_checkpointing=None, "
    "max_duration=15000, global_train_batch_size=512, device_train_batch_size=64, "
    "device_train_microbatch_size=8, precision='amp_bf16', speed_monitor=SpeedMonitorConfig(window_size=20), "
    "distributed_strategy='ddp', device_train_grad_accum=8)\n"
    "2026-01-05 08:00:01.016\tnode-3:0\ttrain:160\tINFO\tTotal number of parameters: 1,279,787,008"
)
TOKENS = 512 * 4096


def block(step: int, rate: str | None = "67,563", *, loss: str = "2.998", total: bool = True) -> str:
    values = [
        "optim/total_grad_norm=0.2370",
        f"train/CrossEntropyLoss={loss}",
        "train/Perplexity=20.04",
        f"throughput/total_tokens={TOKENS * step:,}" if total else "",
        f"throughput/device/tokens_per_second={rate}" if rate else "",
        "throughput/device/batches_per_second=0.2605" if rate else "",
        "System/Peak GPU Memory (MB)=111,477",
    ]
    head = f"2026-01-05 08:00:{step % 60:02}.009\tnode-3:0\tolmo.train:979\tINFO\t[step={step}/15000,epoch=0]"
    return "\n".join([head, *(f"    {value}" for value in values if value)])


def log(*blocks: str) -> str:
    return "\n".join([CONFIGURATION, *blocks]) + "\n"


def test_a_block_with_a_rate_is_one_row_and_another_is_none(read_text: Any) -> None:
    steps = read_text(log(block(1, None), block(2), block(3))).steps
    assert steps.column("index").tolist() == [2, 3]
    step = steps[1]
    assert (step.loss, step.gradient_norm, step.tokens) == (2.998, 0.237, TOKENS)
    assert step.reported_tokens_per_second_per_gpu == 67563
    assert step.memory_allocated_peak_bytes == 111_477e6
    assert step.line == 24


def test_blocks_of_olmo_core_are_read_where_absl_stamps_every_line(read_text: Any) -> None:
    values = ("train/CE loss=3.250", "throughput/device/TPS=12,345", "throughput/device/BPS=0.5000")
    lines = [
        f"I1124 02:42:{step:02}.100000 140637549984640 train.py:591] {text}"
        for step in range(1, 20)
        for text in (f"[step={step}/100,epoch=1]", *(f"    {value}" for value in values))
    ]
    stamped = read_text("\n".join([*lines, "done", ""]))
    bare = read_text("\n".join([*(line.partition("] ")[2] for line in lines), "done", ""]))
    assert stamped.performance_metrics.tokens_per_second_per_gpu == 12345
    assert stamped.steps[5].loss == 3.25
    assert stamped.performance_metrics == bare.performance_metrics


def test_rates_are_measured_as_rates_with_a_warning_about_their_window(read_text: Any) -> None:
    result = read_text(log(*(block(n) for n in range(1, 20))))
    performance = result.performance_metrics
    assert (performance.basis, result.raw_step_times) == ("reported_rates", [])
    assert performance.tokens_per_second_per_gpu == pytest.approx(67563)
    assert performance.tokens_per_second == pytest.approx(67563 * 8)
    assert any("sliding window" in warning for warning in result.warnings)


def test_configuration_and_shape_come_from_the_dump(read_text: Any) -> None:
    result = read_text(log(block(1), block(2)))
    config, shape = result.training_config, result.model.shape
    assert (config.global_batch_size, config.micro_batch_size, config.sequence_length, config.num_gpus) == (
        512, 8, 4096, 8,
    )  # fmt: skip
    assert (config.precision, config.strategy, config.max_steps, config.seed) == ("bf16", "ddp", 15000, 6198)
    assert (config.optimizer, config.learning_rate) == ("adamw", 0.0003)
    assert (config.attention_backend, config.recompute) == ("flash_attention_2", "none")
    assert (shape.num_layers, shape.hidden_size, shape.ffn_hidden_size, shape.head_dim) == (16, 2048, 8192, 128)
    assert (shape.vocab_size, shape.num_key_value_heads, shape.gated_mlp) == (50304, 16, True)
    assert (result.timestamp, result.runs[0].host) == ("2026-01-05T08:00:00", "node-3")


def test_olmo_core_prints_the_rate_of_the_one_step(read_text: Any) -> None:
    blocks = [
        f"2026-01-05 08:00:0{n}.009 node-3:0 olmo_core:72 INFO [step={n}/99,epoch=1,eta=1h2m]\n    train/CE loss=2.5\n"
        "    throughput/device/TPS=12,345\n    throughput/device/TPS (actual avg)=11,000\n"
        "    throughput/device/MFU=41.50\n"
        "    gpu_memory/GPU reserved mem (GiB)=40.00\n    throughput/total tokens=1.2B"
        for n in range(1, 5)
    ]
    step = read_text("\n".join(blocks) + "\n").steps[2]
    assert (step.reported_tokens_per_second_per_gpu, step.reported_mfu, step.loss) == (12345, pytest.approx(0.415), 2.5)
    assert (step.memory_reserved_peak_bytes, step.tokens) == (40 * 2**30, None)


def core_block(step: int, *, seconds: float = 2.0, total: str | None = None, other: str = "") -> str:
    """Return a block of OLMo-core 3, which shortens numbers from 10**9 on; 8 GPUs of 65,536 tokens a step."""
    values = [
        f"throughput/device/BPS={1 / seconds:.4f}",
        f"throughput/device/TPS={65536 / seconds:,.0f}",
        "throughput/device/flopsPS=410.1T",
        f"throughput/total tokens={total or f'{524288 * step:,}'}",
        *([f"{other}=30.05"] if other else []),
        "train/CE loss=7.645",
    ]
    head = f"2026-11-24 00:00:{step % 60:02}.767\tnode-3:0\tolmo_core.train.callbacks.console_logger:71\tINFO"
    return "\n".join([f"{head}\t[step={step}/100,epoch=1,eta=1m]", *(f"    {value}" for value in values)])


def test_shortened_numbers_of_olmo_core_end_no_block(read_text: Any) -> None:
    building = "INFO\tBuilding transformer with 1,311,616 total params, 1,049,472 non-embedding params\n"
    result = read_text(building + "\n".join(core_block(n) for n in range(2, 30)) + "\n")
    step = result.steps[5]
    assert (step.loss, step.tokens, step.reported_tflops_per_gpu) == (7.645, 524288, pytest.approx(410.1))
    assert (result.training_config.num_gpus, result.model.parameters) == (8, 1_311_616)
    assert result.performance_metrics.tokens_per_second == pytest.approx(524288 / 2)


def test_a_shortened_total_gives_no_tokens_of_a_step(read_text: Any) -> None:
    rounded = [core_block(n, total=f"{524288 * n / 1e9 + 0.99:.3f}B") for n in range(20, 40)]
    assert not read_text("\n".join(rounded) + "\n").steps.has("tokens")
    exact = [core_block(n) for n in range(2, 20)]
    assert set(read_text("\n".join([*exact, *rounded]) + "\n").steps.column("tokens")) == {524288.0}


@pytest.mark.parametrize("other", ["checkpoint/save_duration_s", "throughput/in-loop eval time (s)"])
def test_a_step_of_olmo_core_with_a_checkpoint_or_an_evaluation_is_not_measured(read_text: Any, other: str) -> None:
    blocks = [core_block(n, seconds=2.0 if n % 10 else 32.05, other="" if n % 10 else other) for n in range(2, 40)]
    result = read_text("\n".join(blocks) + "\n")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert ("steps_excluded", {"steps": 3, "work": "a validation or checkpoint"}) in [
        (one.code, one.values) for one in result.remarks
    ]


def test_a_row_covers_the_steps_of_its_interval(read_text: Any) -> None:
    assert read_text(log(*(block(n) for n in (10, 20, 30)))).steps.column("covers").tolist() == [10, 10, 10]


def test_values_below_another_line_belong_to_no_block(read_text: Any) -> None:
    system = "2026-01-05 08:00:00.1\tnode-3:0\tolmo.train:979\tINFO\tPre-train system metrics"
    system += "\n    throughput/device/tokens_per_second=9"
    with pytest.raises(NotALogError):
        read_text(log(system))


def test_a_killed_run_is_incomplete(read_text: Any) -> None:
    result = read_text(
        log(*(block(n) for n in range(1, 5)), "run.py:725] Received 15 death signal, shutting down workers")
    )
    assert (result.complete, result.runs[0].ended_by) == (False, "killed by a signal")


def test_interleaved_blocks_of_two_ranks_stay_whole(read_text):
    def block(rank, step, rate):
        head = f"2026-01-05 08:00:{step:02d}.9 INFO [step={step}/99,epoch=0]"
        return [f"{rank}: {line}\n" for line in (head, f"    throughput/device/tokens_per_second={rate}")]

    pairs = [(block(0, step, 1000 + step), block(1, step, 5000)) for step in range(1, 9)]
    steps = read_text("".join(a + b + c + d for (a, c), (b, d) in pairs)).steps
    assert steps.column("reported_tokens_per_second_per_gpu").tolist() == [1000.0 + step for step in range(1, 9)]


def test_a_block_of_olmo_core_stands_for_the_steps_since_the_one_before(read_text: Any) -> None:
    core = [
        block(n).replace("throughput/device/tokens_per_second", "throughput/device/TPS")
        for n in (1, *range(10, 200, 10))
    ]
    steps = read_text(log(*core)).steps
    assert steps.column("covers").tolist() == [1, 9, *[10] * 18]
    assert steps[5].tokens == TOKENS


@pytest.mark.parametrize("between", ["", None], ids=["a blank line", "a copy"])
def test_blank_lines_and_copies_do_not_end_a_block(tmp_path, between):
    path = tmp_path / "a.log"
    lines = job_logs.olmo(job_logs.Job())
    path.write_text("\n".join(lines) + "\n")
    once = logs.read(path)
    path.write_text("\n".join(each for line in lines for each in (line, line if between is None else between)) + "\n")
    again = logs.read(path)
    assert again.training_config == once.training_config
    for column in ("tokens", "reported_tokens_per_second_per_gpu"):
        assert repr(again.steps.column(column).tolist()) == repr(once.steps.column(column).tolist())  # nan is no nan


def test_a_width_that_no_model_has_gives_no_shape(read_text):
    damaged = CONFIGURATION.replace("mlp_ratio=8", "mlp_ratio=800000000000").replace("2048", "204800000000000")
    assert read_text(log(*map(block, range(1, 9))).replace(CONFIGURATION, damaged)).model.shape is None


def test_a_configuration_of_olmoe_gives_no_dense_shape(read_text):
    of_experts = CONFIGURATION.replace("d_model=2048,", "d_model=2048, block_type='moe', moe_num_experts=64,")
    assert read_text(log(*map(block, range(1, 9)))).model.shape is not None
    assert read_text(log(*map(block, range(1, 9))).replace(CONFIGURATION, of_experts)).model.shape is None
