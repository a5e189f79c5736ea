"""Tests of tprimat preflight: a machine's best performance, stored per machine, with warnings."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from replay import Replay

from tensorprimat.analysis import roofline
from tensorprimat.analysis.metrics import MetricChoices, measure
from tensorprimat.cli import main
from tensorprimat.core import flops, micro_result, models
from tensorprimat.core import preflight as records
from tensorprimat.core.errors import InputError
from tensorprimat.core.micro_result import MicroResult
from tensorprimat.core.preflight import Bandwidth, Collective, DeviceCheck, MatrixRate, Preflight
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.quantities import UNMEASURED
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.machine import telemetry
from tensorprimat.machine.device import DeviceReading, Process
from tensorprimat.machine.platform import Machine
from tensorprimat.micro import collectives, estimate, matmul, preflight
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots import micro as cell_plots
from tensorprimat.reports.preflight import tables

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
LAPTOP = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU", total_memory_gb=16.0), host="laptop")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Intervals too short for figures, long enough to see that everything runs."""
    monkeypatch.setattr(matmul, "LEAST_SECONDS", 1e-4)
    monkeypatch.setattr(preflight, "QUICK_SIZES", {"cpu": (32, 64)})
    monkeypatch.setattr(preflight, "QUICK_STREAM_BYTES", {"cpu": 2**16})
    monkeypatch.setattr(preflight, "LAUNCHES", 10)


def made(**changed):
    values = {
        "platform": "nvd", "device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "host": "node1",
        "timestamp": "2026-01-02T03:04:05+00:00",
        "matmul": (
            MatrixRate(precision="bf16", size=4096, best_flops_per_second=6e14, typical_flops_per_second=5.9e14,
                       peak_flops_per_second=989.4e12),
            MatrixRate(precision="bf16", size=8192, best_flops_per_second=7e14, typical_flops_per_second=6.8e14,
                       peak_flops_per_second=989.4e12),
        ),
        "bandwidth": (
            Bandwidth(kind="copy", size_bytes=2**31, best_bytes_per_second=2.8e12, typical_bytes_per_second=2.7e12,
                      peak_bytes_per_second=3.35e12),
            Bandwidth(kind="host_to_device", size_bytes=2**28, best_bytes_per_second=5e12,
                      typical_bytes_per_second=5e10),
        ),
    }  # fmt: skip
    return Preflight(**{**values, **changed})


def test_a_cpu_is_measured_in_every_part_that_it_has():
    parts = []
    found = preflight.measure(LAPTOP, "cpu", quick=True, on_part=parts.append)
    assert {(row.precision, row.size) for row in found.matmul} == {(p, s) for p in ("fp32", "bf16") for s in (32, 64)}
    assert [row.kind for row in found.bandwidth] == ["copy", "read", "triad"]
    assert all(0 < row.typical_flops_per_second <= row.best_flops_per_second for row in found.matmul)
    assert (found.launch_seconds > 0, found.collectives, found.devices) == (True, (), ())
    assert parts == ["matrix products", "memory", "launches"]


def test_an_interval_covers_more_calls_of_short_work():
    calls = []
    seconds = matmul.intervals(lambda: calls.append(1), CPU, repeats=3)
    assert len(seconds) == 3
    assert len(calls) > 5


def test_matrices_are_random_never_zeros(monkeypatch):
    seen = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda left, right, out: (seen.append(left), multiply(left, right, out=out)))
    matmul.rate(32, "fp32", CPU)
    assert seen[0].std() > 0.5


def test_a_preflight_is_kept_per_machine_and_found_again(tmp_path):
    path = records.save(made(), tmp_path / records.FOLDER)
    assert path.name == "preflight_node1_NVIDIA-H100-80GB-HBM3_cuda.json"
    records.save(made(timestamp="2026-02-02T00:00:00+00:00"), tmp_path / records.FOLDER)
    records.save(made(host="node2", timestamp="2026-03-03T00:00:00+00:00"), tmp_path / records.FOLDER)
    kept = records.kept([tmp_path])
    assert [one.host for one in kept] == ["node2", "node1"]
    assert kept[1].timestamp.startswith("2026-02")
    assert kept[1].fits(platform="nvd", device_name="NVIDIA H100 80GB HBM3", host="node1")


