"""Tests of tprimat preflight: a machine's best performance, stored per machine, with warnings."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from each import in_each
from preflights import made
from replay import Replay

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.core.result import GpuInfo
from tensorprimat.machine import noise, telemetry
from tensorprimat.machine.device import DeviceReading, Process
from tensorprimat.machine.platform import Machine
from tensorprimat.measure import collectives, matmul, preflight, sweep, watch
from tensorprimat.reports.preflight import preflight_tables
from tensorprimat.storage import preflight as records
from tensorprimat.storage.preflight import DeviceCheck

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("short_preflight")
LAPTOP = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU", total_memory_gb=16.0), host="laptop")


def test_a_cpu_is_measured_in_every_part_that_it_has():
    parts = []
    found = preflight.measure_machine(LAPTOP, "cpu", quick=True, on_part=parts.append)
    assert {(row.precision, row.size) for row in found.matmul} == {(p, s) for p in ("fp32", "bf16") for s in (32, 64)}
    assert [row.kind for row in found.bandwidth] == ["copy", "read", "triad"]
    assert all(0 < row.typical_flops_per_second <= row.best_flops_per_second for row in found.matmul)
    assert (found.launch_seconds > 0, found.collectives, found.devices) == (True, (), ())
    assert parts == ["matrix products", "memory", "launches"]


def test_a_preflight_is_kept_per_machine_and_found_again(tmp_path):
    path = records.save(made(), tmp_path / records.PREFLIGHT_FOLDER)
    assert path.name == "preflight_node1_NVIDIA-H100-80GB-HBM3_cuda.json"
    records.save(made(timestamp="2026-02-02T00:00:00+00:00"), tmp_path / records.PREFLIGHT_FOLDER)
    records.save(made(host="node2", timestamp="2026-03-03T00:00:00+00:00"), tmp_path / records.PREFLIGHT_FOLDER)
    kept = records.kept([tmp_path])
    assert [one.host for one in kept] == ["node2", "node1"]
    assert kept[1].timestamp.startswith("2026-02")
    assert kept[1].machine == ("nvd", "NVIDIA H100 80GB HBM3", "node1")


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
    matrix, memory = preflight_tables(made())
    assert matrix.rows[1][-1].text == "70.7 %"
    assert matrix.note == ""
    assert [row[-1].text for row in memory.rows] == ["83.6 %", "–"]


@pytest.mark.parametrize(
    ("limit", "why"), [(700, "the driver gives no reason; check the card"), (400, "power limit 400 W")]
)
def test_a_power_limit_is_a_reason_only_where_the_gpus_differ_in_it(limit, why):
    fast = DeviceCheck(index=0, flops_per_second=7e14, power_limit_watts=700)
    slow = DeviceCheck(index=1, flops_per_second=5e14, power_limit_watts=limit)
    (warning,) = preflight.preflight_warnings(made(devices=(fast, slow)))
    assert warning.endswith(f"reaches 71 % of the fastest GPU ({why})")


def test_a_gpu_below_the_others_is_named_with_its_drivers_reason():
    checks = [
        DeviceCheck(index=0, flops_per_second=7e14),
        DeviceCheck(index=1, flops_per_second=5e14, power_limit_watts=350, throttled_by=("heat", "the power cap")),
        DeviceCheck(index=2, flops_per_second=6.9e14),
        DeviceCheck(index=3, flops_per_second=4e14, other_processes=2),
        DeviceCheck(index=4, flops_per_second=4e14, other_processes=1),
    ]
    slow, shared, by_one = preflight.preflight_warnings(made(devices=tuple(checks)))
    assert slow == "gpu 1: reaches 71 % of the fastest GPU (clock reduced by heat; power limit 350 W)"
    assert "gpu 3: reaches 57 % of the fastest GPU (2 other processes on it)" in shared
    assert by_one.endswith("(1 other process on it)")


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs; the second is hot, and other processes use it."""
    hot = DeviceReading(power_limit_watts=700.0, throttled_by=("heat",), processes=(Process(pid=4711), Process(pid=1)))
    known = {"a": Replay([DeviceReading()]), "b": Replay([hot])}
    monkeypatch.setattr(telemetry, "open_devices", lambda ids: [known[one] for one in ids])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(matmul, "matmul_rate", lambda _size, _precision, device: (7e14 - 2e14 * device.index, 6e14))
    info = GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=2)
    return Machine(platform="nvd", gpu_info=info, host="node1", gpu_ids=("a", "b"))


