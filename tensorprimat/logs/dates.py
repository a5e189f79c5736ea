"""Dates of rows: the stamps that loggers and launchers write at the beginning of lines, for the closing audit.

Most readers look at a row alone, after its prefixes. Whatever wrote the prefix (a logger, absl, Kubernetes), its stamp
is the log's own clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tensorprimat.audit.evidence import DATES, Elapsed
from tensorprimat.audit.findings import FEWEST_STEADY
from tensorprimat.logs.clocks import Moment, written_at
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

_LOOKED_AT = 3  # rows; if none of them has a stamp, the others are not looked for


def with_dates(log: Log, reading: Reading) -> Reading:
    """Return the reading with the date of each row, if the lines carry dates and the reader stored none itself.

    Stamps without a year give the rows no dates; only the audit uses them, as a clock.
    """
    steps, stated = reading.steps, reading.evidence.elapsed
    known = steps.has("ended_at") or (stated is not None and stated.of_calls) or reading.timing == "timestamps"
    if known or log.is_folder or log.is_binary:
        return reading
    lines = np.sort(steps.column("line"))
    places = lines[np.diff(lines, prepend=0) > 0]
    if len(places) < FEWEST_STEADY or lines[0] <= 0:
        return reading
    if not any(moment for _, moment in stamps_of(log, places[:_LOOKED_AT].tolist())):
        return reading
    found = {line: moment for line, moment in stamps_of(log, places.tolist()) if moment is not None}
    moments = [found.get(line) for line in steps.column("line").tolist()]
    seconds = np.array([np.nan if moment is None else moment.seconds for moment in moments])
    if all(moment.has_year for moment in found.values()):
        return replace(reading, steps=steps.replace(ended_at=seconds))
    clock = Elapsed(
        name=DATES,
        seconds={line: moment.seconds for line, moment in found.items()},
        resolution=max(moment.resolution for moment in found.values()),
        by="line",
    )
    return replace(reading, evidence=replace(reading.evidence, dates=clock))


def stamps_of(log: Log, lines: list[int]) -> Iterator[tuple[int, Moment | None]]:
    """Yield (line, its stamp) for each of some ascending lines; a line that was redrawn counts by its last stamp."""
    rest = iter(lines)
    place = next(rest, None)
    stamp: Moment | None = None
    for line, text in log.bare_lines():
        while place is not None and line > place:
            yield place, stamp
            place, stamp = next(rest, None), None
        if place is None:
            return
        if line == place:
            stamp = written_at(text) or stamp
    if place is not None:
        yield place, stamp
