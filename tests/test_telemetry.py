"""Telemetry from recordings, and from stand-ins for the drivers' packages; no GPU needed."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import plausible
import pytest
from each import in_each
from replay import Replay

from tensorprimat.core.provenance import Provenance
from tensorprimat.core.result import GpuInfo, Model, Run, TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import summarise
from tensorprimat.engines import power
from tensorprimat.machine import nvidia, telemetry
from tensorprimat.machine.device import DeviceReading, Process
from tensorprimat.machine.telemetry import Sampler


def sampled(*watts):
    """Return a sampler that has read these powers, one second apart, from second 100 on."""
    sampler = Sampler([Replay([DeviceReading(power_watts=value) for value in watts])])
    for _ in watts:
        sampler.sample()
    sampler._times = [100.0 + second for second in range(len(watts))]
    return sampler


def test_power_of_a_step_is_the_mean_of_the_samples_in_it():
    sampler = sampled(100.0, 200.0, 400.0, 800.0)
    assert sampler.mean_watts(100.5, 102.5) == 300.0


def test_every_row_has_the_power_of_its_own_time():
    found = sampled(100.0, 200.0, 400.0, 800.0).columns(np.array([101.5, 103.5, 200.0]), np.array([1.0, 2.0, 1.0]))
    np.testing.assert_array_equal(found["power_watts_per_gpu"], [200.0, 600.0, np.nan])


def test_a_step_between_two_samples_takes_the_nearer():
    sampler = sampled(100.0, 200.0, 400.0)
    assert sampler.mean_watts(101.1, 101.2) == 200.0
    assert sampler.mean_watts(101.7, 101.8) == 400.0


def test_a_step_far_from_any_sample_has_no_power():
    assert sampled(100.0, 200.0).mean_watts(110.0, 111.0) is None
    assert Sampler([]).mean_watts(0.0, 1.0) is None


def test_the_power_of_several_devices_is_their_mean():
    sampler = Sampler([Replay([DeviceReading(power_watts=300.0)]), Replay([DeviceReading(power_watts=500.0)])])
    sampler.sample()
    assert sampler.mean_watts(time.time() - 1, time.time() + 1) == 400.0


def test_a_device_without_a_power_reading_does_not_have_zero_power():
    sampler = Sampler([Replay([DeviceReading(power_watts=None)])])
    sampler.sample()
    assert sampler.mean_watts(time.time() - 1, time.time() + 1) is None


def test_sampling_runs_in_the_background_and_ends():
    sampler = Sampler([Replay([DeviceReading(power_watts=250.0)])], period=0.005)
    began = time.time()
    sampler.start()
    while sampler.mean_watts(began, time.time()) is None and time.time() < began + 5:
        time.sleep(0.005)
    sampler.stop()
    assert sampler.mean_watts(began, time.time()) == 250.0
    assert not sampler._thread.is_alive()


def test_a_driver_that_hangs_does_not_hold_up_the_end_of_a_training(monkeypatch):
    class Hanging(Replay):
        answers = threading.Event()

        def glance(self):
            self.answers.wait(30)
            return super().glance()

    monkeypatch.setattr(telemetry, "DRIVER_SECONDS", 0.05)
    sampler = Sampler([Hanging([DeviceReading(power_watts=250.0)])], period=0.005)
    sampler.start()
    began = time.monotonic()
    sampler.stop()
    took = time.monotonic() - began
    Hanging.answers.set()
    assert took < 10
    assert (sampler.first[0].power_watts, sampler.last) == (250.0, ())
    assert sampler.columns(np.array([2.0]), np.array([1.0])) == {}


def test_a_throttled_clock_is_reported_with_the_share_of_its_time():
    readings = [
        DeviceReading(throttled_by=("heat",)),
        DeviceReading(),
        DeviceReading(throttled_by=("heat", "the power cap")),
    ]
    sampler = Sampler([Replay(readings)])
    for _ in readings:
        sampler.sample()
    assert sampler.throttled_by == ("heat", "the power cap")
    (told,) = sampler.warnings()
    assert (told.code, told.field, told.values) == ("clock_limited", "clock", {"why": "heat", "count": 2, "looks": 3})


def following(times, readings):
    """Return a sampler that took these readings of one device at these moments."""
    sampler = Sampler([Replay(readings)])
    for _ in readings:
        sampler.sample()
    sampler._looks = [(time, looks) for time, (_, looks) in zip(times, sampler._looks, strict=True)]
    return sampler


def curve(seconds=10, *, watts=500.0, joules=lambda second: 1000.0 + 500.0 * second, held=()):
    """Return a sampler with one reading a second of a device with constant power."""
    return following(
        [100.0 + second for second in range(seconds + 1)],
        [
            DeviceReading(
                power_watts=watts,
                energy_joules=joules(second),
                clock_hertz=1.98e9 if second < 5 else 1.5e9,
                temperature_celsius=60.0 + second,
                throttled_by=("heat", "the power cap") if second in held else ("the power cap",),
            )
            for second in range(seconds + 1)
        ],
    )


def test_energy_of_a_step_is_the_growth_of_the_counter_over_it():
    found = curve().columns(np.array([102.0, 104.5]), np.array([2.0, 2.5]))
    assert found["energy_joules_per_gpu"] == pytest.approx([1000.0, 1250.0])


@pytest.mark.parametrize("watts", [0.0, None])
def test_a_counter_is_used_where_the_sampled_power_is_missing_or_zero(watts):
    assert curve(watts=watts).counter_refused() is None


def test_clock_and_throttled_time_of_a_step_are_those_of_its_moments():
    found = curve(held=(6, 7)).columns(np.array([104.0, 110.0]), np.array([4.0, 4.0]))
    assert found["clock_hertz"] == pytest.approx([1.98e9, 1.5e9])
    assert found["throttled_seconds"] == pytest.approx([4.0, 4.0])
    assert found["slowdown_seconds"] == pytest.approx([0.0, 2.0])
    assert found["temperature_celsius"] == pytest.approx([61.5, 67.5])


def test_the_temperature_of_a_step_is_that_of_the_hottest_gpu():
    sampler = Sampler([Replay([DeviceReading(temperature_celsius=one)] * 2) for one in (55.0, 81.0)])
    sampler.sample()
    sampler.sample()
    sampler._looks = [(100.0 + at, looks) for at, (_, looks) in enumerate(sampler._looks)]
    assert sampler.columns(np.array([101.0]), np.array([1.0]))["temperature_celsius"] == pytest.approx([81.0])
    silent = Sampler([Replay([DeviceReading(temperature_celsius=55.0)] * 2), Replay([DeviceReading()] * 2)])
    silent.sample()
    silent.sample()
    assert "temperature_celsius" not in silent.columns(np.array([101.0]), np.array([1.0]))


def test_the_last_step_of_a_long_run_keeps_its_energy_if_the_devices_clock_is_fast():
    hour = curve(3600)
    ends = np.arange(110.0, 3701.0, 10.0) * (1 + 2e-5) - 100 * 2e-5
    energy = hour.columns(ends, np.full(len(ends), 10.0 * (1 + 2e-5)))["energy_joules_per_gpu"]
    assert ends[-1] > 3700.05
    assert energy.sum() == pytest.approx(500.0 * 3600, rel=1e-4)
    late = hour.columns(ends + 1, np.full(len(ends), 10.0))["energy_joules_per_gpu"]
    assert np.isnan(late[-1])
    assert np.isfinite(late[:-1]).all()


def test_a_step_outside_of_the_sampling_has_no_energy():
    found = curve().columns(np.array([99.0, 100.5, 111.0]), np.array([1.0, 1.0, 1.0]))
    assert np.isnan(found["energy_joules_per_gpu"]).all()


@in_each(
    ("joules", "why"),
    [
        (lambda _: 5e6, "stood still"),
        (lambda second: 500.0 * min(second, 8), "stood still"),
        (lambda second: 500.0 * (second if second < 3 else max(second - 2, 3)), "stood still"),
        (lambda second: (4e6 + 500 * second) % (4e6 + 2400), "went backwards"),
        (lambda second: 500.0 * second + (1e6 if second > 4 else 0), "jumped"),
    ],
)
def test_a_frozen_or_wrapping_counter_is_refused_and_sampling_takes_its_place(joules, why):
    sampler = curve(joules=joules)
    assert "energy_joules_per_gpu" not in sampler.columns(np.array([104.0]), np.array([2.0]))
    (warning,) = sampler.column_warnings()
    assert warning.code == "energy_counter_refused"
    assert why in warning.values["why"]


def test_a_device_without_a_counter_gives_no_energy_and_no_warning():
    sampler = curve(joules=lambda _: None)
    assert "energy_joules_per_gpu" not in sampler.columns(np.array([104.0]), np.array([2.0]))
    assert sampler.column_warnings() == []


def test_one_missing_reading_is_bridged_and_several_leave_their_steps_empty():
    once = curve(joules=lambda second: None if second == 5 else 500.0 * second)
    ended, seconds = np.arange(101.0, 111.0), np.ones(10)
    assert once.columns(ended, seconds)["energy_joules_per_gpu"] == pytest.approx([500.0] * 10)
    assert once.column_warnings() == []
    twice = curve(joules=lambda second: None if second in (2, 5, 6) else 500.0 * second)
    found = twice.columns(ended, seconds)["energy_joules_per_gpu"]
    assert np.isnan(found).tolist() == [False] * 4 + [True] * 3 + [False] * 3
    (told,) = twice.column_warnings()
    assert (told.code, told.field) == ("readings_missing", "power_metrics")
    assert told.values == {"name": "energy", "missing": 2, "readings": 11}


def test_energy_comes_from_sampled_power_if_some_steps_have_no_counter_reading():
    result = measured(curve(joules=lambda second: None if second in (5, 6) else 400.0 * second))
    figures = result.power_metrics
    assert figures.energy_joules_per_gpu == pytest.approx(500.0 * result.performance_metrics.measured_time_seconds)
    assert figures.sampled_energy_joules_per_gpu is None


def test_a_clock_that_one_of_two_gpus_does_not_report_is_named():
    pair = Sampler([Replay([DeviceReading(clock_hertz=1e9)]), Replay([DeviceReading()])])
    pair.sample()
    pair.sample()
    assert "clock_hertz" not in pair.columns(np.array([time.time()]), np.array([1e-9]))
    (told,) = pair.column_warnings()
    assert (told.code, told.values) == ("readings_missing", {"name": "clock", "missing": 2, "readings": 2})


def test_only_the_gpus_of_the_training_are_sampled(monkeypatch):
    result = result_on("GPU-a", "GPU-b", "GPU-c")
    one = power.with_own_gpus(result, SimpleNamespace(device_ids=[1]))
    assert one.provenance.gpu_ids == ("GPU-b",)
    requested = []
    monkeypatch.setattr(telemetry, "open_devices", lambda ids: requested.extend(ids) or [])
    power.devices_of(one)
    assert requested == ["GPU-b"]
    assert power.devices_of(result_on()) == []  # an unknown identity must not open every GPU


@in_each(
    ("result", "drivers", "reason"),
    [
        (lambda: result_on("GPU-other"), {}, "nvidia-ml-py lists other GPUs than those that take part"),
        (lambda: result_on("GPU-a"), None, "nvidia-ml-py (pip install nvidia-ml-py) is not installed, or finds no GPU"),
        (lambda: result_on(), {}, "this version of torch does not report which GPUs take part; install a newer torch"),
        (lambda: result_on(NVML_ID), {}, "the driver reports none for this GPU"),
        (
            lambda: result_on(NVML_ID, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
            {"nvmlDeviceGetPowerUsage": 600_000},
            "a MIG instance has no power meter of its own",
        ),
        (lambda: result_on(NVML_ID), {"nvmlDeviceGetPowerUsage": 600_000}, None),
    ],
)
def test_a_run_without_power_has_a_reason(monkeypatch, result, drivers, reason):
    monkeypatch.setitem(sys.modules, "pynvml", None if drivers is None else nvml(**drivers))
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    described = result()
    sampler = Sampler(power.devices_of(described))
    sampler.start()
    sampler.stop()
    expected = [] if reason is None else [f"power_metrics: no power was measured: {reason}"]
    assert power.unmeasured(described, sampler) == expected


def result_on(*gpu_ids, name=None):
    return plausible.bare(
        gpu_info=GpuInfo(device_name=name),
        model=Model(name="llama"),
        training_config=TrainingConfig(num_gpus=1),
        provenance=Provenance(gpu_ids=gpu_ids),
        runs=(Run(index=0),),
    )


def measured(sampler, *, watts=500.0):
    """Return a result of ten steps of a second that the sampler watched."""
    rows = [Step(index=index, seconds=1.0, ended_at=101.0 + index, power_watts_per_gpu=watts) for index in range(10)]
    result, steps = power.with_telemetry(result_on("GPU-a"), Steps.of(rows), sampler)
    return summarise(result.changed(steps=steps))


def test_the_result_has_both_energies_clock_and_throttling():
    sampler = curve(held=(6, 7))
    limits = [
        {"power_limit_watts": one, "default_power_limit_watts": 700.0, "max_clock_hertz": 2e9} for one in (650, 600)
    ]
    sampler.first = tuple(DeviceReading(**one) for one in limits)
    result = measured(sampler)
    assert {name: getattr(result.gpu_info, name) for name in limits[1]} == limits[1]
    figures = result.power_metrics
    time = result.performance_metrics.measured_time_seconds
    assert figures.energy_joules_per_gpu == pytest.approx(500.0 * time)
    assert figures.sampled_energy_joules_per_gpu == pytest.approx(500.0 * time)
    assert 1.5e9 < figures.avg_clock_hertz < 1.98e9
    assert (figures.throttled_seconds, figures.slowdown_seconds) == pytest.approx((time, 2.0))
    assert 60 < figures.avg_temperature_celsius < figures.max_temperature_celsius < 70
    mean = f" ({figures.avg_clock_hertz / 1e9:.2f} GHz on average)"
    _, hot, falls = [one for one in result.remarks if one.field == "clock"]
    assert (hot.code, falls.code, round(falls.values["first"] / 1e9, 2)) == ("throttled", "clock_fell", 1.98)
    assert hot.values == {"share": f"{200 / time:.0f} %", "reasons": ["heat"], "mean": mean}
    assert [run.throttled_by for run in result.runs] == [("heat", "the power cap")]


def test_a_counter_that_sampled_power_contradicts_is_named():
    told = measured(curve(), watts=400.0).remarks
    assert ("energies_differ", "5 %") in [(one.code, one.values.get("tolerance")) for one in told]
    assert {"energies_differ", "energy_counter_refused"}.isdisjoint(
        one.code for one in measured(curve(), watts=495.0).remarks
    )


def noting(name, ask, requested):
    """Return the query, which notes its name at each call."""
    return lambda *stated: requested.append(name) or ask(*stated)


def test_the_light_reading_covers_only_the_figures_shown_over_time(monkeypatch):
    module = nvml(nvmlDeviceGetPowerUsage=500_000, nvmlDeviceGetTotalEnergyConsumption=7_000)
    requested = []
    for name in NVML_QUESTIONS:
        monkeypatch.setattr(module, name, noting(name, getattr(module, name), requested))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    (device,) = nvidia.devices()
    requested.clear()
    reading = device.glance()
    assert (reading.power_watts, reading.energy_joules) == (500.0, 7.0)
    assert sorted(requested) == [
        "nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature", "nvmlDeviceGetTotalEnergyConsumption",
    ]  # fmt: skip
    assert "NVML" in device.boundary


def test_the_cost_of_sampling_is_known():
    assert Sampler([]).seconds_per_sample is None
    sampler = sampled(100.0, 200.0)
    sampler.first, sampler.last = (DeviceReading(temperature_celsius=41.0),), (DeviceReading(temperature_celsius=67.0),)
    assert sampler.seconds_per_sample >= 0
    assert power.line(sampler).startswith("Telemetry: 1 GPU, ")
    assert power.line(sampler).endswith(" ms per sample; 41 °C at the start, 67 °C at the end")
    assert power.line(Sampler([])) is None


def test_processes_of_other_programs_are_foreign():
    reading = DeviceReading(processes=(Process(pid=1), Process(pid=2)))
    assert telemetry.foreign_processes(reading, ours=(2,)) == (Process(pid=1),)
    assert telemetry.foreign_processes(DeviceReading(), ours=(2,)) == ()
    of_host = (Process(pid=4711), Process(pid=4712))  # numbers of the host, where one is this process
    counts = [len(telemetry.foreign_processes(DeviceReading(processes=of_host[:seen]), ours=(2,))) for seen in (1, 2)]
    assert counts == [0, 1]


NVML_ID = "GPU-AA47B36E-4d4b-0a1a-9a42-2f0f5a6c0d11"


class NvmlError(Exception):
    pass


def nvml(**answers):
    """Return a stand-in for pynvml: what is not in answers is not supported."""
    known = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUUID": NVML_ID.encode(),
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlSystemGetDriverVersion": b"580.95.05",
        **answers,
    }
    module = ModuleType("pynvml")

    def unsupported(*_):
        raise NvmlError("not supported")

    def answering(value):
        return lambda *_: value

    for name in NVML_QUESTIONS:
        setattr(module, name, answering(known[name]) if name in known else unsupported)
    module.NVMLError = NvmlError
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM, module.NVML_TEMPERATURE_GPU = 1, 2, 0
    return module


NVML_QUESTIONS = (
    "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
    "nvmlSystemGetDriverVersion", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMigMode",
)  # fmt: skip


def test_nvml_is_read_in_si_units(monkeypatch):
    answers = {
        "nvmlDeviceGetPowerUsage": 612_345,
        "nvmlDeviceGetEnforcedPowerLimit": 500_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetClockInfo": 1_755,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x1,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=77, usedGpuMemory=None)],
    }
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**answers))
    (device,) = nvidia.devices()
    assert device.driver == "NVIDIA 580.95.05"
    reading = device.read()
    assert reading.power_watts == pytest.approx(612.345)
    assert (reading.power_limit_watts, reading.default_power_limit_watts) == (500.0, 700.0)
    assert reading.clock_hertz == 1.755e9
    assert reading.throttled_by == ("the power cap",)
    assert reading.processes == (Process(pid=77, memory_bytes=None),)
    assert reading.energy_joules is None  # not supported is not zero


@in_each(("mig", "seen"), [({}, 1), ({"nvmlDeviceGetMigMode": [0, 0]}, 1), ({"nvmlDeviceGetMigMode": [1, 1]}, 0)])
def test_processes_on_other_instances_of_a_divided_gpu_are_not_other_work(monkeypatch, mig, seen):
    present = [SimpleNamespace(pid=77, usedGpuMemory=None)]
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetComputeRunningProcesses=present, **mig))
    (device,) = nvidia.devices()
    assert len(device.read().processes) == seen


def test_a_device_is_found_by_the_identity_that_torch_gives(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert [device.name for device in telemetry.open_devices(["aa47b36e-4d4b-0a1a-9a42-2f0f5a6c0d11"])] == [
        "NVIDIA H100 80GB HBM3"
    ]
    assert telemetry.open_devices(["another"]) == []


def test_a_gpu_that_may_not_be_opened_does_not_hide_the_others(monkeypatch):
    driver = nvml(nvmlDeviceGetCount=2, nvmlDeviceGetPowerUsage=600_000)

    def handle_of(index):
        if index == 0:
            raise NvmlError("insufficient permissions")
        return index

    driver.nvmlDeviceGetHandleByIndex = handle_of
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    both = result_on("GPU-a", NVML_ID)
    sampler = Sampler(power.devices_of(both))
    sampler.start()
    sampler.stop()
    assert sampler.mean_watts(time.time() - 1, time.time()) == 600.0
    (told,) = power.unmeasured(both, sampler)
    assert (told.code, told.field, told.values) == ("power_of_some_gpus", "power_metrics", {"read": 1, "gpus": 2})


def test_a_package_without_a_question_of_later_versions_leaves_its_figure_out(monkeypatch):
    driver = nvml(nvmlDeviceGetPowerUsage=600_000)
    del driver.nvmlDeviceGetCurrentClocksThrottleReasons, driver.nvmlDeviceGetTotalEnergyConsumption
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    (device,) = nvidia.devices()
    assert device.glance() == DeviceReading(power_watts=600.0)


def test_without_packages_there_are_no_devices_and_no_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert telemetry.open_devices([]) == []
