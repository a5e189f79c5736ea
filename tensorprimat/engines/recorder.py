"""`Recorder`: records step ends during training; steps can be read once the device has finished them.

With device events nothing waits for the device between `start` and `finish`. A loss is a tensor on the host whose copy
is queued before the step's mark, so that it holds its value once the mark is reached.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import fixed
from tensorprimat.core.steps import Step, Steps, StepsBuilder
from tensorprimat.engines.clock import Clock, StepMark

if TYPE_CHECKING:
    import torch

    from tensorprimat.engines.memory import MemoryReading

SLOTS = 64  # losses that share one allocation of pinned memory, which costs more than the copy of one
CLOCK_TOLERANCE = 0.01  # relative; clocks agree to 0.01 %, so a difference of 1 % is work that the events missed
ABANDON_SECONDS = 1.0
CLOCK_TOLERANCE_SECONDS = 0.005  # allows for one delay of the host at the start or the end of the run


@dataclass(slots=True)
class _StepEnd:
    """The facts known when a step ends; the device reports the rest later."""

    index: int
    covers: int
    mark: StepMark
    resumed: StepMark | None
    loss: torch.Tensor | None
    learning_rate: float | None
    data_wait_seconds: float | None
    memory: MemoryReading
    interrupted_by: str


@dataclass(slots=True)
class _Interruption:
    """A validation, a checkpoint or the writing of a profile, from its first mark to its last."""

    kind: str
    start: StepMark
    end: StepMark | None = None


class Recorder:
    """The recorder of one run's steps on one rank."""

    def __init__(self, clock: Clock, *, warmup_steps: int | None = None) -> None:
        """Create a recorder that reads time from a clock.

        warmup_steps: declared warm-up; the first step belongs to it even where none is declared.
        """
        self.clock = clock
        self.notices: list[Notice] = []
        self.timed_steps, self.timed_seconds = 0, 0.0
        """Number and time in seconds of the optimizer steps after the first row without an interruption, for the
        time left on the console."""
        self.measured_steps, self.measured_seconds = 0, 0.0
        """Those of them after the warm-up, for the running mean on the console."""
        self._warmup_steps = max(1, warmup_steps or 0)
        self.interruption_seconds: dict[str, float] = {}
        """Seconds spent in each kind of interruption (validation, checkpoint, profile); set by `finish`."""
        self._rows = StepsBuilder()
        self._indices: list[int] = []
        self._waiting: deque[_StepEnd] = deque()
        self._resumed: StepMark | None = None
        self._slots: list[torch.Tensor] = []
        self._interruptions: list[_Interruption] = []
        self._interrupted_by = ""
        self._event_seconds = 0.0

    def start(self) -> None:
        """Begin the first step."""
        self.clock.synchronise()
        self._wall_start = time.perf_counter()
        self.started_at = time.time()
        self._previous = self._last = self.clock.mark()

    def step_starts(self) -> None:
        """Look whether the device already waits for the host, which is about to queue the work of a step.

        Only the first call in a step looks. The device has not finished the step before, as is usual, or it has, and
        a mark then shows how long ago.
        """
        if self._resumed is None and self.clock.is_queued:
            self._resumed = self.clock.mark() if self.clock.reached(self._last) else self._last

    def step_end(
        self,
        index: int,
        *,
        covers: int = 1,
        loss: torch.Tensor | None = None,
        learning_rate: float | None = None,
        data_wait_seconds: float | None = None,
        memory: MemoryReading | None = None,
    ) -> None:
        """Mark the end of `covers` optimizer steps that have been queued. index: number of the last one."""
        loss = None if loss is None else self._on_host(loss)
        self._last = self.clock.mark()
        self._waiting.append(
            _StepEnd(
                index, covers, self._last, self._resumed, loss, learning_rate, data_wait_seconds, memory or {},
                self._interrupted_by,
            )
        )  # fmt: skip
        self._resumed, self._interrupted_by = None, ""

    def _on_host(self, loss: torch.Tensor) -> torch.Tensor:
        """Queue the copy of a loss to the host, into pinned memory; it has arrived when the next mark is reached."""
        if loss.device.type == "cpu":
            return loss
        if not self._slots:
            import torch

            self._slots += torch.empty(SLOTS, dtype=loss.dtype, pin_memory=True).unbind()
        return self._slots.pop().copy_(loss, non_blocking=True)

    def interruption_starts(self, kind: str) -> None:
        """Begin other work (one of INTERRUPTIONS): the step that it falls into is marked and not measured."""
        self._interrupted_by = self._interrupted_by or kind
        self._interruptions.append(_Interruption(kind, self.clock.mark()))

    def interruption_ends(self) -> None:
        """End the interruption that began last among those that have not ended."""
        for interruption in reversed(self._interruptions):
            if interruption.end is None:
                interruption.end = self.clock.mark()
                return

    @property
    def waiting(self) -> int:
        """Return the number of step ends that have not been read yet."""
        return len(self._waiting)

    def drain(self) -> range:
        """Read the step ends that the device has passed since the last call; return their rows, without waiting."""
        first, waiting = len(self._rows), self._waiting
        # The device passes marks in their order, so that few of them have to be asked.
        passed = bisect_left(range(len(waiting)), True, key=lambda row: not self.clock.reached(waiting[row].mark))
        for _ in range(passed):
            self._read(waiting.popleft())
        return range(first, len(self._rows))

    def _read(self, end: _StepEnd) -> None:
        elapsed = self.clock.seconds(self._previous, end.mark)
        host_wait = None
        has_waited = end.resumed is not None and end.resumed is not self._previous
        if end.resumed is not None and not end.interrupted_by:
            host_wait = self.clock.seconds(self._previous, end.resumed) / end.covers if has_waited else 0.0
        for mark in (self._previous, *([end.resumed] if has_waited else [])):
            self.clock.release(mark)
        self._previous = end.mark
        self._event_seconds += elapsed
        if len(self._rows) and not end.interrupted_by:
            self.timed_steps += end.covers
            self.timed_seconds += elapsed
            if end.index - self._indices[0] >= self._warmup_steps:
                self.measured_steps += end.covers
                self.measured_seconds += elapsed
        wait = end.data_wait_seconds
        step = Step(
            index=end.index,
            seconds=elapsed / end.covers,
            covers=end.covers,
            ended_at=self.started_at + self._event_seconds,
            loss=None if end.loss is None else end.loss.item(),
            learning_rate=end.learning_rate,
            data_wait_seconds=None if wait is None else wait / end.covers,
            host_wait_seconds=host_wait,
            interrupted_by=end.interrupted_by,
            **end.memory,  # type: ignore[arg-type]  # columns of Step
        )
        self._rows.append(step)
        self._indices.append(end.index)

    def is_warmup(self, row: int) -> bool:
        return self._indices[row] - self._indices[0] < self._warmup_steps

    def index(self, row: int) -> int:
        """Return the number of the optimizer step in a row."""
        return self._indices[row]

    def step(self, row: int) -> Step:
        """Return the step that the console shows for a row."""
        return self._rows[row]

    def abandon(self, patience_seconds: float = ABANDON_SECONDS) -> None:
        """Read the marks that the device reaches within the time limit; after a failure it may not reach the others."""
        deadline = time.perf_counter() + patience_seconds
        try:
            self.drain()
            while self._waiting and time.perf_counter() < deadline:
                time.sleep(ABANDON_SECONDS / 100)
                self.drain()
        except RuntimeError:  # the device is lost, and with it the steps that it has not finished
            self._waiting.clear()

    def finish(self) -> range:
        """Wait for the device, read the remaining steps, and return their rows.

        Adds a notice if the sum of the step times differs from the host's clock.
        """
        closing = self.clock.mark()
        self.clock.synchronise()
        wall = time.perf_counter() - self._wall_start
        rest = self.drain()
        events = self._event_seconds + self.clock.seconds(self._previous, closing)
        if abs(events - wall) > CLOCK_TOLERANCE * wall + CLOCK_TOLERANCE_SECONDS:
            ours, wall_clock = fixed(events, 3), fixed(wall, 3)
            self.notices.append(Notice("timers_differ", "timer", clock=self.clock.name, events=ours, wall=wall_clock))
        for interruption in self._interruptions:
            if interruption.end is not None:
                spent = self.clock.seconds(interruption.start, interruption.end)
                total = self.interruption_seconds.get(interruption.kind, 0.0)
                self.interruption_seconds[interruption.kind] = total + spent
        return rest

    @property
    def steps(self) -> Steps:
        """Return the rows read so far."""
        rows = self._rows.build()
        return rows.replace(covers=rows.column("covers"))  # set the column even if every row covers one step


def mean_loss(losses: Sequence[torch.Tensor], *, scale: int = 1) -> torch.Tensor | None:
    """Return the step's loss, the mean of its micro-batches times scale, as a tensor; None without a loss.

    A loss with several elements, such as one per token, counts as their mean.
    """
    if not losses:
        return None
    scalars = [loss if loss.ndim == 0 else loss.float().mean() for loss in losses]
    mean = scalars[0]
    if len(scalars) > 1:
        import torch

        mean = torch.stack([loss.float() for loss in scalars]).mean()
    return mean if scale == 1 else mean * scale
