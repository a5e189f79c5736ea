"""Advice about scattered trials, slow first ones, throttling, other processes and memory."""

import os
import re
import threading

from replay import Replay
from test_passes import spec

from tensorprimat.core.result import GpuInfo
from tensorprimat.machine import telemetry
from tensorprimat.machine.device import DeviceReading, Process
from tensorprimat.machine.platform import Machine
from tensorprimat.measure import advice
from tensorprimat.storage.micro_result import MicroResult, with_figures


def advised(**changed):
    values = spec().model_dump(exclude={"forward_only", "num_parameters"}) | changed
    return advice.advise(with_figures(MicroResult(**values)))


def test_scattered_trials_give_advice_on_the_number_of_trials():
    (printed,) = advised(trial_times_ms=(10.0, 14.0, 10.0, 14.0), num_trials=4)
    assert printed == "scatter: CV 19.2 % over 4 trials; --trials 93 would bring the mean to about ±2 %"


def test_advice_promises_no_more_than_its_number_of_trials_gives():
    (printed,) = advised(trial_times_ms=(10.0, 90.0, 10.0, 90.0), num_trials=4)
    assert printed.endswith("CV 92.4 % over 4 trials; --trials 200 would bring the mean to about ±6.5 %")


def test_a_slow_first_trial_gives_advice_on_warmup():
    (printed,) = advised(trial_times_ms=(20.0, 10.0, 10.0, 10.0), num_warmups=1)
    assert printed.endswith("so the warm-up was too short; use --warmup-steps 6")


def test_a_slow_first_trial_of_a_noisy_machine_gives_advice_on_trials():
    (printed,) = advised(trial_times_ms=(20.0, 10.0, 15.0, 5.0, 18.0, 9.0), num_trials=6)
    assert "--trials" in printed


class OnGpu(advice.Watch):
    """A look at a device whose driver lists these processes."""

    def __init__(self, *pids, throttled_by=()):
        processes = tuple(Process(pid=pid) for pid in pids)
        reading = DeviceReading(processes=processes, throttled_by=throttled_by)
        self._sampler = telemetry.Sampler([Replay([reading])], period=60.0)
        self._sampler.start()


def test_a_throttling_clock_and_another_process_are_reported():
    clock, company = OnGpu(os.getpid(), 4711, throttled_by=("heat",)).end()
    assert re.fullmatch(r"clock: reduced by heat in (\d) of \1 samples", clock)
    assert company.startswith("device: another process uses this GPU (pid 4711); stop it")


def test_in_a_container_only_a_second_process_on_the_gpu_is_reported():
    assert OnGpu(4711).end() == ()
    assert "another process uses this GPU (in another container)" in OnGpu(4711, 4712).end()[0]


def test_a_gpu_whose_driver_hangs_while_a_cell_is_timed_does_not_hold_up_its_result(monkeypatch):
    class Hanging(Replay):
        """A device whose driver answers once, and then only when the test lets it."""

        def read(self):
            if self._next:
                answers.wait(30)
                answered.append(True)
            return super().read()

    answers, answered = threading.Event(), []
    monkeypatch.setattr(telemetry, "DRIVER_SECONDS", 0.05)
    monkeypatch.setattr(telemetry, "open_devices", lambda _: [Hanging([DeviceReading(processes=(Process(pid=1),))])])
    info = GpuInfo(device_name="NVIDIA H200", device_count=1)
    watch = advice.Watch(Machine(platform="nvd", gpu_info=info, host="here", gpu_ids=("a",)), "cuda")
    assert watch.end() == ()
    assert answered == []
    answers.set()


def test_steady_trials_give_no_advice():
    assert advised(trial_times_ms=(10.0, 10.1, 9.9)) == ()


H200 = {"platform": "nvd", "device_name": "NVIDIA H200", "total_memory_gb": 150.0, "memory_kind": "allocated"}


def test_fp32_on_a_gpu_with_tf32_names_the_flag():
    printed = advised(trial_times_ms=(10.0,), peak_memory_gb=140.0, **H200)
    assert any("TF32 is off" in one and "--precision tf32" in one for one in printed)


def test_half_empty_memory_names_a_larger_batch():
    (printed,) = advised(trial_times_ms=(10.0,), peak_memory_gb=30.0, precision="bf16", **H200)
    assert "80 % of the device's 150 GB are unused" in printed
    assert "--batch-size 4" in printed


def test_a_cell_with_full_memory_far_slower_than_its_flops_is_reported_as_spilling():
    values = spec(precision="bf16").model_dump(exclude={"forward_only", "num_parameters"})
    sound = with_figures(MicroResult(**values, trial_times_ms=(1.0,), peak_memory_gb=50.0, **H200))
    larger = with_figures(
        MicroResult(**{**values, "batch_size": 8}, trial_times_ms=(40.0,), peak_memory_gb=149.0, **H200)
    )
    assert list(advice.spilling([sound, larger])) == [1]
    assert "10.0 times slower" in advice.spilling([sound, larger])[1]
