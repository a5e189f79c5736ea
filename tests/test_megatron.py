"""Iteration lines of the Megatron family in every spelling, whole or damaged, become exactly their steps."""

import math
from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.result import Result
from tensorprimat.core.units import GIB
from tensorprimat.logs.format import UserFacts

GBS, LENGTH, GPUS = 128, 8192, 8


def tokens_per_gpu(milliseconds: float) -> float:
    return GBS * LENGTH / milliseconds * 1000 / GPUS


def row(spelling: str, number: int, milliseconds: float, *, loss: float = 11.5, average: float = 9999.9) -> str:
    """Return one iteration line as a tag of Primus (P0 … P11), Megatron-LM or Megatron-Bridge would print it."""
    tokens = tokens_per_gpu(milliseconds)
    elapsed = f"elapsed time per iteration (ms): {milliseconds:.1f}"
    both = f"{elapsed}/{average:.1f}"
    peak = "rank-3 max mem usage/usage_ratio: 230.11GiB/89.9%"
    hip = "hip mem usage/free/total/usage_ratio: 227.35{u}/28.63{u}/255.98{u}/88.81%"
    smi = "rocm mem usage/free/total/usage_ratio: 99.07GB/92.92GB/191.98GB/51.60%"
    tflops, pair = "throughput per GPU (TFLOP/s/GPU): 615.5", f"tokens per GPU (tokens/s/GPU): {tokens:.1f}/1.0"
    harmonic = f"tokens/s/GPU inst/harmonic mean: {tokens:.1f}/1.0"
    middle = {
        "P0": f"{elapsed} | {tflops}",
        "P1": f"{both} | {tflops}/217.3 | {pair}",
        "P2": f"{both} | mem usages: 0.8881 | {tflops}/217.3 | {pair}",
        "P3": f"{both} | {hip.format(u='GB')} | {tflops}/217.3 | {pair}",
        "P3 rocm": f"{both} | {smi} | {tflops}/217.3 | {pair}",
        "P4": f"{both} | {hip.format(u='GiB')} | {peak} | {tflops}/2.0 | {pair}",
        "P5": f"{both} | {tflops}/217.3  | {pair}",
        "P6": f"{both} | {tflops}/217.3  | {pair}",
        "P7": f"{both} | compute per GPU (TFLOP/s/GPU): 615.5 (avg 600.1)  | {harmonic}",
        "P8": f"{both} | {tflops}/340.8  | {harmonic}",
        "P10": f"{elapsed} | {tflops}",
        "P11": f"{both} | {tflops}/217.3",
        "upstream": f"{elapsed} | {tflops}",
        "2021": elapsed,
        "bridge": f"{elapsed} | {tflops} | energy per GPU (J/iter/GPU): 5400.0 | power per GPU (W/GPU): 650.5",
        "fork": f"{elapsed} | {tflops} | eta: 0:00:00 | tokens/sec/gpu: {tokens:.1f}",
    }[spelling]
    tail = {
        "P5": f" {hip.format(u='GB')}",
        "P6": f" {hip.format(u='GB')}  | {smi} | rank-5 rocm max mem usage/usage_ratio: 230.10GB/85.98%",
        "P7": f" {hip.format(u='GB')}",
        "P8": f" {hip.format(u='GB')}",
        "P11": f" images per GPU (images/s/GPU): {GBS / milliseconds * 1000 / GPUS:.2f}/9.99 | latency (ms): 9",
    }.get(spelling, "")
    name = "loss" if spelling == "P11" else "lm-loss" if spelling == "2021" else "lm loss"
    date = "" if spelling in ("2021", "P0", "P1", "P2", "P3", "P3 rocm", "P4") else "[2026-01-16 07:32:24.123456] "
    return (
        f"{date}iteration {number:8d}/{5000:8d} | consumed samples: {number * GBS:12d} | {middle} | "
        f"learning rate: 4.134000E-07 | global batch size: {GBS:5d} | {name}: {loss:.6E} | loss scale: 1.0 | "
        f"grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |{tail}"
    )


