"""A busy machine and changing limits are reported before and after a run, and preflight figures are then not kept."""

from dataclasses import replace

import pytest
from each import in_each
from replay import Replay
from test_run_command import QUICK, engine, folder, run  # noqa: F401  # fixtures

from tensorprimat.cli import benchmark, main
from tensorprimat.core.notices import Notice
from tensorprimat.machine import noise
from tensorprimat.machine.device import DeviceReading, Process
from tensorprimat.storage import store

REAL_LOOK = noise.observe_machine  # the suite replaces it by a quiet machine
QUIET = noise.NoiseReading(cores=8, load=0.3, busy_share=0.01, cpu_cap_hertz=3.5e9)
BUSY = replace(QUIET, load=9.0, busy_share=0.6)
GPU = noise.GpuLook(id="a", other_processes=0, power_limit_watts=700.0, max_clock_hertz=2e9, throttled_by=())


def test_a_quiet_machine_gives_no_warning():
    assert noise.about(QUIET, "before run 1") == []
    assert noise.moved(QUIET, QUIET, "during run 1") == []


@pytest.mark.parametrize("look", [replace(BUSY, busy_share=0.02), replace(BUSY, load=2.0)])
def test_a_load_of_the_past_or_a_short_burst_alone_is_not_noise(look):
    assert not look.is_busy


def test_a_busy_machine_is_reported_with_its_load_and_a_remedy():
    (printed,) = noise.about(BUSY, "before run 1")
    assert (printed.code, printed.field) == ("other_work", "noise")
    assert printed.values == {"when": "before run 1", "share": "60 %", "cores": 8, "load": ", load 9.0"}


def test_other_processes_and_throttling_of_a_gpu_are_reported():
    look = replace(QUIET, gpus=(replace(GPU, other_processes=2, throttled_by=("the power brake", "the power cap")),))
    company, clock = noise.about(look, "after run 2")
    assert "2 other processes on GPU 0" in company
    assert "reduced by the power brake;" in clock


@in_each(
    ("why", "cools"), [(("the power brake",), False), (("heat (memory)",), True), (("the power cap", "heat"), True)]
)
def test_only_a_hot_gpu_is_advised_to_cool_down(why, cools):
    (warning,) = noise.clocks(replace(QUIET, gpus=(replace(GPU, throttled_by=why),)), "before run 1")
    assert ("--cooldown" in warning) == cools
    assert "power cap" not in warning


def test_limits_that_move_during_a_run_are_reported():
    before = replace(QUIET, gpus=(GPU,))
    after = replace(QUIET, cpu_cap_hertz=2.0e9, gpus=(replace(GPU, power_limit_watts=500.0, max_clock_hertz=1.5e9),))
    cpu, power, clock = noise.moved(before, after, "during run 1")
    assert "3.50 GHz to 2.00 GHz" in cpu
    assert "700 W to 500 W" in power
    assert "highest clock of GPU 0" in clock


@in_each(("own", "share"), [({0, 1}, 0.05), ({2, 3}, 1.0), ({0, 2}, 0.55)])
def test_only_the_cores_that_the_process_may_use_count_as_busy(monkeypatch, own, share):
    percents = [10.0, 0.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0]

    def cpu_percent(interval, percpu=False):
        assert interval > 0
        return percents if percpu else sum(percents) / len(percents)

    monkeypatch.setattr(noise.psutil, "cpu_percent", cpu_percent)
    monkeypatch.setattr(noise.os, "sched_getaffinity", lambda _: own, raising=False)
    look = REAL_LOOK()
    assert (look.cores, look.busy_share) == (2, pytest.approx(share))


def test_noise_reads_gpu_processes_and_limits_and_the_cpu_frequency_limit(tmp_path, monkeypatch):
    reading = DeviceReading(power_limit_watts=400.0, processes=(Process(pid=1), Process(pid=2)))
    monkeypatch.setattr(noise.telemetry, "open_devices", lambda ids: [Replay([reading], id=ids[0])])
    policy = tmp_path / "policy0"
    policy.mkdir()
    (policy / "scaling_max_freq").write_text("3200000\n")
    monkeypatch.setattr(noise, "CAPS", tmp_path)
    look = REAL_LOOK(["gpu-1"])
    assert (look.gpus[0].other_processes, look.gpus[0].power_limit_watts) == (2, 400.0)
    assert look.cpu_cap_hertz == 3.2e9
    assert REAL_LOOK().gpus == ()


def test_noise_is_a_warning_on_screen_and_in_the_result(folder, engine, monkeypatch, capsys):  # noqa: F811, ARG001
    looks = iter([QUIET, replace(BUSY, cpu_cap_hertz=2e9), QUIET])
    monkeypatch.setattr(noise, "observe_machine", lambda _ids=(): next(looks))
    assert run("--model", "llama", "--runs", "1", *QUICK) == 0
    result = store.load(folder / "output" / "benchmark_cpu_llama.json")
    printed = [warning for warning in result.warnings if warning.startswith("noise:")]
    assert len(printed) == 2
    assert (
        Notice("other_work", "noise", when="after run 1", share="60 %", cores=8, load=", load 9.0").text
        in capsys.readouterr().out
    )


def test_a_warning_of_every_run_is_printed_once_at_the_end_with_a_count(folder, engine, monkeypatch, capsys):  # noqa: F811, ARG001
    loads = iter(range(10, 30))
    monkeypatch.setattr(noise, "observe_machine", lambda _ids=(): replace(BUSY, load=float(next(loads))))
    assert run("--model", "llama", "--runs", "3", *QUICK) == 0
    result = store.load(folder / "output" / "benchmark_cpu_llama.json")
    kept = [warning for warning in result.warnings if warning.startswith("noise: ")]
    assert len(kept) == 6
    _, _, end = capsys.readouterr().out.partition("BENCHMARK COMPLETE")
    printed = [line for line in end.splitlines() if line.startswith("warning: noise: ")]
    assert printed == [f"warning: {kept[0]} (5 more like this)"]


def test_only_the_gpus_of_the_run_are_looked_at(folder, engine, monkeypatch):  # noqa: F811, ARG001
    looked = []
    machine = replace(benchmark.detect_platform(), gpu_ids=("a", "b", "c"))
    monkeypatch.setattr(benchmark, "detect_platform", lambda: machine)
    monkeypatch.setattr(noise, "observe_machine", lambda ids=(): looked.append(ids) or QUIET)
    assert run("--model", "llama", "--runs", "1", *QUICK) == 0
    assert looked == [("a",), ("a",)]


@pytest.mark.usefixtures("short_preflight")
def test_preflight_keeps_no_figures_of_a_busy_machine_unless_requested(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(noise, "observe_machine", lambda _ids=(): BUSY)
    arguments = ["preflight", "--quick", "--device", "cpu", "--output", str(tmp_path)]
    assert main(arguments) == 1
    assert not list(tmp_path.rglob("*.json"))
    assert "not kept" in capsys.readouterr().err
    assert main([*arguments, "--keep-noisy"]) == 0
    (kept,) = tmp_path.rglob("*.json")
    assert noise.about(BUSY, "before the measurement")[0].text in kept.read_text()