def test_a_single_process_measures_every_gpu(two_gpus):
    sound, hot = preflight.device_checks(two_gpus, torch.device("cuda", 0), 1)
    assert (sound.flops_per_second, sound.throttled_by, sound.other_processes) == (7e14, (), 0)
    assert (hot.index, hot.flops_per_second, hot.throttled_by) == (1, 5e14, ("heat",))
    assert (hot.power_limit_watts, hot.other_processes) == (700.0, 1)


def test_each_of_several_processes_measures_its_own_gpu(two_gpus, monkeypatch):
    monkeypatch.setattr(collectives, "gathered", lambda own, processes: [own] * processes)
    checks = preflight.device_checks(two_gpus, torch.device("cuda", 1), 16)
    assert (len(checks), checks[0].index, checks[0].id, checks[0].flops_per_second) == (16, 1, "b", 5e14)


def test_a_gpu_number_is_refused_under_torchrun(two_gpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tensorprimat.machine.platform.detect_platform", lambda **_: two_gpus)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["preflight", "--device", "cuda:1", "--output", str(tmp_path)]) == 2
    assert "each process that torchrun starts takes a GPU of its own; --device cuda" in capsys.readouterr().err


def test_a_gpu_below_the_catalogue_is_named():
    (row, *_) = made().matmul
    (printed,) = preflight.preflight_warnings(made(matmul=(row.model_copy(update={"best_flops_per_second": 3e14}),)))
    assert printed.startswith("bf16: the best matrix product reaches 30 % of the catalogue's peak")


def test_a_sound_machine_is_not_warned_about():
    assert preflight.preflight_warnings(made()) == []


def test_a_sweep_estimates_times_from_the_preflight():
    rate, origin = sweep.best_rate(LAPTOP, "cpu", "bf16", kept=made())
    assert (rate, origin) == (7e14, "preflight of 2026-01-02T03:04:05+00:00")


def test_the_command_prints_tables_and_keeps_the_file(tmp_path, capsys):
    assert main(["preflight", "--quick", "--device", "cpu", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Matrix products" in out
    assert "| triad |" in out
    (path,) = (tmp_path / "preflight").iterdir()
    assert records.load(path).platform == "cpu"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "preflight failed: out of memory; ./fix",
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "failed: RuntimeError: CUDA error: uncorr"),
    ],
)
def test_a_preflight_that_fails_is_reported_in_one_line(tmp_path, capsys, monkeypatch, error, says):
    def fail(*_):
        raise error

    monkeypatch.setattr(preflight, "memory_rates", fail)
    assert main(["preflight", "--quick", "--device", "cpu", "--output", str(tmp_path)]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert says in line
    assert "unexpected" not in line


def test_json_is_the_only_thing_on_stdout(tmp_path, capsys):
    assert main(["preflight", "--quick", "--device", "cpu", "--json", "--output", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "preflight"


@pytest.mark.parametrize(
    ("device", "says"), [("tpu", "must be auto, cpu, cuda or cuda:N"), ("cuda:9", "--device cuda:9")]
)
def test_a_missing_device_is_reported_in_one_line(device, says, tmp_path, capsys):
    assert main(["preflight", "--device", device, "--output", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "0"}


def nodes_of(slow=5e14):
    return tuple(
        DeviceCheck(index=gpu, host=f"node{node}", flops_per_second=slow if (node, gpu) == (2, 3) else 7e14)
        for node in range(4)
        for gpu in range(8)
    )


def test_nodes_have_a_row_each_the_slowest_first():
    table = next(one for one in preflight_tables(made(devices=nodes_of())) if one.key == "nodes")
    assert [cell.text for cell in table.rows[0]] == ["node2", "8", "700", "3", "500", "71.4 %", "not checked"]
    assert len(table.rows) == 4
    assert not [one for one in preflight_tables(made(devices=nodes_of()[:8])) if one.key == "nodes"]


def test_each_process_looks_at_its_own_gpu_and_the_first_of_a_node_at_the_cpu(two_gpus, monkeypatch):
    """The GPU is looked at by its number on the node, and only while its own process does not use it."""
    asked = []

    def look(gpu_ids):
        asked.append(tuple(gpu_ids))
        gpu = noise.GpuLook(
            id=gpu_ids[0], other_processes=1, power_limit_watts=700.0 - 100 * len(asked), max_clock_hertz=None,
            throttled_by=(),
        )  # fmt: skip
        return noise.NoiseReading(cores=2, load=4.0, busy_share=0.5, cpu_cap_hertz=2e9 + 1e9 * len(asked), gpus=(gpu,))

    together = SimpleNamespace(processes=2, rank=1, wait=lambda _: None)
    monkeypatch.setattr(noise, "observe_machine", look)
    monkeypatch.setenv("LOCAL_RANK", "1")
    before, after = (watch._look(two_gpus, "cuda:1", together, when) for when in ("before", "after"))
    assert asked == [("b",), ("b",)]
    other, cap = watch._disturbances(before, after)
    assert (other.code, other.values["when"]) == ("shared_gpu", "before the measurement")
    assert (other.values["processes"], other.values["gpu"]) == ("1 other process", 1)
    assert (cap.code, cap.values) == ("power_cap_moved", {"when": "meanwhile", "gpu": 1, "before": 600, "after": 500})
    monkeypatch.setenv("LOCAL_RANK", "0")
    busy = watch._disturbances(watch._look(two_gpus, "cuda:0", together, "before"), after)[0]
    assert (busy.code, busy.values["share"], busy.values["cores"]) == ("other_work", "50 %", 2)


@pytest.mark.usefixtures("warm")
def test_processes_of_torchrun_meet_without_a_device():
    program = """
import json, sys, time
from tensorprimat.measure.watch import Meeting
together = Meeting()
times = []
for point, late in (("begin", together.rank), ("end", 1 - together.rank)):
    time.sleep(0.2 * late)
    times.append(time.time())
    together.wait(point)
    times.append(time.time())
found = together.gathered("times", json.dumps(times))
assert (found is None) == (together.rank == 1)
if found: print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python",
         sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    begin, begun, end, ended = zip(*map(json.loads, json.loads(done.stdout)), strict=True)
    assert max(begin) <= min(begun), "each waits for the other"
    assert max(end) <= min(ended)


@in_each(
    ("environment", "flags", "complaint"),
    [
        (TORCHRUN, ("--executor", "slurm"), "--executor slurm: not under torchrun, whose processes would each submit"),
        (SRUN, (), "several processes per node: not under srun, whose processes on one node would measure the same"),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, ("--output", "a.json"), "--output a.json: not under srun, whose"),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, (), None),  # a record of each node
    ],
)
def test_processes_that_would_disturb_each_other_are_refused(
    environment, flags, complaint, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "measure_watched", lambda *_, **__: made())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["preflight", "--quick", "--device", "cpu", *flags]) == (2 if complaint else 0)
    assert (complaint or "Saved: ") in capsys.readouterr().err


def test_the_gpus_below_a_share_of_the_median_are_named_with_their_node():
    [printed] = made(devices=nodes_of()).below(0.9)
    assert printed == "node2: gpu 3 reaches 71.4 % of the median of 32 GPUs, less than 90 %"
    assert made(devices=nodes_of(slow=6.4e14)).below(0.9) == ()


@pytest.mark.parametrize(("slow", "code"), [(5e14, 1), (6.9e14, 0)])
def test_fail_below_fails_the_command_and_names_the_slow_node(tmp_path, capsys, monkeypatch, slow, code):
    monkeypatch.setattr(watch, "measure_watched", lambda *_, **__: made(devices=nodes_of(slow)))
    monkeypatch.setenv("WORLD_SIZE", "32")
    monkeypatch.setenv("RANK", "0")
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
