"""Writer of MLPerf result files for tests."""

from __future__ import annotations

import json
from pathlib import Path

from tensorprimat import logs
from tensorprimat.core.result import Result
from tensorprimat.logs.format import UserFacts

START = 1_700_000_000.0


class Journal:
    """Writer of an MLLOG with a clock of its own."""

    def __init__(self, **settings: object) -> None:
        self.now, self.lines = START, []
        for key, value in settings.items():
            self.say(key, value)

    def say(self, key: str, value: object = None, after: float = 0.0, **metadata: object) -> None:
        self.now += after
        event = {"namespace": "", "time_ms": round(self.now * 1000), "event_type": "POINT_IN_TIME", "key": key}
        self.lines.append(":::MLLOG " + json.dumps({**event, "value": value, "metadata": {"file": "x.py", **metadata}}))

    def track(self, value: dict[str, float], after: float, **metadata: object) -> None:
        self.say("tracked_stats", value, after, **metadata)

    def read(self, path: Path, stated: UserFacts | None = None) -> Result:
        path.write_text("\n".join(self.lines) + "\n")
        return logs.read(path, facts=stated)
