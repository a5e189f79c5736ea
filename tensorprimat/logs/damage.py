"""Values of rows that damage has changed: a digit lost or doubled, two rows joined, several writers in one file.

Four signs show such a value: no device reaches it; the dates around it show a usual step; the other numbers of its row
contradict it, as those of most rows do not; or it is alone far above the values of its column. It becomes unknown, and
a warning names its line, however many there are. Where a checkpoint, an evaluation or another size of batch explains it
too, it stays, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from tensorprimat.audit import evidence
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import counted, gigabytes, listed, significant, spelled_metric
from tensorprimat.core.result import MEMORY_KINDS
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Steps, distinct, finite
from tensorprimat.core.terms import FEW_LINES, PRINTED, RATES
from tensorprimat.core.units import GB, TERA
from tensorprimat.facts import catalogue
from tensorprimat.logs.format import Reading

FEWEST = 6  # rows of a training that show its ratios
FEWEST_TO_CHOOSE = 20  # rows that show which of two numbers is the damaged one
MOST = 1 / 3  # share of the rows whose values are left out; if there are more, they are in doubt
_AGREEING = 0.5  # least share of the rows whose two numbers have one ratio, within _SAME; else they are not bound
_SAME, _OTHER = 0.05, 0.2  # relative differences: rounding, and another number
_SAMPLED = 10_000  # rows that show a ratio, taken evenly
_MOST_DECIMALS = 8  # digits; a number with more is complete
_FASTER = 8.0  # than the median: no step is, unless digits were added
_LONGER = 3.0  # times the usual step
_SPIKE, _SPIKE_OF_LEVEL = 8.0, 1.1  # times the rows around it; sequences of any length need up to three times
_LEVEL = 0.01  # relative difference from one of the two rows before
MOST_MEMORY = 10e12  # bytes
_MOST_MFU = 100.0  # where a framework divides by the peak of a much slower GPU
_MOST_WORK = 1e12  # tokens of a step; a training has some 1e13
_LEAST_MODEL, _MOST_GPUS = 1e5, 1e6  # parameters, and GPUs of one training
_MEMORY = {
    f"{kind}{peak}_bytes": f"{'peak of ' if peak else ''}{name} memory"
    for kind, name in MEMORY_KINDS.items()
    for peak in ("", "_peak")
}
_PACES = {
    "seconds": "time",
    **{name: spelled_metric(name.removeprefix(PRINTED)) for name in RATES},
    "reported_tflops_per_gpu": "TFLOP/s",
    "reported_mfu": "MFU",
}
"""Columns of which a row's numbers are in proportion to each other, or to the inverse of the time."""
_WORK = {"tokens": "number of tokens", "samples": "number of samples"}
_NAMES = {**_PACES, **_MEMORY, **_WORK}


class _Odd(NamedTuple):
    columns: Sequence[str]
    rows: np.ndarray
    """Mask of the rows; shape (rows,)."""
    why: str
    is_certain: bool
    """False for values that stay, because a sound row can have them."""


def leave_out(reading: Reading) -> list[Notice]:
    """Make the values that damage has changed unknown; return a notice for each column that has some."""
    notices: list[Notice] = []
    doubted: dict[str, np.ndarray] = {}
    signs: tuple[Callable[[Reading], Iterator[_Odd]], ...] = (
        _impossible,
        _longer_than_between,
        _contradicted,
        _far_off,
        _spikes,
        _exceeding,
    )
    for sign in signs:
        for columns, odd, why, is_certain in sign(reading):
            if not is_certain:  # one warning per value
                odd = odd & ~doubted.get(columns[0], np.False_)
                doubted[columns[0]] = odd | doubted.get(columns[0], np.False_)
            if not odd.any():
                continue
            what = f"{listed([_NAMES[name] for name in columns])} {'is' if len(columns) == 1 else 'are'}"
            code, where = "damaged_values" if is_certain else "doubtful_values", places(reading.steps, odd)
            notices.append(Notice(code, "steps", what=what, where=where, why=why))
            if is_certain:
                unknown = {name: np.where(odd, np.nan, reading.steps.column(name)) for name in columns}
                reading.steps = reading.steps.replace(**unknown)
    return notices