PREFIXES = {
    "none": " ",
    "v0.2": "[20251121 12:10:29][rank-7/8][INFO ] [--------trainer.py:2488] :  ",
    "e492c064": "[20251202 06:26:45][rank-7/8][INFO]     [--------trainer.py:2560] : ",
    "file sink": "[20251121 12:10:29][user/team][trainer][ip-10.0.0.1][rank-7/8][INFO ] [-----trainer.py:2488] : ",
    "console": (
        "\x1b[32m20251202\x1b[0m[\x1b[32m20251202 06:26:45\x1b[0m][\x1b[36mrank-7/8\x1b[0m][\x1b[1mINFO \x1b[0m] "
        "\x1b[1m[--------trainer.py:2560] : "
    ),
    "lost escapes": "0[[32m20251202 06:26:45[0m][[36mrank-7/8[0m][[1mINFO [0m] [1m[--------trainer.py:2560] : ",
    "torchrun": "[default7]: ",
    "torch elastic": "[rank7]: ",
    "srun": " 7: ",
    "ray": "(RayActor pid=12, ip=10.0.0.1) ",
}
SPELLINGS = [
    "P0", "P1", "P2", "P3", "P3 rocm", "P4", "P5", "P6", "P7", "P8", "P10", "P11", "upstream", "bridge", "fork",
]  # fmt: skip


def read(tmp_path: Path, lines: list[str], *, end: str = "\n", **flags: object) -> Result:
    path = tmp_path / "primus.log"
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return logs.read(path, facts=UserFacts(**flags))  # type: ignore[arg-type]


@in_each("prefix", PREFIXES)
@in_each("spelling", [*SPELLINGS, "2021"])
def test_every_spelling_after_every_prefix_gives_the_instantaneous_values(
    tmp_path: Path, spelling: str, prefix: str
) -> None:
    times = [2701.3, 2712.7, 2698.0, 12345.6]
    lines = [PREFIXES[prefix] + row(spelling, i, t) for i, t in enumerate(times, start=1)]
    result = read(tmp_path, lines, num_gpus=GPUS, sequence_length=LENGTH)
    assert result.provenance.format == "megatron"
    assert [step.seconds for step in result.steps] == pytest.approx([t / 1000 for t in times], rel=1e-12)
    assert [step.index for step in result.steps] == [1, 2, 3, 4]
    assert [step.line for step in result.steps] == [1, 2, 3, 4]
    assert {step.loss for step in result.steps} == {11.5}
    assert {step.gradient_norm for step in result.steps} == {1.25}
    assert {step.learning_rate for step in result.steps} == {4.134e-07}
    assert result.training_config.global_batch_size == GBS
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(
        GBS * LENGTH * 3 / (sum(times[1:]) / 1000) / GPUS
    )


