"""`Step`, one logged row of optimizer steps, and `Steps`, millions of them in columns.

A reader or an engine produces one `Step` per event; a `Steps` keeps them as one numpy array per field that was ever
seen, so a log of ten million lines fits in memory and arithmetic is vectorised. `None` (NaN in a column) means that
nothing was seen. A loss that the framework itself printed as nan is a different thing: see `Steps.logged_nan`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

PICKED_AT_ONCE = 2**17  # rows; of a larger selection a column is copied only when it is used
FEW_ROWS = 1000  # making a set of them takes less time than importing numpy.ma
INTERRUPTIONS = ("", "validation", "checkpoint", "profile")  # other work inside a step's interval; coded by position


@dataclass(frozen=True, kw_only=True)
class Step:
    """One logged row of optimizer steps. Times in seconds, memory in bytes, powers in watts, None where unseen.

    An object contains only the fields that were given; the others are class attributes with their default. A log of
    100 MB has a million rows of a few fields each.
    """

    index: int
    """Number of the last optimizer step of the row, as the framework counts."""
    seconds: float | None
    """Mean wall time of one optimizer step of the row, from one step end to the next; data wait is inside."""
    covers: int = 1
    """Number of optimizer steps that the row averages (a log interval); 0 if the row only repeats the measurement of
    other rows."""
    ended_at: float | None = None
    """Time at which the row was printed, in seconds since the epoch; a clock without a time zone is read as UTC."""
    data_wait_seconds: float | None = None
    host_wait_seconds: float | None = None
    """Seconds at the start of one optimizer step in which the device had finished the step before, and the host had not
    yet queued any work."""
    tokens: float | None = None
    """Tokens of one optimizer step over all devices."""
    samples: float | None = None
    """Sequences (images for diffusion) of one optimizer step over all devices: the global batch size."""
    relative_work: float | None = None
    """Work of one optimizer step in a unit that all rows of the log share, where they state no tokens: tokens that
    enter the loss, or a printed rate times the seconds between two dates. A weight of printed rates, not a figure."""
    loss: float | None = None
    """Training loss; nan where the framework printed nan."""
    learning_rate: float | None = None
    gradient_norm: float | None = None
    memory_allocated_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    memory_allocated_peak_bytes: float | None = None
    memory_reserved_peak_bytes: float | None = None
    memory_device_used_bytes: float | None = None
    """The whole device's use as its driver reports it, every process and pool included."""
    memory_device_used_peak_bytes: float | None = None
    """Peak use of the whole device, on the rank that uses most."""
    reported_tokens_per_second: float | None = None
    """Rate over all devices, as the framework printed it."""
    reported_tokens_per_second_per_gpu: float | None = None
    reported_samples_per_second: float | None = None
    reported_samples_per_second_per_gpu: float | None = None
    reported_tflops_per_gpu: float | None = None
    reported_mfu: float | None = None
    """MFU as a fraction (0.42), whatever the framework prints."""
    power_watts_per_gpu: float | None = None
    energy_joules_per_gpu: float | None = None
    """Energy of one optimizer step on one GPU."""
    clock_hertz: float | None = None
    """Clock of the compute units, mean over the step and the GPUs."""
    temperature_celsius: float | None = None
    """Temperature of the hottest GPU, mean over the step."""
    throttled_seconds: float | None = None
    """Seconds of one optimizer step in which the clock of a GPU was reduced (power cap, heat)."""
    slowdown_seconds: float | None = None
    """The part of them for which the driver names another reason than the power cap."""
    interrupted_by: str = ""
    """Other work inside the interval ("validation", "checkpoint", "profile" for the writing of one): such a row is
    measured only if all have some."""
    skipped: bool = False
    """True if the optimizer skipped its update (overflow); the work was done, so the time counts."""
    run: int = 0
    """Index of the repetition of the benchmark."""
    segment: int = 0
    """Index of the segment (stretch between restarts) of one log."""
    source: int = 0
    """Position of the file in the result's provenance."""
    line: int | None = None
    """1-based line in that file."""

    if not TYPE_CHECKING:  # dataclass would set every field, one by one, in five times the time

        def __init__(self, **values):
            if not (_REQUIRED <= values.keys() <= _NAMES):
                unknown, missing = sorted(values.keys() - _NAMES), sorted(_REQUIRED - values.keys())
                raise TypeError(f"Step: unknown fields {unknown}, missing fields {missing}")
            self.__dict__.update(values)

    def changed(self, **columns: object) -> Step:
        """Return the row with some fields set anew; dataclasses.replace in a tenth of the time."""
        return Step(**{**self.__dict__, **columns})


