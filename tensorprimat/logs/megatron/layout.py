"""Fast parsing of Megatron iteration lines: positions of the figures, for many similar lines at once.

Lines that agree in everything but their digits share a `Layout`: every label is searched once, in the first of them. A
`Template` is a layout together with the figures that hardly ever change (planned iterations, batch, rank, day): lines
are compared with it as a byte matrix, and the digits of matching lines become numbers, eight digits at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core.steps import FloatArray
from tensorprimat.core.units import GIB

NEEDLE = b"elapsed time per iteration"
"""Text in every iteration line, in every spelling since 2019."""
EXACT_DIGITS = 15  # integers of so many digits are exact in a double
EXACT_POWER = 22  # and so are powers of ten up to here
_STEADY = frozenset(
    (
        *("planned", "samples", "rank", "world_size", "memory_total_bytes", "skipped_iterations", "nan_iterations"),
        *("sequence_length", "year", "month", "day"),
    )
)
"""Fields whose value is part of a template."""

WORD = 8  # bytes of a machine word
_ADDING_NEIGHBOURS = tuple(
    (np.uint64(tens * 2**bits + 1), np.uint64(bits), np.uint64(kept))
    for tens, bits, kept in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10_000, 32, 0xFFFFFFFF))
)
"""Factor, shift and mask that make one number of two neighbours, the first in the lower bits."""
_POWERS = 10.0 ** np.arange(EXACT_POWER + 1)
_DIGITS_TO_ZERO = bytes(ord("0") if chr(code).isdigit() and code < 128 else code for code in range(256))
_NUMBER = rb"([+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|NaN|-?inf))"
_END = rb"(?=(?:TFLOPS)?[ \t]*(?:[|/(]|\x1b|\[\d*m))"
"""The text after a number in every spelling. A number at a line's end was cut, or another process wrote into it."""
_LABELS = {
    "samples": rb"global batch size",
    "consumed_samples": rb"consumed samples",
    "loss": rb"\blm[ _-]loss",
    "learning_rate": rb"\blearning rate",
    "gradient_norm": rb"\bgrad norm",
    "reported_tflops_per_gpu": (
        rb"(?:(?:throughput|compute) per GPU \(TFLOP/s/GPU\)|\bflop throughput \(TFLOP/sec/GPU\)|\bTFLOPs"
        rb"|\bapprox flops per GPU)"
    ),
    "reported_tokens_per_second_per_gpu": (
        rb"(?:tokens per GPU \(tokens/s/GPU\)|tokens/s/GPU inst/harmonic mean|tokens/sec/gpu"
        rb"|tokens per gpu per second \(tgs\)|throughput \(token/sec/GPU\))"
    ),
    "reported_samples_per_second_per_gpu": rb"images per GPU \(images/s/GPU\)",
    "reported_samples_per_second": rb"\bsamples(?: per second|/sec)",
    "energy_joules_per_gpu": rb"energy per GPU \(J/iter/GPU\)",
    "power_watts_per_gpu": rb"power per GPU \(W/GPU\)",
    "sequence_length": rb"\b(?:seq_length|actual seq(?:len| length))",
    "skipped_iterations": rb"number of skipped iterations",
    "nan_iterations": rb"number of nan iterations",
}
_PATTERNS = {name: re.compile(label + rb":\s*" + _NUMBER + _END) for name, label in _LABELS.items()}
_SAMPLES_OF_NEOX = re.compile(rb"\bsamples/sec: {0,4}" + _NUMBER + rb" {0,4}\| {0,4}$")
"""gpt-neox states its rate before the number of the iteration, all others after it."""
_LOSS_OF_ANY_NAME = re.compile(rb"\|\s*(?:[\w-]+ )?loss:\s*" + _NUMBER + _END)
_ITERATION = re.compile(rb"\biteration[ :]\s*(\d+)\s*/\s*(\d+)\s*\|")
_ELAPSED = re.compile(rb"elapsed time per iteration \((ms|s)\)\s*:\s*" + _NUMBER + _END)
# GB or GiB: Primus divides by 2**30 under either label.
_USED = re.compile(
    rb"(?:hip|rocm) mem usage/free/total/usage_ratio:\s*" + _NUMBER + rb"\s*Gi?B/[\d.]+\s*Gi?B/" + _NUMBER
)
_USED_MAX = re.compile(rb"\brank-\d+ (?:rocm )?max mem usage/usage_ratio:\s*" + _NUMBER + rb"(?=\s*Gi?B/)")
# Loguru colours text in brackets, and lines are read with their colours: `[\x1b[36mrank-7/8\x1b[0m]`.
_DATE = re.compile(
    rb"(?:\[|(?<=[\d;\[])m)(\d{4})-?(\d\d)-?(\d\d)[ T](\d\d):(\d\d):(\d\d(?:\.\d{1,6})?)(?:,\d{3,6})?"
    rb"(?=\]|\x1b|\[|\\)"
)
DAY = ("year", "month", "day")
DATE_PARTS = (*DAY, "hour", "minute", "second")
_PRIMUS_RANK = re.compile(rb"(?:\b|(?<=[\d;\[]m))rank-(\d+)/(\d+)")
_LAUNCHER_RANK = re.compile(rb"^\[(?:default|rank|trainer|worker)(\d+)\]:|^\s{0,5}(\d+):\s")

