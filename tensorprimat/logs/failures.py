"""Detection of how a log ended, for every format: a truncated row, a traceback, a cancelled job."""

from __future__ import annotations

import re

from tensorprimat.core.notices import Notice
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log
from tensorprimat.system.failures import cause_in

TAIL_BYTES = 2**20  # a crash of thousands of ranks writes some hundred kilobytes of tracebacks

STOP_BYTES = 2**16
_STOPS = re.compile(r"exiting program|exit_interval|early.?stopp|stopping.?early", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.(?P<decimals>\d*))?(?:[eE](?P<exponent>[+-]?\d*))?")


def examine(log: Log, reading: Reading) -> None:
    """Correct a reading by the end of its log: leave out a row that was cut off, say why the run ended early."""
    lines_with_rows = reading.steps.column("line")
    last_row = int(lines_with_rows.max(initial=-1))
    if last_row < 0 or log.is_folder or log.is_binary:
        return
    tail = log.tail(TAIL_BYTES)
    cause = None if reading.ended_by else cause_in("\n".join(tail))
    if not tail[-1] and cause is None:
        return
    numbered = dict(zip(range(log.count_lines() + 1, 0, -1), reversed(tail), strict=False))
    if tail[-1] and last_row == max(numbered):
        rows = sorted({int(line) for line in lines_with_rows[-50:]} & set(numbered))
        if is_cut(numbered[last_row], numbered[rows[-2]] if len(rows) > 1 else None):
            reading.steps = reading.steps.take(lines_with_rows != last_row)
            reading.warnings.append(Notice("last_row_truncated", "steps", line=last_row))
            return
    if reading.ended_by is None:
        reading.ended_by = cause_in("\n".join(text for line, text in sorted(numbered.items()) if line > last_row))
        reading.complete = reading.complete and reading.ended_by is None


def planned_but_missing(log: Log, reading: Reading) -> int | None:
    """Return the number of steps that the log plans if it ends before them, and does not say that it was to; else None.

    A job that stops where its user chose (Megatron's --exit-interval) or at its target (MLPerf) is complete.
    """
    planned, steps = reading.training_config.get("max_steps"), reading.steps
    if not planned or not len(steps) or log.is_folder or log.is_binary or reading.ended_by:
        return None
    if reading.reported.get("status"):
        return None
    if steps.column("index").max() + max(1, steps.column("covers").max()) >= planned:  # counted from 0 or from 1
        return None
    return None if any(_STOPS.search(line) for line in log.tail(STOP_BYTES)) else int(planned)


def cause_of(log: Log) -> str | None:
    """Return the reason, found in a log's last lines, why the log contains no row; None if they show none."""
    return cause_in("\n".join(log.tail(TAIL_BYTES)))


def is_cut(last: str, before: str | None) -> bool:
    """Return True if a last row without line break is truncated, judged by the row before it.

    A row is whole if it ends in the same sign (`|`, `%`, `}`) or in a number that is as long as the one before.

    >>> is_cut("step 2 | dt: 648.8", "step 1 | dt: 648.81"), is_cut("step 2 | dt: 99.81", "step 1 | dt: 648.81")
    (True, False)
    >>> is_cut("2,7.8,15", "1,7.9,15163"), is_cut("2,7.8,15170", "1,7.9,15163")
    (True, False)
    """
    last = last.rstrip()
    if before is None:
        return last[-1:].isalnum()
    before = before.rstrip()
    if last[-1:] == before[-1:] and not last[-1:].isalnum():
        return False
    return _shape(last) != _shape(before)


def _shape(row: str) -> str:
    """Return the row with its numbers reduced to the digits that a fixed format keeps constant."""
    row = " ".join(row.split())
    ends_in_integer = re.search(r"(?<![\d.])((?<!,)\d[\d,]*|(?<=,)\d+)$", row)  # or in the last cell of a CSV
    shape = _NUMBER.sub(lambda m: f"#{len(m['decimals'] or '')}e{len(m['exponent'] or '')}", row)
    return f"{shape}{len(ends_in_integer[1])}" if ends_in_integer else shape