def places(steps: Steps, odd: np.ndarray) -> str:
    """Return where the rows of a mask are: "on lines 5, 7 and 9"; "in 40 rows (first on line 5)"."""
    lines = steps.column("line")[odd]
    word, numbers = ("line", lines) if (lines > 0).all() else ("step", steps.column("index")[odd])
    if len(numbers) > FEW_LINES:
        return f"in {counted(len(numbers), 'row')} (first on {word} {numbers[0]})"
    return f"on {word}{'s' * (len(numbers) > 1)} {listed([str(number) for number in numbers])}"


@cache
def _fastest() -> float:
    """Return the highest peak of a known GPU in FLOP/s; twice, as for sparse matrices."""
    peaks = (peak for gpu in catalogue.gpus() for peak in gpu.peak_tflops.values())
    return 2 * TERA * max(peak.value or peak.high or 0 for peak in peaks)


def _impossible(reading: Reading) -> Iterator[_Odd]:
    """Yield the values that no device reaches, whatever the model."""
    per_gpu = _fastest() / (6 * _LEAST_MODEL)
    bounds = {name: per_gpu * (1 if name.endswith("gpu") else _MOST_GPUS) for name in RATES}
    bounds |= {"reported_tflops_per_gpu": _fastest() / TERA, "reported_mfu": _MOST_MFU}
    for name in filter(reading.steps.has, bounds):
        yield _Odd([name], reading.steps.column(name) > bounds[name], "no known GPU is so fast", is_certain=True)
    for name in filter(reading.steps.has, _WORK):
        yield _Odd([name], reading.steps.column(name) > _MOST_WORK, "no step does so much work", is_certain=True)
    device = _memory_of_device(reading)
    for name in filter(reading.steps.has, _MEMORY):
        used = reading.steps.column(name)
        yield _Odd([name], used > MOST_MEMORY, "no device has so much memory", is_certain=True)
        more = (used > (1 + catalogue.RESERVED) * device) & (used <= MOST_MEMORY)
        is_certain = bool(np.count_nonzero(more) <= MOST * len(more))  # else the log counts something else
        yield _Odd([name], more, f"the device has {gigabytes(device / GB)}", is_certain)


def _longer_than_between(reading: Reading) -> Iterator[_Odd]:
    """Yield the times of a few rows that are far longer than usual where their dates show a usual step."""
    steps = reading.steps
    dates = steps.column("ended_at")
    if reading.timing != "reported" or np.count_nonzero(np.isfinite(dates)) < FEWEST_TO_CHOOSE:
        return
    between = np.diff(dates, prepend=np.nan) + 2 * evidence.resolution_of(finite(dates))
    is_first = np.diff(steps.column("segment"), prepend=-1) != 0
    seconds, covers = steps.column("seconds"), steps.column("covers")
    usual = _LONGER * median(finite(seconds)) if np.isfinite(seconds).any() else np.inf
    odd = (seconds > usual) & (between < usual * covers) & ~is_first & (steps.column("interrupted_by") == 0)
    for rate in (steps.column(name) for name in _PACES if name != "seconds" and steps.has(name)):
        odd &= ~(rate * _LONGER < median(finite(rate)))  # of a row that is slow by its rate too the date is wrong
    if np.count_nonzero(odd) <= MOST * len(odd):  # else rows were dated when they were written, not when a step ended
        yield _Odd(["seconds"], odd, "the dates of the rows show a usual step", is_certain=True)


def _memory_of_device(reading: Reading) -> float:
    """Return the most bytes that the device of the log has; infinity where that is unknown."""
    device = reading.gpu_info.get("device_name")
    named = [gpu.memory_bytes for gpu in catalogue.variants(device if isinstance(device, str) else None)]
    sizes = [size for size in named if size] if all(named) else []
    if total := reading.gpu_info.get("total_memory_gb"):
        sizes = [total * GB]
    return max(sizes, default=np.inf)