@in_each("spelling", ["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "fork"])
def test_reported_rates_are_the_instantaneous_ones(tmp_path: Path, spelling: str) -> None:
    result = read(tmp_path, [row(spelling, i, 2500.0) for i in range(1, 13)], num_gpus=GPUS, sequence_length=LENGTH)
    assert result.steps[3].reported_tokens_per_second_per_gpu == pytest.approx(tokens_per_gpu(2500.0), abs=0.05)
    assert result.steps[3].reported_tflops_per_gpu == 615.5
    assert result.performance_metrics.reported.tflops_per_gpu == pytest.approx(615.5)
    assert not [warning for warning in result.warnings if "framework reported" in warning]


@in_each(
    ("spelling", "used", "peak"),
    [
        ("P3", 227.35, 227.35),
        ("P3 rocm", 99.07, 99.07),
        ("P4", 227.35, 230.11),
        ("P5", 227.35, 227.35),
        ("P6", 227.35, 230.10),
    ],
)
def test_memory_is_the_devices_use_in_gib_under_every_label(
    tmp_path: Path, spelling: str, used: float, peak: float
) -> None:
    result = read(tmp_path, [row(spelling, i, 2500.0) for i in range(1, 6)])
    memory = result.memory_metrics
    assert memory is not None
    assert memory.avg_memory_device_used_gb == pytest.approx(used * GIB / 1e9)
    assert memory.peak_memory_device_used_gb == pytest.approx(peak * GIB / 1e9)
    assert memory.peak_memory_allocated_gb is None
    assert result.platform == "amd"


REPORT = (
    "torch cuda version ............... {cuda}\ntorch hip version ................ {hip}\n"
    "zeus: /opt/rocm/lib/libamd_smi.so: cannot open shared object file: No such file or directory\n"
)


@in_each(
    ("before", "platform"),
    [
        (REPORT.format(cuda="12.8", hip="None"), "nvd"),
        (REPORT.format(cuda="None", hip="6.2.41133"), "amd"),
        ("No ROCm runtime is found, using ROCM_HOME='/opt/rocm'\n", None),
        ("RCCL version 2.20.5+hip6.2\nNo CUDA runtime is found, nvcr.io/ images need one\n", "amd"),
        ("docker run rocm/primus:v25.9_gfx942\n", "amd"),
    ],
)
def test_a_library_that_a_monitor_did_not_find_is_no_sign_of_its_vendor(
    tmp_path: Path, before: str, platform: str | None
) -> None:
    lines = [row("P10", i, 2600.0) for i in range(1, 12)]
    assert read(tmp_path, [*before.splitlines(), *lines]).platform == platform


def test_two_spellings_in_one_file_are_one_run(tmp_path: Path) -> None:
    lines = [row("P10", i, 2600.0) for i in range(1, 4)] + [row("P7", i, 2500.0) for i in range(4, 20)]
    result = read(tmp_path, lines)
    assert len(result.steps) == 19
    assert result.steps[0].reported_tokens_per_second_per_gpu is None
    assert result.steps[10].reported_tokens_per_second_per_gpu is not None


def test_energy_and_power_of_megatron_bridge_are_read(tmp_path: Path) -> None:
    result = read(tmp_path, [row("bridge", i, 8000.0) for i in range(1, 20)])
    assert result.power_metrics is not None
    assert result.power_metrics.avg_power_watts_per_gpu == pytest.approx(650.5)


def test_images_per_gpu_of_diffusion_are_samples(tmp_path: Path) -> None:
    lines = [PREFIXES["v0.2"] + row("P11", i, 2500.0) for i in range(1, 9)]
    result = read(tmp_path, lines)
    assert result.steps[2].reported_samples_per_second == pytest.approx(GBS / 2.5, rel=1e-3)
    assert result.performance_metrics.samples_per_second == pytest.approx(GBS / 2.5)
    assert result.performance_metrics.tokens_per_second is None


def test_world_size_comes_from_primus_ranks(tmp_path: Path) -> None:
    result = read(tmp_path, [PREFIXES["v0.2"].replace("7/8", "31/32") + row("P3", i, 2500.0) for i in range(1, 6)])
    assert result.training_config.num_gpus == 32
    assert result.source == "Primus (Megatron backend)"


def test_the_date_of_the_log_is_the_results_date(tmp_path: Path) -> None:
    result = read(tmp_path, [PREFIXES["v0.2"] + row("P3", i, 2500.0) for i in range(1, 6)])
    assert result.timestamp == "2025-11-21T12:10:29"
    result = read(tmp_path, [" " + row("upstream", i, 2500.0) for i in range(1, 6)])
    assert result.timestamp == "2026-01-16T07:32:24"
    assert result.steps[0].ended_at == pytest.approx(1768548744.123456)


def test_a_line_printed_twice_is_one_step(tmp_path: Path) -> None:
    lines = [line for i in range(1, 9) for line in (row("P7", i, 2500.0 + i),) * 2]
    assert [step.index for step in read(tmp_path, lines).steps] == list(range(1, 9))


def test_a_second_ranks_clock_of_the_same_iteration_is_not_a_step(tmp_path: Path) -> None:
    lines = [line for i in range(1, 9) for line in ("0: " + row("P0", i, 2500.0), "7: " + row("P0", i, 2900.0))]
    assert [step.index for step in read(tmp_path, lines).steps] == list(range(1, 9))


def test_iterations_that_go_back_are_a_restart(tmp_path: Path) -> None:
    before = [row("P7", i, 2500.0 + i) for i in range(1, 9)]
    after = [row("P7", i, 3500.0 + i) for i in range(5, 30)]
    result = read(tmp_path, [*before, "a job was requeued", *after])
    assert [step.segment for step in result.steps] == [0] * 8 + [1] * 25
    assert result.runs[0].segments == 2
    assert result.runs[0].segment == 1
    assert result.performance_metrics.min_step_time_seconds == pytest.approx(3.506, abs=0.01)


def test_a_restart_at_the_last_printed_iteration_is_a_restart(tmp_path: Path) -> None:
    lines = [row("P0", i, 2500.0) for i in (1, 2, 3)] + [row("P0", i, t) for i, t in ((3, 60000.0), (4, 2500.0))]
    assert [step.segment for step in read(tmp_path, lines).steps] == [0, 0, 0, 1, 1]


def test_a_log_interval_is_a_mean_over_that_many_steps(tmp_path: Path) -> None:
    result = read(tmp_path, [row("upstream", i, 2500.0) for i in range(10, 110, 10)])
    assert {step.covers for step in result.steps} == {10}
    assert result.performance_metrics.total_steps == 100
    assert result.performance_metrics.total_time_seconds == pytest.approx(250.0)


def test_a_lost_line_does_not_lengthen_the_log_interval(tmp_path: Path) -> None:
    result = read(tmp_path, [row("upstream", i, 2500.0) for i in (1, 2, 3, 5, 6, 7, 8)])
    assert {step.covers for step in result.steps} == {1}


def test_nan_losses_and_skipped_iterations_are_kept_and_reported(tmp_path: Path) -> None:
    lines = [row("P7", i, 2500.0) for i in range(1, 12)]
    lines[4] = lines[4].replace("lm loss: 1.150000E+01", "lm loss: nan")
    lines[5] = lines[5].replace("lm loss: 1.150000E+01 | ", "").replace("nan iterations:   0", "nan iterations:   1")
    lines[6] = lines[6].replace("skipped iterations:   0", "skipped iterations:   1")
    result = read(tmp_path, lines)
    assert [i for i, step in enumerate(result.steps) if step.loss is not None and math.isnan(step.loss)] == [4, 5]
    assert [step.skipped for step in result.steps].index(True) == 6
    assert any(warning.startswith("loss: nan in 2 of 11") for warning in result.warnings)
    assert result.performance_metrics.measured_steps == 10


def test_a_growing_global_batch_is_counted_line_by_line(tmp_path: Path) -> None:
    lines = [row("P0", i, 1000.0) for i in range(1, 9)]
    lines[4:] = [line.replace("global batch size:   128", "global batch size:   256") for line in lines[4:]]
    result = read(tmp_path, lines, sequence_length=1000, num_gpus=1)
    assert result.performance_metrics.tokens_per_second == pytest.approx(1000 * (3 * 128 + 4 * 256) / 7)


def test_a_validation_inside_the_timer_is_never_measured(tmp_path: Path) -> None:
    lines = [row("2021", i, 2500.0) for i in range(1, 12)]
    lines[8] = row("2021", 9, 9000.0)
    lines.insert(8, " validation loss at iteration 8 | lm loss value: 1.1E+01 | lm loss PPL: 5.9E+04 |")
    lines.insert(4, " saving checkpoint at iteration       4 to checkpoints")
    result = read(tmp_path, lines)
    assert [step.interrupted_by for step in result.steps if step.interrupted_by] == ["checkpoint", "validation"]
    assert result.performance_metrics.max_step_time_seconds == 2.5


def test_a_validation_outside_the_timer_is_not_an_interruption(tmp_path: Path) -> None:
    clock = [0, 2, 5, 7, 10, 70, 72, 75]  # a minute of validation between the fifth and the sixth iteration
    lines = [
        row("upstream", i, 2500.0).replace("07:32:24.123456", f"07:{32 + s // 60}:{s % 60:02d}.000000")
        for i, s in enumerate(clock, start=1)
    ]
    lines.insert(5, " validation loss at iteration 5 | lm loss value: 1.1E+01 | lm loss PPL: 5.9E+04 |")
    assert not any(step.interrupted_by for step in read(tmp_path, lines).steps)


def test_allocator_sizes_printed_once_are_those_of_the_largest_rank(tmp_path: Path) -> None:
    lines = [row("P0", i, 2500.0) for i in range(1, 8)]
    printed = (
        "[Rank {}] (after 1 iterations) memory (MB) | allocated: {}.0 | max allocated: {}.5 | "
        "reserved: 109.0 | max reserved: 112.0"
    )
    lines[1:1] = [printed.format(0, 70, 100), printed.format(1, 80, 90)]
    memory = read(tmp_path, lines).memory_metrics
    assert memory is not None
    assert memory.peak_memory_allocated_gb == pytest.approx(100.5 * 2**20 / 1e9)
    assert memory.peak_memory_reserved_gb == pytest.approx(112 * 2**20 / 1e9)


BRIDGE_MEMORY = (
    "[Rank {}] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 51.072 | mem-reserved-gigabytes: 60.5 | "
    "mem-max-allocated-gigabytes: {} | mem-alloc-retires: 0"
)


def bridge_row(number: int, milliseconds: float) -> str:
    """Return Megatron-Bridge's iteration line without --log-throughput."""
    return row("2021", number, milliseconds)


def test_every_allocator_size_of_megatron_bridge_is_in_decimal_gigabytes(tmp_path: Path) -> None:
    lines = [bridge_row(i, 2500.0) for i in range(1, 8)]
    lines[1:1] = [BRIDGE_MEMORY.format(0, 70.5), BRIDGE_MEMORY.format(1, 80.25)]
    memory = read(tmp_path, lines).memory_metrics
    assert memory is not None
    assert memory.peak_memory_allocated_gb == pytest.approx(80.25)
    assert memory.peak_memory_reserved_gb == pytest.approx(60.5)  # the current size, the peak is not printed


@pytest.mark.parametrize("before", [True, False])
def test_bridges_step_time_line_gives_the_rate_of_the_neighbouring_iteration(tmp_path: Path, before: bool) -> None:
    times = [9090.4, 2504.9, 2515.2, 2496.0, 31234.5]
    lines = []
    for number, milliseconds in enumerate(times, start=1):
        told = f"main_fp8/0 Step Time : {milliseconds / 1000:.2f}s GPU utilization: {number}00.5MODEL_TFLOP/s/GPU"
        pair = [told, "", "main_fp8/0  " + bridge_row(number, milliseconds)]
        lines += pair if before else pair[::-1]
    result = read(tmp_path, lines)
    assert [step.seconds for step in result.steps] == pytest.approx([t / 1000 for t in times])
    assert [step.reported_tflops_per_gpu for step in result.steps] == [100.5, 200.5, 300.5, 400.5, 500.5]
    assert result.source == "Megatron-Bridge"


def test_a_step_time_line_that_agrees_with_no_neighbouring_iteration_is_left_out(tmp_path: Path) -> None:
    stray = "Step Time : 7.00s GPU utilization: 900.0MODEL_TFLOP/s/GPU"
    result = read(tmp_path, [stray, *(bridge_row(i, 2500.0) for i in range(1, 5)), stray])
    assert len(result.steps) == 4
    assert not result.steps.has("reported_tflops_per_gpu") or all(
        step.reported_tflops_per_gpu is None for step in result.steps
    )


@in_each("unit", ["MODEL_TFLOP/s/GPU", "TFLOP/s/GPU", " TFLOP/s/GPU"])
def test_a_log_of_step_time_lines_alone_is_read_with_a_warning_about_missing_facts(tmp_path: Path, unit: str) -> None:
    lines = ["noise", *(f"Step Time : 2.2{i}s GPU utilization: 117{i}.4{unit}" for i in range(6))]
    lines.append(f"Step Time : 2.30s GPU utilization: 0.0{unit}")
    result = read(tmp_path, lines, num_gpus=8, global_batch_size=128, sequence_length=4096)
    assert result.provenance.format == "megatron"
    assert [step.index for step in result.steps] == list(range(1, 8))
    assert [step.line for step in result.steps] == list(range(2, 9))
    assert result.steps[0].seconds == 2.20
    assert result.steps[-1].reported_tflops_per_gpu is None  # what it prints where it cannot tell
    assert "iterations_counted" in [one.code for one in result.remarks]
    assert result.performance_metrics.tokens_per_second is not None


def test_energy_and_power_per_gpu_of_a_line_are_measured(tmp_path: Path) -> None:
    power = read(tmp_path, [row("bridge", i, 2500.0) for i in range(1, 13)]).power_metrics
    assert power is not None
    assert power.avg_power_watts_per_gpu == pytest.approx(650.5)
    assert power.energy_joules_per_gpu == pytest.approx(5400.0 * 11)


def test_rates_that_forks_print_are_kept_as_reported(tmp_path: Path) -> None:
    elapsed = "elapsed time per iteration (ms): 2500.0"
    llm_jp = "throughput per GPU (TFLOP/s/GPU): 449.6 | iteration time: 2.500 s samples/sec: 51.2"
    swiss = "throughput (token/sec/GPU): 52428.8 | flop throughput (TFLOP/sec/GPU): 449.6"
    for middle in (llm_jp, swiss):
        lines = [row("2021", i, 2500.0).replace(elapsed, f"{elapsed} | {middle}") for i in range(1, 13)]
        result = read(tmp_path, lines, num_gpus=8, sequence_length=LENGTH)
        assert {step.seconds for step in result.steps} == {2.5}
        assert {step.reported_tflops_per_gpu for step in result.steps} == {449.6}
        assert not [warning for warning in result.warnings if "framework reported" in warning]
        if middle is llm_jp:
            assert result.performance_metrics.reported.samples_per_second == pytest.approx(51.2)
        else:
            assert result.performance_metrics.reported.tokens_per_second_per_gpu == pytest.approx(52428.8)


@in_each(
    ("name", "rows", "batch", "median", "length"),
    [
        ("megatron_deepspeed_3d.out", 49, 1024, 137.10355, 1024),
        ("megatron_lm_2021.out", 6, 4, 6.7153, 1024),
        ("megatron_deepspeed_zero.out", 3, 768, 124.9101, 1024),
    ],
)
def test_real_logs_of_bigscience_give_their_known_figures(
    shared: Path, name: str, rows: int, batch: int, median: float, length: int
) -> None:
    result = logs.read(shared / "logs" / "bigscience" / name)
    assert len(result.steps) == rows
    assert result.training_config.global_batch_size == batch
    assert result.training_config.sequence_length == length
    assert result.performance_metrics.median_step_time_seconds == pytest.approx(median)


def test_the_first_iteration_that_megatron_core_prints_without_resetting_its_timer_is_in_the_second_row(tmp_path):
    path = tmp_path / "run.log"
    times = {1: 7_000.0, 5: 3_179.0, 10: 2_000.0, 15: 2_000.0, 20: 2_000.0}
    path.write_text("\n".join(row("upstream", number, ms) for number, ms in times.items()) + "\n")
    result = logs.read(path)
    assert result.steps.column("covers").tolist() == [0, 5, 5, 5, 5]
    assert result.performance_metrics.total_steps == 20
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
