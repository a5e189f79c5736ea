"""The recorder with clocks that a test sets: late answers, disagreement, interruptions, a lost device."""

import math

import pytest

pytest.importorskip("torch")

import torch

from tensorprimat.engines import recorder as recorders
from tensorprimat.engines.clock import EventClock
from tensorprimat.engines.recorder import Recorder, mean_loss


class WoundClock:
    """Clock whose marks are numbers that the test sets; those up to `passed` have been reached."""

    name = "wound clock"
    is_queued = True

    def __init__(self):
        self.now, self.passed, self.lost = 0.0, math.inf, False

    def mark(self):
        return self.now

    def reached(self, mark):
        if self.lost:
            raise RuntimeError("an illegal memory access was encountered")
        return mark <= self.passed

    def seconds(self, start, end):
        return end - start

    def release(self, mark):
        pass

    def synchronise(self):
        self.passed = max(self.passed, self.now)


@pytest.fixture
def clock():
    return WoundClock()


def run(clock, *step_ends, **options):
    recorder = Recorder(clock, **options)
    recorder.start()
    for index, end in enumerate(step_ends, start=1):
        clock.now = end
        recorder.step_end(index)
    return recorder


def test_steps_come_out_when_the_device_has_passed_them_and_not_before(clock):
    clock.passed = 0.0
    recorder = run(clock, 1.0, 2.5, 3.0)
    assert list(recorder.drain()) == []
    clock.passed = 2.5
    assert list(recorder.drain()) == [0, 1]
    assert recorder.steps.column("seconds").tolist() == [1.0, 1.5]
    recorder.finish()
    assert recorder.steps.column("seconds").tolist() == [1.0, 1.5, 0.5]


def test_a_row_that_covers_several_steps_holds_the_mean_of_them(clock):
    recorder = run(clock, 1.0)
    clock.now = 4.0
    recorder.step_end(4, covers=3, data_wait_seconds=0.3)
    recorder.drain()
    step = recorder.steps[1]
    assert (step.index, step.covers, step.seconds) == (4, 3, 1.0)
    assert step.data_wait_seconds == pytest.approx(0.1)


def test_the_time_that_the_device_waited_for_the_host_is_measured_at_the_start_of_a_step(clock):
    recorder = Recorder(clock)
    recorder.start()
    for index, (passed, looks, end) in enumerate(
        [(0.0, [], 1.0), (0.9, [1.2, 2.1], 2.0), (2.0, [2.3, 2.9], 4.0), (4.0, [4.5], 5.0)], start=1
    ):
        clock.passed = passed
        for clock.now in looks:
            recorder.step_starts()
        if index == 4:
            recorder.interruption_starts("validation")
        clock.now = end
        recorder.step_end(index)
    recorder.finish()
    waits = [step.host_wait_seconds for step in recorder.steps]
    assert waits == [None, 0.0, pytest.approx(0.3), None]


def test_a_clock_of_the_host_shows_no_wait_of_the_device(clock):
    clock.is_queued = False
    recorder = Recorder(clock)
    recorder.start()
    recorder.step_starts()
    recorder.step_end(1)
    recorder.finish()
    assert recorder.steps[0].host_wait_seconds is None


def test_a_step_takes_three_calls_of_the_driver_for_its_time(monkeypatch):
    """On one H100 a call took 10 to 25 µs: record, look for a waiting device, read."""
    calls, recorded = [], []

    class Event:
        def __init__(self, **_):
            calls.append("create")

        def record(self):
            calls.append("record")
            recorded.append(self)
            self.number = len(recorded)

        def query(self):
            calls.append("query")
            return self.number < len(recorded) - 3  # the device is three steps behind

        def elapsed_time(self, later):
            calls.append("read")
            return later.number - self.number

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: recorded.extend(4 * [None]))
    recorder = Recorder(EventClock())
    recorder.start()
    for index in range(1, 1001):
        recorder.step_starts()
        recorder.step_end(index)
        if recorder.waiting >= 64:
            recorder.drain()
    calls_per_step = len(calls) / 1000
    recorder.finish()
    assert calls_per_step < 3.3
    assert calls.count("create") < 70
    times = recorder.steps.column("seconds")
    assert (len(times), set(times[1:-1])) == (1000, {1e-3})