def _paces(steps: Steps) -> dict[str, FloatArray]:
    """Return the logarithm of each speed of the rows by its column, NaN where a row does not state it."""
    work = next((_logarithm(steps.column(name)) for name in ("tokens", "samples") if steps.has(name)), 0.0)
    paces = {name: _logarithm(steps.column(name)) for name in filter(steps.has, _PACES)}
    return {name: work - pace if name == "seconds" else pace for name, pace in paces.items()}


def _logarithm(values: FloatArray) -> FloatArray:
    """Return the logarithms; NaN for what is not above 0 or not finite."""
    return np.log(np.where((values > 0) & np.isfinite(values), values, np.nan))


def _contradicted(reading: Reading) -> Iterator[_Odd]:
    """Yield the values that contradict the others of their row: two numbers have one ratio in most rows, each training
    its own. A value far from those of the other rows is the damaged one.
    """
    steps = reading.steps
    paces, segment = _paces(steps), steps.column("segment")
    found = {(name, is_certain): np.zeros(len(steps), np.bool_) for name in paces for is_certain in (True, False)}
    for number in distinct(segment):
        rows = np.flatnonzero((segment == number) & (steps.column("interrupted_by") == 0))[1:]
        _mark_contradicted(steps.take(rows), {name: pace[rows] for name, pace in paces.items()}, rows, found)
    for (name, is_certain), odd in found.items():
        if name != "seconds" or reading.timing == "reported":  # the dates of rows contain every pause
            yield _Odd([name], odd, "the other numbers of the row contradict it", is_certain)


