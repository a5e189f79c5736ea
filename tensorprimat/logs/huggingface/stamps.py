"""Clocks of rows that state none, from the timestamps that a collector (docker, journald) put before their lines."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.logs.clocks import Moment, written_at
from tensorprimat.logs.huggingface.rows import Row
from tensorprimat.logs.text import Log


def with_stamps(log: Log, rows: Sequence[Row], logging_steps: int | None) -> bool | None:
    """Give every row the clock of its line's timestamp, and return True if that was done; None where only the number of
    steps of a row is missing.

    Nothing is done if a row states its step or a clock, or if a line has no timestamp.
    """
    if len(rows) < 2 or any(row.clock is not None or row.step is not None for row in rows):
        return False
    moments = _moments(log, {row.line for row in rows if row.line is not None})
    stamps = [moments.get(row.line or 0) for row in rows]
    first = stamps[0]
    if first is None or None in stamps or stamps[-1] == first:
        return False
    if not logging_steps:
        return None
    for row, stamp in zip(rows, stamps, strict=True):
        if stamp is not None:
            row.clock = stamp.seconds - first.seconds, stamp.resolution / 2
    return True


def _moments(log: Log, lines: set[int]) -> dict[int, Moment]:
    """Return when lines were written, by number."""
    found: dict[int, Moment] = {}
    if lines and not log.is_folder:
        for number, text in log.bare_lines():
            if number in lines and number not in found and (moment := written_at(text)):
                found[number] = moment
    return found