_NAMES = frozenset(f.name for f in fields(Step))
_REQUIRED = frozenset({"index", "seconds"})

INTEGER_COLUMNS: Mapping[str, int] = {"index": 0, "covers": 1, "run": 0, "segment": 0, "source": 0, "line": -1}
"""Whole-number columns → the value that means "unseen"."""
FLAG_COLUMNS: Mapping[str, int] = {"interrupted_by": 0, "skipped": 0}
FLOAT_COLUMNS = tuple(f.name for f in fields(Step) if f.name not in INTEGER_COLUMNS and f.name not in FLAG_COLUMNS)
COLUMNS = tuple(f.name for f in fields(Step))
LONGEST_STEP_SECONDS = 1e7  # four months: beyond it a number is not a step time

FloatArray = NDArray[np.float64]

Derived = TypeVar("Derived")


def distinct(numbers: np.ndarray) -> list[int]:
    """Return the different whole numbers of a column in ascending order.

    Most columns have few of them; np.unique, which imports numpy.ma, is used for large columns only.
    """
    if not len(numbers) or (numbers == numbers[0]).all():
        return [int(number) for number in numbers[:1]]
    if len(numbers) <= FEW_ROWS:
        return sorted({int(number) for number in numbers.tolist()})
    return [int(number) for number in np.unique(numbers)]


