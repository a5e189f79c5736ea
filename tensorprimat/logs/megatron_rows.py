"""Iteration lines of the Megatron family, many at a time: every spelling, every field, straight from bytes to columns.

Lines that agree in everything but their digits share a `Layout`: where each number stands is worked out once, from the
first such line, and the numbers of all of them are then read as columns of a byte matrix. A log of ten million lines
has some dozens of layouts (a number that grows by a digit makes a new one), so nearly all work is vectorised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tensorprimat.core.steps import FloatArray
from tensorprimat.core.units import GIB

NEEDLE = b"elapsed time per iteration"
MAX_ROW_BYTES = 64 * 2**10  # an iteration line has some 300 to 1,500 bytes; anything longer is something else
MAX_LAYOUTS = 20_000
MAX_TEMPLATES = 32  # of one length of line
PIECE_ROWS = 256  # what stays in a core's own cache while it is compared
SAMPLE_BYTES = 2**13
BATCH_BYTES = 4 * 2**20
MOST = 0.5  # a block that begins with more iterations than other lines is taken line by line without searching
EXACT_DIGITS = 15  # integers of so many digits are exact in a double
EXACT_POWER = 22  # and so are powers of ten up to here
_POWERS = 10.0 ** np.arange(EXACT_POWER + 1)

_NUMBER = rb"([+-]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|NaN|-?inf))"
_END = rb"(?=[ \t]*(?:[|/(\r]|$|\x1b|\[\d*m))"  # a number that another process wrote into is no number
_LABELS: tuple[tuple[str, bytes, float], ...] = (
    ("samples", rb"global batch size:\s*", 1.0),
    ("consumed_samples", rb"consumed samples:\s*", 1.0),
    ("loss", rb"\blm[ -]loss:\s*", 1.0),
    ("learning_rate", rb"\blearning rate:\s*", 1.0),
    ("gradient_norm", rb"\bgrad norm:\s*", 1.0),
    ("reported_tflops_per_gpu", rb"(?:(?:throughput|compute) per GPU \(TFLOP/s/GPU\)|\bTFLOPs):\s*", 1.0),
    (
        "reported_tokens_per_second_per_gpu",
        rb"(?:tokens per GPU \(tokens/s/GPU\)|tokens/s/GPU inst/harmonic mean|tokens/sec/gpu"
        rb"|tokens per gpu per second \(tgs\)):\s*",
        1.0,
    ),
    ("samples_per_second_per_gpu", rb"images per GPU \(images/s/GPU\):\s*", 1.0),
    ("reported_samples_per_second", rb"\bsamples(?: per second|/sec):\s*", 1.0),
    ("energy_joules_per_gpu", rb"energy per GPU \(J/iter/GPU\):\s*", 1.0),
    ("power_watts_per_gpu", rb"power per GPU \(W/GPU\):\s*", 1.0),
    ("sequence_length", rb"\bseq_length:\s*", 1.0),
    ("skipped_iterations", rb"number of skipped iterations:\s*", 1.0),
    ("nan_iterations", rb"number of nan iterations:\s*", 1.0),
)
_PATTERNS = tuple((name, re.compile(label + _NUMBER + _END), scale) for name, label, scale in _LABELS)
_LOSS_OF_ANY_NAME = re.compile(rb"\|\s*(?:[\w-]+ )?loss:\s*" + _NUMBER + _END)
_ITERATION = re.compile(rb"\biteration[ :]\s*(\d+)\s*/\s*(\d+)\s*\|")
_ELAPSED = re.compile(rb"elapsed time per iteration \((ms|s)\)\s*:\s*" + _NUMBER + _END)
# GB or GiB: Primus divides by 2**30 under either label.
_USED = re.compile(
    rb"(?:hip|rocm) mem usage/free/total/usage_ratio:\s*" + _NUMBER + rb"\s*Gi?B/[\d.]+\s*Gi?B/" + _NUMBER
)
_USED_MAX = re.compile(rb"\brank-\d+ (?:rocm )?max mem usage/usage_ratio:\s*" + _NUMBER + rb"(?=\s*Gi?B/)")
_DATE = re.compile(rb"\[(\d{4})-?(\d\d)-?(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?\]")
_PRIMUS_RANK = re.compile(rb"\brank-(\d+)/(\d+)")
_LAUNCHER_RANK = re.compile(rb"^\[(?:default|rank|trainer|worker)(\d+)\]:|^\s{0,5}(\d+):\s")

_DIGITS_TO_ZERO = bytes(ord("0") if chr(code).isdigit() and code < 128 else code for code in range(256))

Rows = NDArray[np.uint8]
"""Bytes of equally long lines: shape (lines, length)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """Digits in some columns, other signs among them passed over: `12,345.6` spells 123456."""

    columns: slice
    weights: FloatArray
    """Of every column: a power of ten for a digit, 0 for another sign."""

    @classmethod
    def of(cls, text: str, start: int) -> _Whole:
        weights = np.zeros(len(text))
        digits = [position for position, sign in enumerate(text) if sign.isdigit()]
        weights[digits] = 10.0 ** np.arange(len(digits) - 1, -1, -1)
        return cls(columns=slice(start, start + len(text)), weights=weights)

    @property
    def digits(self) -> int:
        return int(np.count_nonzero(self.weights))

    def read(self, rows: Rows) -> FloatArray:
        return np.asarray((rows[:, self.columns] - 48).astype(np.float64) @ self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class _Number:
    """Where one number stands in lines of one layout, and how to read it."""

    text: slice
    mantissa: _Whole
    decimals: int
    exponent: _Whole | None
    exponent_sign: int
    sign: int
    shift: int
    """Decimal places by which the value is smaller than its text: 3 makes seconds of milliseconds."""
    scale: float

    @classmethod
    def of(cls, line: bytes, span: tuple[int, int], *, scale: float = 1.0, shift: int = 0) -> _Number:
        start, end = span
        text = line[start:end].decode().lower()
        mantissa, _, exponent = text.partition("e")
        point = mantissa.find(".")
        return cls(
            text=slice(start, end),
            mantissa=_Whole.of(mantissa, start),
            decimals=0 if point < 0 else len(mantissa) - point - 1,
            exponent=_Whole.of(exponent, start + len(mantissa) + 1) if exponent else None,
            exponent_sign=-1 if exponent.startswith("-") else 1,
            sign=-1 if mantissa.startswith("-") else 1,
            shift=shift,
            scale=scale,
        )

    @property
    def is_nan(self) -> bool:
        """nan and inf: no figure."""
        return self.mantissa.digits == 0

    def read(self, rows: Rows) -> FloatArray:
        """The number of every line, exactly as float() reads its text; shape (lines,)."""
        if self.is_nan:
            return np.full(len(rows), np.nan)
        if self.mantissa.digits > EXACT_DIGITS:
            return np.array([self._read_one(row) for row in rows])
        value = self.mantissa.read(rows) * self.sign
        places = self.decimals + self.shift
        if self.exponent is None:
            value /= 10.0**places
        else:
            power = (self.exponent.read(rows) * self.exponent_sign - places).astype(np.int64)
            size = _POWERS[np.minimum(np.abs(power), EXACT_POWER)]
            value = np.where(power < 0, value / size, value * size)
            for far in np.flatnonzero(np.abs(power) > EXACT_POWER):
                value[far] = self._read_one(rows[far]) / self.scale
        return value if self.scale == 1.0 else value * self.scale

    def _read_one(self, row: Rows) -> float:
        return float(row[self.text].tobytes().replace(b",", b"")) / 10.0**self.shift * self.scale


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the fields stand in lines that agree in everything but their digits."""

    numbers: dict[str, _Number]
    date: tuple[_Number, ...]
    """Year, month, day, hour, minute, second, and the fraction where printed; empty for a line without a date."""
    primus: bool
    """Whether only Primus writes such a line."""

    @classmethod
    def of(cls, line: bytes) -> Layout | None:
        """The layout of one line; None if it is not a whole iteration line."""
        iteration, elapsed = _ITERATION.search(line), _ELAPSED.search(line)
        if iteration is None or elapsed is None or elapsed.start() < iteration.end() or line.count(NEEDLE) > 1:
            return None
        numbers = {
            "index": _Number.of(line, iteration.span(1)),
            "planned": _Number.of(line, iteration.span(2)),
            "seconds": _Number.of(line, elapsed.span(2), shift=3 if elapsed[1] == b"ms" else 0),
        }
        for name, pattern, scale in _PATTERNS:
            if match := pattern.search(line, iteration.end()):
                numbers[name] = _Number.of(line, match.span(1), scale=scale)
        if "loss" not in numbers and (match := _LOSS_OF_ANY_NAME.search(line, iteration.end())):
            numbers["loss"] = _Number.of(line, match.span(1))
        if match := _USED.search(line, iteration.end()):
            numbers["memory_device_used_bytes"] = _Number.of(line, match.span(1), scale=GIB)
            numbers["memory_total_bytes"] = _Number.of(line, match.span(2), scale=GIB)
        if match := _USED_MAX.search(line, iteration.end()):
            numbers["memory_device_used_peak_bytes"] = _Number.of(line, match.span(1), scale=GIB)
        prefix = line[: iteration.start()]
        rank = _PRIMUS_RANK.search(prefix)
        if rank:
            numbers["rank"] = _Number.of(line, rank.span(1))
            numbers["world_size"] = _Number.of(line, rank.span(2))
        elif launcher := _LAUNCHER_RANK.search(prefix):
            numbers["rank"] = _Number.of(line, launcher.span(1 if launcher[1] else 2))
        dates = list(_DATE.finditer(prefix))
        date = dates[-1] if dates else None
        return cls(
            numbers=numbers,
            date=tuple(_Number.of(line, date.span(group)) for group in range(1, 8) if date[group]) if date else (),
            primus=rank is not None
            or line[elapsed.end() : elapsed.end() + 1] == b"/"
            or any(name in line for name in (b"hip mem usage", b"mem usages:", b"inst/harmonic mean")),
        )

    def read(self, rows: Rows) -> dict[str, FloatArray]:
        """Every field of some lines of this layout, by name; each of shape (lines,)."""
        fields = {name: number.read(rows) for name, number in self.numbers.items()}
        if "loss" in fields and self.numbers["loss"].is_nan:
            fields["printed_nan"] = np.ones(len(rows))
        if self.date:
            fields["ended_at"] = _epoch([number.read(rows) for number in self.date], self.date)
        return fields


def _epoch(parts: list[FloatArray], where: tuple[_Number, ...]) -> FloatArray:
    """Seconds since 1970 of dates in the Gregorian calendar; days_from_civil of H. Hinnant's date algorithms."""
    year, month, day, hour, minute, second = parts[:6]
    shifted = year - (month <= 2)
    era = np.floor(shifted / 400)
    year_of_era = shifted - era * 400
    day_of_year = np.floor((153 * (month + np.where(month > 2, -3, 9)) + 2) / 5) + day - 1
    day_of_era = year_of_era * 365 + np.floor(year_of_era / 4) - np.floor(year_of_era / 100) + day_of_year
    seconds = ((era * 146097 + day_of_era - 719468) * 24 + hour) * 3600 + minute * 60 + second
    return np.asarray(seconds + parts[6] / 10.0 ** where[6].mantissa.digits if len(parts) > 6 else seconds)


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """What equally long lines of one layout have in common, for comparing thousands at once."""

    line: NDArray[np.uint8]
    """The line with 0 for every digit; (length,)."""
    freedom: NDArray[np.uint8]
    """How far each byte may differ, as exclusive or: 9 where a digit stands, else 0; (length,)."""
    layout: Layout

    @classmethod
    def of(cls, shape: bytes, layout: Layout) -> _Template:
        line = np.frombuffer(shape, np.uint8)
        return cls(line=line, freedom=np.where(line == ord("0"), 9, 0).astype(np.uint8), layout=layout)

    def fits(self, rows: Rows) -> NDArray[np.bool_]:
        """Which lines have this layout; (lines,)."""
        fits = np.ones(len(rows), np.bool_)
        difference = np.empty((min(len(rows), PIECE_ROWS), len(self.line)), np.uint8)
        differs = np.empty(difference.shape, np.bool_)
        for start in range(0, len(rows), PIECE_ROWS):
            piece = rows[start : start + PIECE_ROWS]
            np.bitwise_xor(piece, self.line, out=difference[: len(piece)])
            np.greater(difference[: len(piece)], self.freedom, out=differs[: len(piece)])
            if differs[: len(piece)].any():
                fits[start : start + PIECE_ROWS] = ~differs[: len(piece)].any(axis=1)
        return fits


class Table:
    """Iteration lines in columns, read some thousands at a time."""

    def __init__(self) -> None:
        self.primus = False
        self.next_line = 1
        """Number of the first line of the next block."""
        self.broken_lines: list[int] = []
        """Lines that began as iteration lines but have no readable time."""
        self._waiting: list[bytes] = []
        """Whole lines, each with its line end."""
        self._waiting_bytes = 0
        self._numbers: list[NDArray[np.int64]] = []
        """Of the waiting lines."""
        self._layouts: dict[bytes, Layout | None] = {}
        self._templates: dict[int, list[_Template]] = {}
        """By length of line, the last one met first."""
        self._parts: list[tuple[int, dict[str, FloatArray]]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no line that could be an iteration line has come by."""
        return not self._parts and not self._waiting and not self.broken_lines

    def add(self, block: bytes) -> None:
        """Take in the next block of whole lines."""
        head = block[:SAMPLE_BYTES]
        if head.count(NEEDLE) > MOST * head.count(b"\n"):
            self._wait_for_all(block)
        else:
            self._wait_for_some(block)
        if self._waiting_bytes >= BATCH_BYTES:
            self._flush()

    def _wait_for_all(self, block: bytes) -> None:
        """Keep a block of iteration lines only, or nearly."""
        ended = block.endswith(b"\n")
        lines = block.count(b"\n")
        self._waiting.append(block if ended else block + b"\n")
        self._waiting_bytes += len(block)
        self._numbers.append(np.arange(self.next_line, self.next_line + lines + (not ended)))
        self.next_line += lines

    def _wait_for_some(self, block: bytes) -> None:
        """Keep the lines of a block that may be iterations."""
        find, rfind, count, size = block.find, block.rfind, block.count, len(block)
        keep, numbers = self._waiting.append, []
        at, counted, line = find(NEEDLE), 0, self.next_line
        while at >= 0:
            start = rfind(b"\n", counted, at) + 1 or counted
            end = find(b"\n", at)
            line += count(b"\n", counted, start)
            numbers.append(line)
            if end < 0:
                keep(block[start:] + b"\n")
                counted = size
                break
            keep(block[start : end + 1])
            self._waiting_bytes += end - start
            counted = start
            at = find(NEEDLE, end)
        self.next_line = line + count(b"\n", counted)
        if numbers:
            self._numbers.append(np.array(numbers, np.int64))

    def _flush(self) -> None:
        """Read the waiting lines."""
        if not self._waiting:
            return
        text, numbers = b"".join(self._waiting), np.concatenate(self._numbers)
        self._waiting.clear()
        self._numbers.clear()
        self._waiting_bytes = 0
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        starts = np.concatenate([[0], ends[:-1] + 1])
        read, odd = self._read(text, starts, ends)
        broken: list[int] = []
        for position in odd:
            pieces = np.array(list(_pieces(text, int(starts[position]), int(ends[position]))), np.int64)
            of_pieces, unread = self._read(text, pieces[:, 0], pieces[:, 1])
            read += [(np.full(len(members), position), fields) for members, fields in of_pieces]
            broken += [position] * bool(unread)
        self.broken_lines += sorted(int(numbers[position]) for position in broken)
        if read:
            self._parts.append(_merged(numbers, read))

    def _read(self, block: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[list[_Read], list[int]]:
        """The fields of all iteration lines among some lines, and the positions of those that need a closer look."""
        text, lengths = np.frombuffer(block, np.uint8), ends - starts
        order = np.argsort(lengths, kind="stable")
        changes = np.flatnonzero(np.diff(lengths[order])) + 1
        read: list[_Read] = []
        broken: list[int] = []
        for positions in np.split(order, changes):
            if not len(positions) or (length := int(lengths[positions[0]])) < len(NEEDLE):
                continue
            if length > MAX_ROW_BYTES:
                broken += [p for p in positions.tolist() if block.find(NEEDLE, starts[p], ends[p]) >= 0]
                continue
            rows = sliding_window_view(text, length)[starts[positions]]
            for template in tuple(self._templates.get(length, ())):
                positions, rows = self._read_fitting(template, positions, rows, read)
                if not len(positions):
                    break
            self._read_new(positions, rows, read, broken)
        return read, broken

    def _read_fitting(
        self, template: _Template, positions: NDArray[np.int64], rows: Rows, read: list[_Read]
    ) -> tuple[NDArray[np.int64], Rows]:
        """Read those of some equally long lines that have this layout; returns the rest."""
        fits = template.fits(rows)
        if not fits.any():
            return positions, rows
        templates = self._templates.setdefault(len(template.line), [])
        if template in templates:
            templates.remove(template)
        templates.insert(0, template)  # layouts come and go as numbers grow: what fitted last is tried first
        del templates[MAX_TEMPLATES:]
        if fits.all():
            read.append((positions, template.layout.read(rows)))
            return positions[:0], rows[:0]
        read.append((positions[fits], template.layout.read(rows[fits])))
        return positions[~fits], rows[~fits]

    def _read_new(self, positions: NDArray[np.int64], rows: Rows, read: list[_Read], broken: list[int]) -> None:
        """Read equally long lines of layouts not met before, and remember the layouts."""
        while len(positions):
            line = rows[0].tobytes()
            shape = line.translate(_DIGITS_TO_ZERO)
            layout = self._layout(shape, line) if NEEDLE in line else None
            if layout is not None:
                self.primus |= layout.primus
                positions, rows = self._read_fitting(_Template.of(shape, layout), positions, rows, read)
                continue
            if NEEDLE in line:
                broken.append(int(positions[0]))
            positions, rows = positions[1:], rows[1:]

    def _layout(self, shape: bytes, line: bytes) -> Layout | None:
        if shape not in self._layouts:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[shape] = Layout.of(line)
        return self._layouts[shape]

    def take(self) -> dict[str, FloatArray]:
        """Every field that any line has, over all lines: NaN where a line lacks it. Empties the table."""
        self._flush()
        names = {name for _, columns in self._parts for name in columns}
        fields = {}
        for name in sorted(names):
            parts = [columns.pop(name) if name in columns else np.full(count, np.nan) for count, columns in self._parts]
            fields[name] = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._parts.clear()
        return fields


_Read = tuple[NDArray[np.int64], dict[str, FloatArray]]
"""Positions of lines in their block, and their fields."""


def _merged(numbers: NDArray[np.int64], read: list[_Read]) -> tuple[int, dict[str, FloatArray]]:
    """The fields of several layouts as columns of one block, in the order of the lines. numbers: of all lines."""
    positions = np.concatenate([positions for positions, _ in read])
    order = np.argsort(positions, kind="stable")
    columns = {"line": numbers[positions[order]].astype(np.float64)}
    for name in {name for _, fields in read for name in fields}:
        parts = [fields[name] if name in fields else np.full(len(where), np.nan) for where, fields in read]
        columns[name] = np.concatenate(parts)[order]
    return len(order), columns


def _pieces(block: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Iteration lines inside one line: redrawn with carriage returns, or run together by two processes."""
    at = block.find(NEEDLE, start, end)
    while at >= 0:
        following = block.find(NEEDLE, at + 1, end)
        begin = max(block.rfind(b"\r", start, at) + 1, start, at - MAX_ROW_BYTES)
        stop = min(end, at + MAX_ROW_BYTES)
        if (redrawn := block.find(b"\r", at, stop)) >= 0:
            stop = redrawn
        if 0 <= following < stop:  # ends where the next one's own "iteration" begins
            stop = max(block.rfind(b"iteration", at + len(NEEDLE), following - len(NEEDLE) // 2), at + len(NEEDLE))
        yield begin, stop
        start, at = stop, following
