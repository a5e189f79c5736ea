"""A device that replays readings, in place of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.machine.device import DeviceReading


class Replay:
    """A device that gives recorded readings in their order, then the last one for ever."""

    def __init__(self, readings: Sequence[DeviceReading], *, id: str = "replay", name: str = "replayed device") -> None:
        if not readings:
            raise ValueError("nothing to replay")
        self.id, self.name = id, name
        self._readings, self._next = tuple(readings), 0

    boundary: str | None = None
    driver: str | None = None
    bus: str | None = None

    def glance(self) -> DeviceReading:
        return self.read()

    def read(self) -> DeviceReading:
        reading = self._readings[min(self._next, len(self._readings) - 1)]
        self._next += 1
        return reading