def chosen(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the values of the selected rows; without a copy if all are selected, as is usual. rows: boolean mask."""
    return values if rows.all() else values[rows]


def finite(values: np.ndarray) -> np.ndarray:
    """Return the values that are known, neither NaN nor infinite."""
    return chosen(values, np.isfinite(values))


class _Picked(Mapping[str, np.ndarray]):
    """Some rows of columns. Each use copies a column and nothing keeps it: figures need one column after the other."""

    def __init__(self, columns: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        self._columns, self._rows = columns, rows

    def __getitem__(self, name: str) -> np.ndarray:
        column: np.ndarray = self._columns[name][self._rows]
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def repeated(value: float, count: int, dtype: np.dtype | type | str) -> np.ndarray:
    """Return a read-only column that stores its one value once; 30 times as fast as numpy's broadcast_to."""
    column: np.ndarray = np.ndarray(count, dtype, np.array(value, dtype), 0, (0,))
    column.flags.writeable = False
    return column


class Steps(Sequence[Step]):
    """Rows of optimizer steps in columns; reads like a sequence of `Step`.

    Only fields that were seen are stored. Immutable: `take`, `replace` and `concatenate` give new objects.
    """

    __slots__ = ("_columns", "_derived", "_length", "_logged_nan", "_unseen")

    def __init__(
        self, columns: Mapping[str, np.ndarray], *, logged_nan: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> None:
        """Create the table from columns: equally long arrays by `Step` field.

        Float columns hold NaN where a value is absent; `interrupted_by` holds positions in INTERRUPTIONS. logged_nan:
        masks of the NaNs that the framework itself printed. Raises ValueError for an unknown field or arrays of
        different length.
        """
        if unknown := set(columns) - set(COLUMNS):
            raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of different length: {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0
        self._columns: Mapping[str, np.ndarray] = {name: np.asarray(values) for name, values in columns.items()}
        self._logged_nan = {name: mask for name, mask in (logged_nan or {}).items() if mask.any()}
        self._unseen: dict[tuple[str, float], np.ndarray] = {}
        self._derived: dict[Hashable, object] = {}

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Return the stored columns, without the caches, for a copy in another process."""
        kept = {name: getattr(self, name) for name in self.__slots__}
        return None, {**kept, "_unseen": {}}

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Steps:
        """Collect single steps, in their order."""
        builder = StepsBuilder()
        for step in steps:
            builder.append(step)
        return builder.build()

    @classmethod
    def concatenate(cls, parts: Sequence[Steps]) -> Steps:
        """Return the rows of several `Steps`, one after the other; a field that one part never saw is unseen there."""
        parts = [part for part in parts if len(part)]
        if len(parts) == 1:
            return parts[0]
        names = [name for name in COLUMNS if any(name in part._columns for part in parts)]
        nan_names = {name for part in parts for name in part._logged_nan}
        return cls(
            {name: np.concatenate([part.column(name) for part in parts]) for name in names},
            logged_nan={name: np.concatenate([part.logged_nan(name) for part in parts]) for name in nan_names},
        )

    def __len__(self) -> int:
        return self._length

    @property
    def seen(self) -> tuple[str, ...]:
        """Return the names of the stored fields; after `take`, the remaining rows may all lack a value."""
        return tuple(name for name in COLUMNS if name in self._columns)

    def has(self, name: str) -> bool:
        """Return True if the field is stored; after `take`, the remaining rows may all lack a value."""
        return name in self._columns

    def column(self, name: str) -> np.ndarray:
        """Return one field of every row; float fields are NaN where unseen (and where nan was logged)."""
        if name in self._columns:
            return self._columns[name]
        typecode, unseen = kind = _FILLS[name]
        if kind not in self._unseen:  # once: figures of ten thousand files read unseen columns half a million times
            self._unseen[kind] = repeated(unseen, self._length, typecode)
        return self._unseen[kind]  # read-only: every unseen column of its kind is the same array

    def columns(self, *names: str, rows: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Return several fields, of the selected rows; without a copy if all are selected. rows: boolean mask."""
        columns = tuple(map(self.column, names))
        return columns if rows is None or rows.all() else tuple(column[rows] for column in columns)

    def total_seconds(self) -> float | None:
        """Return the seconds of all rows that have a time: sum of mean step time × steps covered; None without one."""
        return self.once("total_seconds", self._total_seconds)

    def _total_seconds(self) -> float | None:
        known = finite(self.column("seconds") * self.column("covers"))
        return float(known.sum()) if len(known) else None

    def place(self, row: int) -> str:
        """Return a place, such as `step 7, line 12`, or `row 7 of 20` in a file that does not number its steps."""
        line = int(self.column("line")[row])
        numbered = "index" in self._columns
        place = f"step {int(self.column('index')[row])}" if numbered else f"row {row + 1} of {self._length}"
        return place + (f", line {line}" if line > 0 else "")

    def once(self, key: Hashable, derive: Callable[[], Derived]) -> Derived:
        """Return `derive` of these rows, computed at the first call with this key, because the rows never change."""
        if key not in self._derived:
            self._derived[key] = derive()
        return self._derived[key]  # type: ignore[return-value]  # one key always means one function

    def logged_nan(self, name: str) -> NDArray[np.bool_]:
        """Return the rows in which the framework printed nan for this field, as opposed to printing nothing."""
        return self._logged_nan.get(name, np.zeros(self._length, np.bool_))

    def take(self, rows: slice | np.ndarray) -> Steps:
        """Return the rows of a slice, boolean mask or positions; consecutive rows share memory with these."""
        if isinstance(rows, np.ndarray) and rows.dtype != np.bool_ and len(rows):
            first, last = int(rows[0]), int(rows[-1])
            if last - first + 1 == len(rows) and (np.diff(rows) == 1).all():
                rows = slice(first, last + 1)
        masks = {name: mask[rows] for name, mask in self._logged_nan.items()}
        if isinstance(rows, slice) or len(rows) <= PICKED_AT_ONCE:
            return Steps({name: values[rows] for name, values in self._columns.items()}, logged_nan=masks)
        picked = Steps({}, logged_nan=masks)
        picked._columns = _Picked(self._columns, rows)
        picked._length = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return picked

    def without(self, name: str) -> Steps:
        """Return the same rows without a column."""
        kept = {other: column for other, column in self._columns.items() if other != name}
        return Steps(kept, logged_nan={other: mask for other, mask in self._logged_nan.items() if other != name})

    def replace(self, **columns: np.ndarray | float | int) -> Steps:
        """Return the same rows with some columns set anew; a single number fills its column."""
        filled = {
            name: value if value.ndim else repeated(value.item(), self._length, value.dtype)
            for name, value in zip(columns, map(np.asarray, columns.values()), strict=True)
        }
        kept_nan = {name: mask for name, mask in self._logged_nan.items() if name not in columns}
        return Steps({**self._columns, **filled}, logged_nan=kept_nan)

    @overload
    def __getitem__(self, position: int) -> Step: ...
    @overload
    def __getitem__(self, position: slice) -> Steps: ...
    def __getitem__(self, position: int | slice) -> Step | Steps:
        if isinstance(position, slice):
            return self.take(position)
        if not -self._length <= position < self._length:
            raise IndexError(position)
        if isinstance(self._columns, _Picked):
            self._columns = dict(self._columns)
        row: dict[str, object] = {}
        for name in ("index", "seconds", *self._columns):
            printed_nan = name in self._logged_nan and self._logged_nan[name][position]
            row[name] = _cell(name, self.column(name)[position], printed_nan=printed_nan)
        return Step(**row)  # type: ignore[arg-type]  # the column tables above are Step's own fields

    def __iter__(self) -> Iterator[Step]:
        return (self[position] for position in range(self._length))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Steps)
            and len(self) == len(other)
            and all(
                np.array_equal(self.column(name), other.column(name), equal_nan=name in FLOAT_COLUMNS)
                for name in {*self.seen, *other.seen}
            )
            and all(
                np.array_equal(self.logged_nan(name), other.logged_nan(name))
                for name in {*self._logged_nan, *other._logged_nan}
            )
        )

    __hash__ = None  # type: ignore[assignment]  # numpy columns inside

    def __repr__(self) -> str:
        return f"Steps({self._length} rows: {', '.join(self.seen)})"


def _cell(name: str, value: float, *, printed_nan: bool) -> object:
    """Return the value of a `Step`'s field that a column contains. printed_nan: a nan in it is the framework's own."""
    if name == "interrupted_by":
        return INTERRUPTIONS[int(value)]
    if name == "skipped":
        return bool(value)
    if name in INTEGER_COLUMNS:
        return None if name == "line" and value < 0 else int(value)
    return None if value != value and not printed_nan else float(value)


_UNSEEN: Mapping[str, object] = {
    **dict.fromkeys(FLOAT_COLUMNS, None), **INTEGER_COLUMNS, "interrupted_by": "", "skipped": False,
}  # fmt: skip
"""Value of each field that is not stored: a column is filled with it for rows without a value."""
_FILLS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(FLOAT_COLUMNS, ("d", math.nan)),
    **{name: ("q", unseen) for name, unseen in INTEGER_COLUMNS.items()},
    **dict.fromkeys(FLAG_COLUMNS, ("b", 0)),
}
"""Type of each column as an array, and the number that means "unseen"."""