def _mark_contradicted(
    steps: Steps, paces: dict[str, FloatArray], rows: np.ndarray, found: dict[tuple[str, bool], np.ndarray]
) -> None:
    """Mark the contradicted values of one training.

    steps: its rows; rows: their positions in the masks of `found`, by column and whether the damage is certain. A value
    that is too high for its row and for the others is certain, and so is a rate that is too low for a row of which two
    other numbers are usual; a long time can contain a checkpoint that the rates leave out.
    """
    bound = max((_bound_to(name, paces) for name in paces), key=len, default={})
    if len(bound) < 2:
        return
    levels = np.array([paces[name] - offset for name, offset in bound.items()])
    with_other = np.nan_to_num(np.abs(levels - levels[0]), nan=0.0).max(axis=0) > np.log1p(_OTHER)
    where = np.flatnonzero(with_other)
    if not len(where):
        return
    usual = median(levels[0][np.isfinite(levels[0])])
    each = levels[:, where] - usual
    count, off = np.isfinite(each).sum(axis=0), np.nan_to_num(np.abs(each), nan=np.inf)
    nearest = np.nanmax(np.where(off <= off.min(axis=0), each, np.nan), axis=0)
    truth = np.where(count > 2, np.nanmedian(each, axis=0), nearest)
    for name, pace in zip(bound, each, strict=True):
        values = steps.column(name)
        unit = _last_decimal(values[:: 1 + len(values) // _SAMPLED])
        rounded = unit / np.maximum(values[where], max(unit, np.finfo(np.float64).tiny))
        odd = np.abs(pace - truth) > np.log1p(_OTHER + rounded)
        is_fast = (pace > truth) & (pace > np.log1p(_OTHER))
        is_slow = (pace < truth) & (count > 2) & (np.abs(truth) < np.log1p(_OTHER)) & (name != "seconds")
        is_certain = (is_fast | is_slow) & (len(rows) >= FEWEST_TO_CHOOSE) & (len(where) <= MOST * len(rows))
        found[name, True][rows[where[odd & is_certain]]] = True
        found[name, False][rows[where[odd & ~is_certain]]] = True


def _bound_to(name: str, paces: dict[str, FloatArray]) -> dict[str, float]:
    """Return the columns in proportion to one, with the logarithm of the ratio; that one is first, with 0."""
    bound = {name: 0.0}
    for other, pace in paces.items():
        ratio = (pace - paces[name])[:: 1 + len(pace) // _SAMPLED]
        ratio = ratio[np.isfinite(ratio)]
        if other == name or len(ratio) < FEWEST:
            continue
        usual = median(ratio)
        if np.mean(np.abs(ratio - usual) < _SAME) >= _AGREEING:
            bound[other] = usual
    return bound


def _last_decimal(values: FloatArray) -> float:
    """Return one unit of the last decimal that a column is printed with: 0.01 for 41.5 and 0.02."""
    values = values[np.isfinite(values)]
    for decimals in range(_MOST_DECIMALS):
        scaled = values * 10.0**decimals
        if np.allclose(scaled, np.round(scaled), rtol=0, atol=1e-6):
            return float(10.0**-decimals)
    return 0.0


def _far_off(reading: Reading) -> Iterator[_Odd]:
    """Yield rates far above those of the other rows, and times far below; a training's first row compiles."""
    steps = reading.steps
    paces = _paces(steps) if any(map(steps.has, RATES)) else {}
    works = [_logarithm(steps.column(name)) for name in ("relative_work", "tokens") if steps.has(name)]
    works = [work - median(work[np.isfinite(work)]) for work in works if np.isfinite(work).any()]
    for name, pace in paces.items():
        if name != "seconds":  # steps of different work run at different rates
            pace = pace - sum(works)
        elif reading.timing != "reported":  # rows that are written together have one date
            continue
        known = pace[2:][np.isfinite(pace[2:])]
        if len(known) < FEWEST:
            continue
        above = np.where(np.arange(len(pace)) >= 2, pace - median(known), np.nan)
        fast = above > np.log(_FASTER)
        is_certain = len(known) >= FEWEST_TO_CHOOSE and bool(np.count_nonzero(fast) <= MOST * len(known))
        times = significant(float(np.exp(np.max(above, where=fast, initial=0.0))), 3)
        yield _Odd([name], fast, f"a step is {times} times as fast as usual", is_certain)


def _spikes(reading: Reading) -> Iterator[_Odd]:
    """Yield single peaks of memory in a column that is level but for them, or that are far above all."""
    steps, why = reading.steps, "the rows before and after it use much less"
    for name in filter(steps.has, _MEMORY):
        rows = np.flatnonzero(np.isfinite(steps.column(name)) & (steps.column("interrupted_by") == 0))
        used = steps.column(name)[rows]
        if len(rows) <= FEWEST:
            continue
        around = np.maximum(np.append(used[1:], used[-2]), np.insert(used[:-1], 0, np.inf))
        change = np.minimum(np.abs(used[2:] - used[1:-1]), np.abs(used[2:] - used[:-2]))
        is_level = np.mean(change <= _LEVEL * used[2:]) >= 1 - MOST
        far = used > _SPIKE * around
        is_clear = len(rows) >= FEWEST_TO_CHOOSE and bool(np.count_nonzero(far) <= MOST * len(rows))
        for spikes, is_certain in ((far, is_clear), (~far & (used > _SPIKE_OF_LEVEL * around) & is_level, False)):
            odd = np.zeros(len(steps), np.bool_)
            odd[rows[spikes]] = True
            yield _Odd([name], odd, why, is_certain)


def _exceeding(reading: Reading) -> Iterator[_Odd]:
    """Yield the memory of rows whose peaks contradict each other."""
    steps = reading.steps
    more = steps.column("memory_allocated_peak_bytes") > (1 + _SAME) * steps.column("memory_reserved_peak_bytes")
    share = float(np.count_nonzero(more)) / max(1, len(more))
    if share <= 1 - MOST:  # else the log calls something else so
        names = [name for name in _MEMORY if "device" not in name and steps.has(name)]
        yield _Odd(names, more, "the allocated peak exceeds the reserved one", is_certain=share <= MOST)