def test_processes_that_shared_a_cpu_do_not_measure_its_best_rate(tmp_path):
    records.save(made(device="cpu"), tmp_path)
    records.save(made(device="cpu", world_size=2, timestamp="2026-02-02T00:00:00+00:00"), tmp_path)
    assert [one.world_size for one in records.kept([tmp_path])] == [1, 2]


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "preflight_x.json").write_text('{"kind": "cell"}')
    with pytest.raises(InputError, match="not a preflight"):
        records.load(tmp_path / "preflight_x.json")
    assert records.kept([tmp_path]) == []


def test_the_best_rate_is_over_all_sizes_and_memory_is_the_devices():
    assert made().matmul_flops_per_second("bf16") == 7e14
    assert made().matmul_flops_per_second("fp32") is None
    assert made().memory_bytes_per_second() == 2.8e12


def test_every_figure_is_compared_with_the_catalogue():
    matrix, memory = tables(made())
    assert matrix.rows[1][-1].text == "70.7 %"
    assert matrix.note == ""
    assert [row[-1].text for row in memory.rows] == ["83.6 %", "–"]


def test_a_gpu_below_the_others_is_named_with_its_drivers_reason():
    checks = [
        DeviceCheck(index=0, flops_per_second=7e14),
        DeviceCheck(index=1, flops_per_second=5e14, power_limit_watts=350, throttled_by=("the power cap",)),
        DeviceCheck(index=2, flops_per_second=6.9e14),
        DeviceCheck(index=3, flops_per_second=4e14, other_processes=2),
    ]
    slow, shared = preflight.warnings_about(made(devices=tuple(checks)))
    assert slow == "gpu 1: reaches 71 % of the fastest GPU (clock reduced by the power cap; power limit 350 W)"
    assert "gpu 3: reaches 57 % of the fastest GPU (2 other processes on it)" in shared


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine of two cards; the second is hot, and has company."""
    hot = DeviceReading(
        power_limit_watts=700.0,
        throttled_by=("heat",),
        processes=(Process(pid=4711), Process(pid=1)),
    )
    known = {"a": Replay([DeviceReading()]), "b": Replay([hot])}
    monkeypatch.setattr(telemetry, "open_devices", lambda ids: [known[one] for one in ids])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(matmul, "rate", lambda _size, _precision, device: (7e14 - 2e14 * device.index, 6e14))
    info = GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=2)
    return Machine(platform="nvd", gpu_info=info, host="node1", gpu_ids=("a", "b"))


def test_a_single_process_measures_every_gpu(two_gpus):
    sound, hot = preflight.device_checks(two_gpus, torch.device("cuda", 0), 1)
    assert (sound.flops_per_second, sound.throttled_by, sound.other_processes) == (7e14, (), 0)
    assert (hot.index, hot.flops_per_second, hot.throttled_by) == (1, 5e14, ("heat",))
    assert (hot.power_limit_watts, hot.other_processes) == (700.0, 1)


def test_each_of_several_processes_measures_its_own_gpu(two_gpus, monkeypatch):
    monkeypatch.setattr(collectives, "rank", lambda: 9)
    monkeypatch.setattr(collectives, "gathered", lambda own, processes: [own] * processes)
    checks = preflight.device_checks(two_gpus, torch.device("cuda", 1), 16)
    assert (len(checks), checks[0].index, checks[0].id, checks[0].flops_per_second) == (16, 1, "b", 5e14)


def test_a_gpu_number_is_refused_under_torchrun(two_gpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tensorprimat.machine.platform.detect", lambda **_: two_gpus)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["preflight", "--device", "cuda:1", "--output", str(tmp_path)]) == 2
    assert "each process that torchrun starts takes a GPU of its own; --device cuda" in capsys.readouterr().err


def test_a_gpu_below_the_catalogue_is_named():
    (row, *_) = made().matmul
    (printed,) = preflight.warnings_about(made(matmul=(row.model_copy(update={"best_flops_per_second": 3e14}),)))
    assert printed.startswith("bf16: the best product reaches 30 % of the catalogue's peak")


def test_a_sound_machine_is_not_warned_about():
    assert preflight.warnings_about(made()) == []


def test_a_sweep_estimates_times_from_the_preflight():
    rate, origin = estimate.best_rate(LAPTOP, "cpu", "bf16", kept=made())
    assert (rate, origin) == (7e14, "preflight of 2026-01-02T03:04:05+00:00")


def test_the_command_prints_tables_and_keeps_the_file(tmp_path, capsys):
    assert main(["preflight", "--quick", "--device", "cpu", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Matrix products" in out
    assert "| triad |" in out
    (path,) = (tmp_path / "preflight").iterdir()
    assert records.load(path).platform == "cpu"


def test_json_is_the_only_thing_on_stdout(tmp_path, capsys):
    assert main(["preflight", "--quick", "--device", "cpu", "--json", "--output", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "preflight"


@pytest.mark.parametrize(
    ("device", "says"), [("tpu", "must be auto, cpu, cuda or cuda:N"), ("cuda:9", "--device cuda:9")]
)
def test_a_device_that_is_not_there_is_one_line(device, says, tmp_path, capsys):
    assert main(["preflight", "--device", device, "--output", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_one_process_measures_no_exchange(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with collectives.group(CPU) as (backend, processes):
        assert (backend, processes) == (None, 1)
        assert collectives.measure(CPU, processes) == []


@pytest.mark.usefixtures("warm")
def test_two_processes_measure_their_exchange():
    script = (
        "import json, torch\n"
        "from tensorprimat.micro import collectives\n"
        "collectives.SIZES = {'cpu': (4096,)}\n"
        "reduce, sums = collectives.dist.all_reduce, {}\n"
        "def reduced(values, op):\n"
        "    before = values.clone()\n"
        "    reduce(values, op=op)\n"
        "    sums[str(values.dtype)] = sums.get(str(values.dtype), True) and torch.equal(values, 2 * before)\n"
        "collectives.dist.all_reduce = reduced\n"
        "torch.manual_seed(0)\n"
        "with collectives.group(torch.device('cpu')) as (backend, processes):\n"
        "    found = collectives.measure(torch.device('cpu'), processes)\n"
        "    ranks = collectives.gathered(collectives.rank(), processes)\n"
        "print(json.dumps([[one.model_dump() for one in found], backend, processes, ranks, sums]))\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    found, backend, processes, ranks, sums = json.loads(outputs[0])
    assert (backend, processes, ranks) == ("gloo", 2, [0, 1])
    assert [(one["kind"], one["dtype"], one["size_bytes"]) for one in found] == [
        ("all_reduce", "float32", 4096), ("all_reduce", "bfloat16", 4096),
        ("all_gather", "float32", 4096), ("reduce_scatter", "float32", 4096),
    ]  # fmt: skip
    assert sums == {"torch.float32": True, "torch.bfloat16": True, "torch.float64": False}, "times: the slowest counts"
    assert all(one["seconds"] > 0 and one["bus_bytes_per_second"] > 0 for one in found)


def test_bus_bandwidth_counts_what_a_link_carries():
    found = Collective(kind="all_reduce", dtype="bfloat16", size_bytes=2**20, seconds=1.0, bus_bytes_per_second=2**20)
    table = tables(made(collectives=(found,), world_size=2, collective_backend="nccl"))[2]
    assert table.title == "Exchange between 2 processes (nccl)"
    assert [cell.text for cell in table.rows[0]] == ["all-reduce", "bf16", "1 MiB", "1.000 s", "0.001049"]
    older = tables(made(collectives=(found.changed(dtype=None),), world_size=2, collective_backend="nccl"))[2]
    assert older.rows[0][1].text == UNMEASURED


def trained(**changed):
    return Result(
        platform="nvd",
        gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", total_memory_gb=85.0),
        model=Model(name="llama", preset="full", shape=models.find("llama").shape),
        training_config=TrainingConfig(
            sequence_length=8192, micro_batch_size=1, gradient_accumulation_steps=4, precision="bf16", num_gpus=1
        ),
        performance_metrics=PerformanceMetrics(tokens_per_second_per_gpu=8000.0, avg_step_time_seconds=1.0),
        provenance=Provenance(host="node1"),
        **changed,
    )


def test_a_result_is_compared_with_the_preflight_of_its_own_machine():
    found = measure(trained(), MetricChoices(preflights=[made()]))
    assert found["achievable_fraction"].value == pytest.approx(found["model_tflops_per_gpu"].value / 700)
    source = [one.source for one in found["achievable_fraction"].inputs if "matrix rate" in one.name]
    assert source == ["preflight of node1, 2026-01-02T03:04:05+00:00"]


def test_another_machines_preflight_is_not_used_for_a_result():
    found = measure(trained(), MetricChoices(preflights=[made(host="node2")]))
    assert all("preflight" not in (one.source or "") for one in found["achievable_fraction"].inputs)


def test_the_roof_is_the_lower_of_bandwidth_and_matrix_rate():
    (roof,) = roofline.ceilings(made())
    assert roof.at(1.0) == 2.8e12
    assert roof.at(1e6) == 7e14
    assert roof.at(roof.ridge) == pytest.approx(7e14)


def test_a_training_result_has_a_point_under_the_roof():
    point = roofline.of_result(trained())
    assert point.flops_per_second == pytest.approx(8000 * 51_470_401_536)
    once = roofline.of_result(
        trained().model_copy(
            update={"training_config": trained().training_config.model_copy(update={"gradient_accumulation_steps": 1})}
        )
    )
    assert point.intensity > once.intensity > roofline.ceilings(made())[0].ridge


def test_a_shape_of_no_published_model_counts_by_its_own_dimensions():
    shape = trained().model.shape.model_copy(update={"vocab_size": 32_000})
    other = trained().model_copy(update={"model": Model(name="own", shape=shape)})
    assert roofline.of_result(other).flops_per_second == pytest.approx(8000 * flops.per_token(shape, 8192))


def test_a_result_of_unknown_shape_has_no_place():
    assert roofline.of_result(trained().model_copy(update={"model": Model(name="llama")})) is None


def test_the_roofline_is_a_picture():
    points = [roofline.of_result(trained())]
    image = canvas.picture(cell_plots.roofline(roofline.ceilings(made()), points, machine="an H100"))
    assert image.startswith(b"\x89PNG")


def test_a_roofline_without_a_preflight_names_the_remedy(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cell = MicroResult(
        model_size="s", d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab=100, context_length=8, batch_size=1,
        pass_name="train", precision="fp32", num_warmups=0, num_trials=1, trial_times_ms=(1.0,), platform="cpu",
    )  # fmt: skip
    micro_result.save(micro_result.with_figures(cell), tmp_path / "cells" / cell.file_name)
    assert main(["aggregate", "cells", "--roofline", "roof.png"]) == 2
    assert "run tprimat preflight there first" in capsys.readouterr().err


def test_all_reduce_sums_and_small_messages_are_timed_over_many_calls(monkeypatch):
    requested = []
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda _values, op: requested.append(op))
    monkeypatch.setattr(collectives.dist, "barrier", lambda: None)
    found = collectives._timed("all_reduce", torch.float32, 4096, CPU, 2)
    sums = requested.count(collectives.dist.ReduceOp.SUM)
    assert sums == 1 + collectives.REPEATS * collectives.CALLS_OF_SMALL
    assert requested.count(collectives.dist.ReduceOp.MAX) == collectives.REPEATS  # of the times, over the processes
    assert 0 < found.seconds < 0.01


# FP8, and what others reached


def test_fp8_products_are_e4m3_with_a_scale_each_and_give_bf16(monkeypatch):
    requested = []
    real = torch._scaled_mm

    def noting(left, right, **options):
        requested.append((left.dtype, right.dtype, options["out_dtype"], bool((left.float() == 0).all())))
        return real(left, right, **options)

    monkeypatch.setattr(torch, "_scaled_mm", noting)
    best, typical = matmul.rate(64, "fp8", CPU, repeats=2)
    assert 0 < typical <= best
    assert set(requested) == {(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16, False)}


@pytest.mark.parametrize(("arch", "kind"), [("gfx942:sramecc+", "fnuz"), ("gfx950:sramecc+", "fn"), ("", "fn")])
def test_the_fp8_type_is_that_of_the_matrix_units(monkeypatch, arch, kind):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("P", (), {"gcnArchName": arch})())
    assert matmul.fp8_type(torch.device("cuda", 0)) == getattr(torch, f"float8_e4m3{kind}")


@pytest.mark.parametrize(
    ("device", "measured"),
    [("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-80GB", False), ("NVIDIA X1", False)],
)
def test_fp8_is_measured_where_the_gpu_is_known_to_have_it(monkeypatch, device, measured):
    monkeypatch.setattr(matmul, "rate", lambda *_, **__: (5e14, 4e14))
    gpu = preflight.catalogue.find_gpu(device)
    rows = preflight.matrix_rates(torch.device("cuda", 0), (4096,), gpu)
    assert ("fp8" in {row.precision for row in rows}) == measured


def test_products_are_shown_with_the_best_that_others_measured_and_its_source(monkeypatch):
    monkeypatch.setattr(matmul, "rate", lambda *_, **__: (7e14, 6e14))
    gpu = preflight.catalogue.find_gpu("NVIDIA H100 80GB HBM3")
    rows = preflight.matrix_rates(torch.device("cuda", 0), (8192,), gpu)
    [bf16] = [row for row in rows if row.precision == "bf16"]
    assert bf16.achieved_flops_per_second == gpu.achievable_tflops["bf16"].value * 1e12
    matrix = tables(made(matmul=tuple(rows)))[0]
    assert "stas00/ml-engineering" in matrix.note
    assert f"{gpu.achievable_tflops['bf16'].value:,.1f}" in {row[4].text for row in matrix.rows}


# Nodes


def nodes_of(slow=5e14):
    return tuple(
        DeviceCheck(index=gpu, host=f"node{node}", flops_per_second=slow if (node, gpu) == (2, 3) else 7e14)
        for node in range(4)
        for gpu in range(8)
    )


def test_nodes_have_a_row_each_the_slowest_first():
    table = next(one for one in tables(made(devices=nodes_of())) if one.key == "nodes")
    assert [cell.text for cell in table.rows[0]] == ["node2", "8", "700", "3", "500", "71.4 %"]
    assert len(table.rows) == 4
    assert not [one for one in tables(made(devices=nodes_of()[:8])) if one.key == "nodes"]


def test_the_gpus_below_a_share_of_the_median_are_named_with_their_node():
    [printed] = made(devices=nodes_of()).below(0.9)
    assert printed == "node2: gpu 3 reaches 71.4 % of the median of 32 GPUs, less than 90 %"
    assert made(devices=nodes_of(slow=6.4e14)).below(0.9) == ()


@pytest.mark.parametrize(("slow", "code"), [(5e14, 1), (6.9e14, 0)])
def test_fail_below_fails_the_command_and_names_the_slow_node(tmp_path, capsys, monkeypatch, slow, code):
    monkeypatch.setattr(preflight, "measure", lambda *_, **__: made(devices=nodes_of(slow)))
    monkeypatch.setenv("WORLD_SIZE", "32")
    assert (
        main(["preflight", "--device", "cpu", "--keep-noisy", "--output", str(tmp_path), "--fail-below", "90%"]) == code
    )
    assert ("node2: gpu 3 reaches 71.4 %" in capsys.readouterr().err) == bool(code)
    assert list((tmp_path / "preflight").iterdir())  # the figures are kept either way


def test_fail_below_must_be_a_share(tmp_path, capsys):
    assert main(["preflight", "--device", "cpu", "--output", str(tmp_path), "--fail-below", "fast"]) == 2
    assert "--fail-below" in capsys.readouterr().err


def test_a_node_is_compared_with_the_median_gpu_not_the_best():
    devices = [DeviceCheck(index=n, host=f"node{n // 2}", flops_per_second=rate * 1e14)
               for n, rate in enumerate((5, 6, 7, 7, 7, 14))]  # fmt: skip
    shares = {node.host: node.slowest_share for node in made(devices=tuple(devices)).nodes()}
    assert shares == {"node0": pytest.approx(5 / 7), "node1": 1.0, "node2": 1.0}
    [first, second] = made(devices=tuple(devices)).below(0.9)
    assert "node0: gpu 0 reaches 71.4 %" in first
    assert "gpu 1 reaches 85.7 %" in second


def test_memory_bandwidth_counts_every_array_that_is_read_or_written(monkeypatch):
    monkeypatch.setattr(matmul, "intervals", lambda *_: [2.0, 1.0, 4.0])
    size = 2**16
    rates = preflight.memory_rates(CPU, size, None)
    assert {row.kind: row.best_bytes_per_second for row in rates} == {"copy": 2 * size, "read": size, "triad": 3 * size}
    assert {row.kind: row.typical_bytes_per_second for row in rates} == {
        "copy": size, "read": size / 2, "triad": 1.5 * size,
    }  # fmt: skip