class StepsBuilder:
    """A builder of `Steps`, which puts each `Step` into columns without keeping the object."""

    def __init__(self) -> None:
        self._length = 0
        self._columns: dict[str, array[float]] = {}  # of int for the columns of INTEGER_COLUMNS; short ones are filled
        self._nan_rows: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return self._length

    def append(self, step: Step) -> None:
        """Add one row at the end."""
        place = self._length
        for name, value in vars(step).items():
            if value is None or value == _UNSEEN[name]:
                continue
            column = self._columns.get(name)
            if column is None or len(column) < place:
                column = self._filled(name)
            if name == "interrupted_by":
                value = INTERRUPTIONS.index(value)
            elif value != value:
                self._nan_rows.setdefault(name, set()).add(place)
            column.append(value)
        self._length += 1

    def __getitem__(self, place: int) -> Step:
        """Return a row that was added, with the fields that have a value."""
        row: dict[str, object] = {"index": 0, "seconds": None}
        for name, column in self._columns.items():
            if place >= len(column):
                continue
            row[name] = _cell(name, column[place], printed_nan=place in self._nan_rows.get(name, ()))
        return Step(**row)  # type: ignore[arg-type]  # the columns are Step's own fields

    def change(self, place: int, **columns: float) -> None:
        """Set numbers of a row that was added."""
        for name, value in columns.items():
            column = self._filled(name, place + 1)
            column[place] = value
            if value != value:
                self._nan_rows.setdefault(name, set()).add(place)

    def _filled(self, name: str, length: int | None = None) -> array[float]:
        """Return a column, filled up to a length (by default the number of rows) if it is shorter."""
        typecode, fill = _FILLS[name]
        column: array[float] = self._columns.setdefault(name, array(typecode))  # type: ignore[arg-type]
        missing = (self._length if length is None else length) - len(column)
        if missing > 0:
            column.extend(array(typecode, [fill]) * missing)
        return column

    def build(self) -> Steps:
        """Return the rows so far."""
        if self._length and not self._columns:
            self._filled("index")
        masks = {}
        for name, rows in self._nan_rows.items():
            masks[name] = np.zeros(self._length, np.bool_)
            masks[name][sorted(rows)] = True
        return Steps({name: np.array(self._filled(name)) for name in self._columns}, logged_nan=masks)