LayoutRows = NDArray[np.uint8]
"""Bytes of equally long lines: shape (lines, length)."""


Places = NDArray[np.intp]
"""Columns of the digits of a whole number, without other characters among them: `12,345.6` spells 123456."""


def _digits_of(text: str, start: int) -> Places:
    return np.array([start + i for i, sign in enumerate(text) if sign.isdigit()], np.intp)


def _runs(digits: Places) -> Iterator[tuple[Places, float]]:
    """Yield runs of neighbouring columns, at most a word of them, each with the place value of its last digit."""
    after = len(digits)
    for stretch in np.split(digits, np.flatnonzero(np.diff(digits) != 1) + 1):
        for first in range(0, len(stretch), WORD):
            run = stretch[first : first + WORD]
            after -= len(run)
            yield run, 10.0**after


@dataclass(frozen=True, slots=True, eq=False)
class _Digits:
    """Whole numbers in equally long lines, read eight bytes of every line at a time.

    A run of digits within a word becomes a number by adding neighbours: digits to pairs, pairs to fours, fours to eight
    (SIMD within a register; D. Lemire, "Quickly parsing eight digits", 2018).
    """

    starts: tuple[int, ...]
    """First column of the 8-byte word that contains each run."""
    lifts: NDArray[np.uint64] | None
    """Bits by which a run at the beginning of a line must move to the word's end, (runs, 1); None where none must."""
    masks: NDArray[np.uint64]
    """The bits of each run in its word, (runs, 1)."""
    weights: FloatArray
    """Weight of each run of digits in each number, shape (numbers, runs)."""

    @classmethod
    def of(cls, wholes: Sequence[Places]) -> _Digits:
        runs = [(number, *run) for number, whole in enumerate(wholes) for run in _runs(whole)]
        starts = [max(int(columns[-1]) + 1 - WORD, 0) for _, columns, _ in runs]
        masks = np.zeros((len(runs), WORD), np.uint8)
        lifts = np.zeros((len(runs), 1), np.uint64)
        weights = np.zeros((len(wholes), len(runs)))
        for position, (number, columns, weight) in enumerate(runs):
            lift = WORD - 1 - (int(columns[-1]) - starts[position])
            masks[position, columns - starts[position] + lift] = 0x0F
            lifts[position] = 8 * lift
            weights[number, position] = weight
        return cls(tuple(starts), lifts if lifts.any() else None, masks.view("<u8").astype(np.uint64), weights)

    def spelled(self, rows: LayoutRows) -> FloatArray:
        """Return the values of the digits in each line, shape (numbers, lines). Each byte of a run must be a digit."""
        count, length = rows.shape
        words = np.empty((len(self.starts), count), np.uint64)
        for word, start in zip(words, self.starts, strict=True):
            word[:] = np.ndarray(count, "<u8", rows, start, (length,))
        if self.lifts is not None:
            words <<= self.lifts
        words &= self.masks
        for factor, bits, kept in _ADDING_NEIGHBOURS:
            words *= factor
            words >>= bits
            words &= kept
        return np.asarray(self.weights @ words.astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class _Number:
    """The position of one number in lines of one layout, and the way to read it."""

    text: slice
    mantissa: Places
    decimals: int
    exponent: Places
    """Digits of the exponent; no columns for a number without an exponent."""
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
            mantissa=_digits_of(mantissa, start),
            decimals=0 if point < 0 else len(mantissa) - point - 1,
            exponent=_digits_of(exponent, start + len(mantissa) + 1),
            exponent_sign=-1 if exponent.startswith("-") else 1,
            sign=-1 if mantissa.startswith("-") else 1,
            shift=shift,
            scale=scale,
        )

    @property
    def is_nan(self) -> bool:
        """Return True for nan and inf, which have no digits."""
        return not len(self.mantissa)

    @property
    def is_exact(self) -> bool:
        """Return True if arithmetic on the digits gives exactly the value that float() reads."""
        return 0 < len(self.mantissa) <= EXACT_DIGITS

    @property
    def divisor(self) -> float:
        """Return the divisor for the mantissa of a number without exponent."""
        return float(self.sign * _POWERS[self.decimals + self.shift])

    def raised(self, mantissa: FloatArray, exponent: FloatArray, rows: LayoutRows) -> FloatArray:
        """Return the numbers of some lines from their digits, exactly as float() reads the text; (lines,)."""
        power = exponent.astype(np.int64) * self.exponent_sign - (self.decimals + self.shift)
        if power.max() < 0 and power.min() >= -EXACT_POWER:
            value = mantissa / _POWERS[-power]
        else:
            size = _POWERS[np.minimum(np.abs(power), EXACT_POWER)]
            value = np.where(power < 0, mantissa / size, mantissa * size)
        value = np.asarray(value * (self.sign * self.scale))
        for far in np.flatnonzero(np.abs(power) > EXACT_POWER):
            value[far] = self.read_text(rows[far])
        return value

    def read_text(self, row: LayoutRows) -> float:
        """Return the number of one line by float()."""
        return float(row[self.text].tobytes().replace(b",", b"")) / 10.0**self.shift * self.scale


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of the fields in lines that agree in everything but their digits."""

    numbers: dict[str, _Number]
    date: tuple[_Number, ...]
    """Parts of the date, in the order of DATE_PARTS; empty for a line without a date."""
    primus: bool
    """True if only Primus writes such a line."""

    @classmethod
    def of(cls, line: bytes) -> Layout | None:
        """Return the layout of one line; None if it is not a whole iteration line."""
        iteration, elapsed = _ITERATION.search(line), _ELAPSED.search(line)
        if iteration is None or elapsed is None or elapsed.start() < iteration.end() or line.count(NEEDLE) > 1:
            return None
        numbers = {
            "index": _Number.of(line, iteration.span(1)),
            "planned": _Number.of(line, iteration.span(2)),
            "seconds": _Number.of(line, elapsed.span(2), shift=3 if elapsed[1] == b"ms" else 0),
        }
        for name, pattern in _PATTERNS.items():
            if match := pattern.search(line, iteration.end()):
                numbers[name] = _Number.of(line, match.span(1))
        if "samples" in numbers:
            numbers.pop("consumed_samples", None)  # it gives the batch where nothing else does
        if "loss" not in numbers and (match := _LOSS_OF_ANY_NAME.search(line, iteration.end())):
            numbers["loss"] = _Number.of(line, match.span(1))
        if match := _USED.search(line, iteration.end()):
            numbers["memory_device_used_bytes"] = _Number.of(line, match.span(1), scale=GIB)
            numbers["memory_total_bytes"] = _Number.of(line, match.span(2), scale=GIB)
        if match := _USED_MAX.search(line, iteration.end()):
            numbers["memory_device_used_peak_bytes"] = _Number.of(line, match.span(1), scale=GIB)
        prefix = line[: iteration.start()]
        if match := _SAMPLES_OF_NEOX.search(prefix):
            numbers.setdefault("reported_samples_per_second", _Number.of(line, match.span(1)))
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
            date=tuple(_Number.of(line, date.span(group)) for group in range(1, 7)) if date else (),
            primus=rank is not None
            or line[elapsed.end() : elapsed.end() + 1] == b"/"
            or any(name in line for name in (b"hip mem usage", b"mem usages:", b"inst/harmonic mean")),
        )

    def steady(self) -> dict[str, _Number]:
        """Return the fields whose digits are part of a template."""
        return {name: number for name, number in self.all().items() if name in _STEADY and not number.is_nan}

    def all(self) -> dict[str, _Number]:
        """Return every field."""
        return self.numbers | dict(zip(DATE_PARTS, self.date, strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """Lines of one layout with one value of every steady field (or, made `free`, with any)."""

    line: NDArray[np.uint8]
    """A line, with 0 for every digit that may differ; (length,)."""
    freedom: NDArray[np.uint8]
    """Largest allowed difference of each byte, as exclusive or: 9 for a digit that may differ, else 0; shape
    (length,)."""
    constants: dict[str, FloatArray]
    """Steady field → its one value."""
    midnight: float | None
    """Start of the lines' day in seconds since 1970; None if the date is not a steady field."""
    plain: dict[str, _Number]
    """Changing numbers without an exponent; they come first in `digits`."""
    raised: dict[str, _Number]
    """Changing numbers with an exponent; in `digits` their mantissas come next, then their exponents."""
    odd: dict[str, _Number]
    """Changing numbers that are nan or too long for exact arithmetic; float() reads them."""
    digits: _Digits
    divisors: FloatArray
    """Divisor of each plain number's digits, (plain, 1)."""
    scales: FloatArray | None
    """Factor of each plain number except powers of ten, (plain, 1); None if all are 1."""

    @classmethod
    def of(cls, line: bytes, layout: Layout, *, free: bool = False) -> Template:
        """Return the template of a line.

        free: treat every field as changing.
        """
        shape = np.frombuffer(line_layout(line), np.uint8).copy()
        freedom = np.where(shape == ord("0"), 9, 0).astype(np.uint8)
        row = np.frombuffer(line, np.uint8)
        steady = {} if free else layout.steady()
        for number in steady.values():
            shape[number.text], freedom[number.text] = row[number.text], 0
        moving = {name: number for name, number in layout.all().items() if name not in steady}
        constants = {name: number.read_text(row) for name, number in steady.items()}
        if "loss" in moving and moving["loss"].is_nan:
            constants["printed_nan"] = 1.0
        day = [constants.pop(name) for name in DAY if name in constants]
        exact = {name: number for name, number in moving.items() if number.is_exact}
        raised = {name: number for name, number in exact.items() if len(number.exponent)}
        plain = {name: number for name, number in exact.items() if name not in raised}
        mantissas = [number.mantissa for number in (*plain.values(), *raised.values())]
        scales = np.array([[number.scale] for number in plain.values()])
        return cls(
            line=shape,
            freedom=freedom,
            constants={name: np.array([value]) for name, value in constants.items()},
            midnight=float(_days(*np.array(day))) * 86400.0 if day else None,
            plain=plain,
            raised=raised,
            odd={name: number for name, number in moving.items() if name not in exact},
            digits=_Digits.of([*mantissas, *(number.exponent for number in raised.values())]),
            divisors=np.array([[number.divisor] for number in plain.values()]),
            scales=scales if (scales != 1.0).any() else None,
        )

    def fits(self, rows: LayoutRows) -> NDArray[np.bool_]:
        """Return a mask of the lines with this layout and these constants, shape (lines,)."""
        differs = (rows ^ self.line) > self.freedom
        return np.asarray(~differs.any(axis=1)) if differs.any() else np.ones(len(rows), np.bool_)

    def read(self, rows: LayoutRows) -> dict[str, FloatArray]:
        """Return every field of lines that fit, by name; each of shape (lines,)."""
        spelled = self.digits.spelled(rows)
        values = spelled[: len(self.plain)] / self.divisors
        if self.scales is not None:
            values *= self.scales
        fields = dict(zip(self.plain, values, strict=True))
        mantissas, exponents = np.split(spelled[len(self.plain) :], 2)
        for name, mantissa, exponent in zip(self.raised, mantissas, exponents, strict=True):
            fields[name] = self.raised[name].raised(mantissa, exponent, rows)
        for name, number in self.odd.items():
            missing = number.is_nan
            fields[name] = np.full(len(rows), np.nan) if missing else np.array([number.read_text(row) for row in rows])
        for name, value in self.constants.items():
            fields[name] = np.ndarray(len(rows), np.float64, value, 0, (0,))  # broadcast_to, thirty times as fast
        return self._dated(fields)

    def _dated(self, fields: dict[str, FloatArray]) -> dict[str, FloatArray]:
        """Return the fields with the parts of the date joined to seconds since 1970."""
        if "second" in fields:
            day = [fields.pop(name) for name in DAY if name in fields]
            midnight = self.midnight if self.midnight is not None else _days(*day) * 86400.0
            hour, minute, second = (fields.pop(name) for name in ("hour", "minute", "second"))
            fields["ended_at"] = np.asarray(midnight + hour * 3600.0 + minute * 60.0 + second)
        return fields


def line_layout(line: bytes) -> bytes:
    """Return the line with 0 for every digit: equal for lines of one layout."""
    return line.translate(_DIGITS_TO_ZERO)


def _days(year: FloatArray, month: FloatArray, day: FloatArray) -> FloatArray:
    """Return the days since 1970 of Gregorian dates."""
    months = 12 * (year - 1970) + month - 1
    return np.asarray(months.astype("datetime64[M]").astype("datetime64[D]").astype(np.float64) + day - 1)