def test_clocks_that_disagree_are_a_warning(clock):
    recorder = run(clock, 1.0, 2.0)
    recorder.finish()  # two seconds by its marks, next to nothing by the wall
    (told,) = recorder.notices
    assert (told.code, told.values["events"], told.values["wall"][:4]) == ("timers_differ", "2.000", "0.00")


def test_an_interruption_is_timed_and_marks_the_step_it_falls_into(clock):
    recorder = run(clock, 1.0, 2.0)
    recorder.interruption_starts("validation")
    clock.now = 5.0
    recorder.interruption_ends()
    clock.now = 6.0
    recorder.step_end(3)
    clock.now = 7.0
    recorder.step_end(4)
    recorder.finish()
    assert [step.interrupted_by for step in recorder.steps] == ["", "", "validation", ""]
    assert recorder.interruption_seconds == {"validation": 3.0}
    assert (recorder.timed_steps, recorder.timed_seconds) == (2, 2.0)


def test_a_validation_that_saves_a_checkpoint_is_timed_to_its_own_end(clock):
    recorder = run(clock, 1.0)
    for kind, now in (("validation", 1.0), ("checkpoint", 3.0)):
        clock.now = now
        recorder.interruption_starts(kind)
    for now in (4.0, 6.0):
        clock.now = now
        recorder.interruption_ends()
    recorder.interruption_ends()  # none is open
    recorder.finish()
    assert recorder.interruption_seconds == {"validation": 5.0, "checkpoint": 1.0}


def test_a_lost_device_keeps_earlier_steps(clock):
    recorder = run(clock, 1.0)
    recorder.drain()
    clock.now = 2.0
    recorder.step_end(2)
    clock.lost = True
    recorder.abandon()
    assert len(recorder.steps) == 1


def test_a_device_that_hangs_is_given_a_moment_only(clock, monkeypatch):
    monkeypatch.setattr(recorders, "ABANDON_SECONDS", 0.01)
    clock.passed = 1.0
    recorder = run(clock, 1.0, 2.0)
    recorder.abandon(patience_seconds=0.05)
    assert len(recorder.steps) == 1


def test_a_missing_loss_stays_none_and_a_nan_loss_stays_nan(clock):
    recorder = Recorder(clock)
    recorder.start()
    recorder.step_end(1)
    recorder.step_end(2, loss=torch.tensor(math.nan))
    recorder.step_end(3, loss=torch.tensor(2.0))
    recorder.drain()
    losses = [step.loss for step in recorder.steps]
    assert losses[0] is None
    assert math.isnan(losses[1])
    assert losses[2] == 2.0


def test_every_loss_of_a_gpu_has_a_place_of_its_own_on_the_host(clock, monkeypatch):
    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    empty, pinned = torch.empty, []
    monkeypatch.setattr(
        torch, "empty", lambda size, dtype, pin_memory: pinned.append(pin_memory) or empty(size, dtype=dtype)
    )
    recorder = Recorder(clock)
    recorder.start()
    numbers = [float(index) for index in range(recorders.SLOTS + 3)]
    for index, number in enumerate(numbers):
        recorder.step_end(index, loss=torch.tensor(number).as_subclass(OnGpu))
    recorder.drain()
    assert [step.loss for step in recorder.steps] == numbers
    assert pinned == [True, True], "two allocations"


def test_memory_is_on_the_rows_that_were_read_and_nowhere_else(clock):
    recorder = Recorder(clock)
    recorder.start()
    recorder.step_end(1, memory={"memory_allocated_bytes": 5.0})
    recorder.step_end(2)
    recorder.drain()
    assert [step.memory_allocated_bytes for step in recorder.steps] == [5.0, None]
    assert recorder.steps.seen == ("index", "seconds", "covers", "ended_at", "memory_allocated_bytes")


def test_a_loss_is_the_mean_of_its_micro_batches_in_full_precision():
    halves = [torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0078125, dtype=torch.bfloat16)]
    assert float(mean_loss(halves)) == 1.00390625
    assert float(mean_loss([torch.tensor(0.5)], scale=4)) == 2.0
    assert mean_loss([]) is None
