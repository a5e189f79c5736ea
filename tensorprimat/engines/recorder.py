"""`Recorder`: step ends go in while training runs, finished steps can be read when the device has passed them.

Nothing here waits for the device before `finish`. Losses come as tensors on the host whose copy was queued before the
step's mark, so that they hold their value once the mark is reached.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorprimat.core.quantities import fixed
from tensorprimat.core.steps import INTERRUPTIONS, Step, Steps
from tensorprimat.engines.clock import Clock, StepMark

if TYPE_CHECKING:
    import torch

    from tensorprimat.engines.memory import MemoryReading

CLOCK_TOLERANCE = 0.01  # both clocks are crystals good to 0.01 %; a percent more is work that the events did not see
ABANDON_SECONDS = 1.0
CLOCK_TOLERANCE_SECONDS = 0.005  # one host-side hiccup around the two synchronisations


@dataclass(slots=True)
class _StepEnd:
    """The facts known when a step ends; the device reports the rest later."""

    index: int
    covers: int
    mark: StepMark
    loss: torch.Tensor | None
    learning_rate: float | None
    data_wait_seconds: float | None
    memory: MemoryReading
    interrupted_by: str


@dataclass(slots=True)
class _Interruption:
    """A validation or a checkpoint, from its first mark to its last."""

    kind: str
    start: StepMark
    end: StepMark | None = None


FIGURES = ("seconds", "ended_at", "loss", "learning_rate", "data_wait_seconds", "power_watts_per_gpu")


class _Rows:
    """Finished steps in columns: appending a row costs a microsecond, ten times less than making a `Step` of it."""

    def __init__(self) -> None:
        self.indices, self._covers, self._interrupted = array("q"), array("q"), array("b")
        self._figures = {name: array("d") for name in FIGURES}
        self._nan_losses: list[int] = []
        self._memory: dict[int, MemoryReading] = {}

    def __len__(self) -> int:
        return len(self.indices)

    def append(self, end: _StepEnd, figures: Sequence[float | None]) -> None:
        """Add a row for a step that ended.

        figures: in the order of FIGURES, None where unmeasured.
        """
        row = len(self.indices)
        self.indices.append(end.index)
        self._covers.append(end.covers)
        self._interrupted.append(INTERRUPTIONS.index(end.interrupted_by))
        for column, figure in zip(self._figures.values(), figures, strict=True):
            column.append(math.nan if figure is None else figure)
        if end.memory:
            self._memory[row] = end.memory
        if end.loss is not None and self._figures["loss"][row] != self._figures["loss"][row]:
            self._nan_losses.append(row)

    def step(self, row: int) -> Step:
        """Return one row, without its memory."""
        figures = {name: column[row] for name, column in self._figures.items()}
        return Step(
            index=self.indices[row],
            covers=self._covers[row],
            interrupted_by=INTERRUPTIONS[self._interrupted[row]],
            **{name: None if figure != figure else figure for name, figure in figures.items()},  # type: ignore[arg-type]
        )

    def steps(self) -> Steps:
        """Return all rows."""
        unseen = np.full(len(self), math.nan)
        columns: dict[str, np.ndarray] = {
            "index": np.array(self.indices, np.int64),
            "covers": np.array(self._covers, np.int64),
            "interrupted_by": np.array(self._interrupted, np.int8),
            **{name: np.array(column) for name, column in self._figures.items()},
        }
        for row, reading in self._memory.items():
            for name, value in reading.items():
                columns.setdefault(name, unseen.copy())[row] = value
        nan_losses = np.zeros(len(self), np.bool_)
        nan_losses[self._nan_losses] = True
        kept = ("index", "covers", "seconds", *(("loss",) if self._nan_losses else ()))
        seen = {name: column for name, column in columns.items() if name in kept or _any_seen(column)}
        return Steps(seen, logged_nan={"loss": nan_losses})


def _any_seen(column: np.ndarray) -> bool:
    return bool(np.isfinite(column).any() if column.dtype.kind == "f" else column.any())


class Recorder:
    """Steps of one run on one rank."""

    def __init__(self, clock: Clock, *, power_at: Callable[[float, float], float | None] | None = None) -> None:
        """Create a recorder that reads time from a clock.

        power_at: returns mean watts per GPU between two moments in seconds since the epoch; None without telemetry.
        """
        self.clock = clock
        self.warnings: list[str] = []
        self.timed_steps, self.timed_seconds = 0, 0.0
        """Optimizer steps after the first that hold nothing else, and their time: the running mean of the console."""
        self.interruption_seconds: dict[str, float] = {}
        """Time of validations and of checkpoints, which is in no measured step."""
        self._power_at = power_at
        self._rows = _Rows()
        self._waiting: deque[_StepEnd] = deque()
        self._interruptions: list[_Interruption] = []
        self._interrupted_by = ""
        self._event_seconds = 0.0

    def start(self) -> None:
        """The first step begins."""
        self.clock.synchronise()
        self._wall_start = time.perf_counter()
        self.started_at = time.time()
        self._first = self._previous = self.clock.mark()

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
        """An optimizer step (or `covers` of them) has been queued; index: number of the last one."""
        self._waiting.append(
            _StepEnd(
                index, covers, self.clock.mark(), loss, learning_rate, data_wait_seconds, memory or {},
                self._interrupted_by,
            )
        )  # fmt: skip
        self._interrupted_by = ""

    def interruption_starts(self, kind: str) -> None:
        """A validation or a checkpoint begins: the step that it falls into is marked and will not be measured."""
        self._interrupted_by = self._interrupted_by or kind
        self._interruptions.append(_Interruption(kind, self.clock.mark()))

    def interruption_ends(self) -> None:
        """The one that began last is over."""
        if self._interruptions and self._interruptions[-1].end is None:
            self._interruptions[-1].end = self.clock.mark()

    @property
    def waiting(self) -> int:
        """Step ends that have not been read yet."""
        return len(self._waiting)

    def drain(self) -> range:
        """Return the rows that the device has finished since the last call; never waits."""
        first = len(self._rows)
        while self._waiting and self.clock.reached(self._waiting[0].mark):
            self._read(self._waiting.popleft())
        return range(first, len(self._rows))

    def _read(self, end: _StepEnd) -> None:
        elapsed = self.clock.seconds(self._previous, end.mark)
        ended_at = self.started_at + self.clock.seconds(self._first, end.mark)
        self._previous = end.mark
        self._event_seconds += elapsed
        if len(self._rows) and not end.interrupted_by:
            self.timed_steps += end.covers
            self.timed_seconds += elapsed
        wait = end.data_wait_seconds
        self._rows.append(
            end,
            (
                elapsed / end.covers,
                ended_at,
                None if end.loss is None else end.loss.item(),
                end.learning_rate,
                None if wait is None else wait / end.covers,
                self._power_at(ended_at - elapsed, ended_at) if self._power_at else None,
            ),
        )

    def index(self, row: int) -> int:
        """Return the number of the optimizer step in a row."""
        return self._rows.indices[row]

    def step(self, row: int) -> Step:
        """Return the step that the console shows for a row."""
        return self._rows.step(row)

    def abandon(self, patience_seconds: float = ABANDON_SECONDS) -> None:
        """Read what the device still finishes in a moment: after a failure it may never answer again."""
        deadline = time.perf_counter() + patience_seconds
        try:
            self.drain()
            while self._waiting and time.perf_counter() < deadline:
                time.sleep(ABANDON_SECONDS / 100)
                self.drain()
        except RuntimeError:  # the device is lost, and the steps that it did not finish with it
            self._waiting.clear()

    def finish(self) -> range:
        """Wait for the device, read what is left, and hold the marks against the host's clock."""
        closing = self.clock.mark()
        self.clock.synchronise()
        wall = time.perf_counter() - self._wall_start
        rest = self.drain()
        events = self._event_seconds + self.clock.seconds(self._previous, closing)
        if abs(events - wall) > CLOCK_TOLERANCE * wall + CLOCK_TOLERANCE_SECONDS:
            self.warnings.append(
                f"timer: {self.clock.name} sum to {fixed(events, 3)} s, but a synchronised wall clock around the run "
                f"says {fixed(wall, 3)} s; run again with sync=True to see which steps differ"
            )
        for interruption in self._interruptions:
            if interruption.end is not None:
                spent = self.clock.seconds(interruption.start, interruption.end)
                total = self.interruption_seconds.get(interruption.kind, 0.0)
                self.interruption_seconds[interruption.kind] = total + spent
        return rest

    @property
    def steps(self) -> Steps:
        """Return the rows read so far."""
        return self._rows.steps()


def mean_loss(losses: Sequence[torch.Tensor], *, scale: int = 1) -> torch.Tensor | None:
    """Return the step's loss on its way to the host: mean of its micro-batches times scale. None for no loss.

    The copy goes into pinned memory and is not waited for; the mark that follows it tells when it has arrived.
    """
    if not losses:
        return None
    mean = losses[0]
    if len(losses) > 1:
        import torch

        mean = torch.stack([loss.float() for loss in losses]).mean()
    if scale != 1:
        mean = mean * scale
    return mean.to("cpu", non_blocking=True)  # a CPU's tensor stays itself
