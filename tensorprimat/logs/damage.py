"""Values of rows that damage has changed: a digit lost or doubled, two rows joined, several writers in one file.

Such a value becomes unknown, and a warning names its line, however many there are. Three signs show it: no device
reaches the value; the other numbers of its row contradict it, as those of most rows do not; or it stands alone among
the values of its column. A row that is slow by all of its numbers is slow, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from tensorprimat.core import catalogue
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import counted, listed, significant, spelled_metric
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Steps, distinct
from tensorprimat.core.terms import FEW_LINES, PRINTED, RATES
from tensorprimat.core.units import TERA
from tensorprimat.logs.format import Reading

FEWEST = 6  # rows of a training that show its ratios
FEWEST_TO_CHOOSE = 20  # rows that show which of two numbers is the damaged one
_AGREEING = 2 / 3  # least share of the rows whose two numbers have one ratio, within _SAME; else they are not bound
_SAME, _OTHER = 0.05, 0.2  # relative differences: rounding, and another number
_SAMPLED = 10_000  # rows that show a ratio, taken evenly
_MOST_DECIMALS = 8  # digits; a number with more is complete
_FASTER = 8.0  # than the median: no step is, unless digits were added or lost
_SPIKE, _SPIKE_OF_LEVEL = 8.0, 1.5
"""Multiples of the memory of the row before and of the row after; sequences of any length need up to three times."""
_LEVEL = 0.01  # relative difference between neighbouring rows
_MOST_SPIKES = 0.1  # share of the rows; more are the way in which a training uses memory
MOST_MEMORY = 10e12  # bytes
_LEAST_MODEL, _MOST_GPUS = 1e5, 1e6  # parameters, and GPUs of one training
_MEMORY = tuple(f"memory_{kind}_bytes" for kind in ("allocated", "reserved", "device_used"))
_MEMORY += tuple(name.replace("_bytes", "_peak_bytes") for name in _MEMORY)
_SPELLED = {
    "seconds": "time",
    "tokens": "tokens",
    **{name: spelled_metric(name.removeprefix(PRINTED)) for name in RATES},
    "reported_tflops_per_gpu": "TFLOP/s",
    "reported_mfu": "MFU",
    **{name: name.removesuffix("_bytes").replace("_", " ") for name in _MEMORY},
}
_BOUND = ("seconds", *RATES, "reported_tflops_per_gpu", "reported_mfu")
"""Columns of which a row's numbers are in proportion to each other, or to the inverse of the time."""

_Odd = Iterator[tuple[Sequence[str], np.ndarray, str]]
"""Columns, mask of their damaged rows, and what shows the damage."""


def leave_out(reading: Reading) -> list[Notice]:
    """Make the values of rows that damage has changed unknown; return a notice for each column that lost some."""
    found = []
    signs: tuple[Callable[[Steps], _Odd], ...] = (_impossible, _contradicted, _far_off, _spikes, _exceeding)
    for sign in signs:
        steps = reading.steps
        for names, odd, why in sign(steps):
            if odd.any():
                what = listed([_SPELLED[name] for name in names])
                verb = "is" if np.count_nonzero(odd) == len(names) == 1 else "are"
                are_few = sign is _contradicted and len(steps) < FEWEST_TO_CHOOSE
                done = "in doubt" if are_few else "left out as damaged"
                where = _places(steps, odd)
                found.append(Notice("damaged_values", "steps", what=what, where=where, verb=verb, done=done, why=why))
                if not are_few:
                    unknown = {name: np.where(odd, np.nan, steps.column(name)) for name in names}
                    reading.steps = reading.steps.replace(**unknown)
    return found


def _places(steps: Steps, odd: np.ndarray) -> str:
    """Return where the rows of a mask are: "on lines 5, 7 and 9"; "in 40 rows (first on line 5)"."""
    rows, lines = np.flatnonzero(odd), steps.column("line")[odd]
    word, numbers = ("line", lines) if (lines > 0).all() else ("step", steps.column("index")[odd])
    if len(rows) > FEW_LINES:
        return f"in {counted(len(rows), 'row')} (first on {word} {numbers[0]})"
    return f"on {word}{'s' * (len(rows) > 1)} {listed([str(number) for number in numbers])}"


@cache
def fastest() -> float:
    """Return the highest peak of a known GPU in FLOP/s; twice, as for sparse matrices."""
    peaks = (peak for gpu in catalogue.gpus() for peak in gpu.peak_tflops.values())
    return 2 * TERA * max(peak.value or peak.high or 0 for peak in peaks)


def _impossible(steps: Steps) -> _Odd:
    """Yield the values that no device reaches, whatever the model."""
    for name in filter(steps.has, (*_BOUND[1:-1], *_MEMORY)):
        if name in _MEMORY:
            most, why = MOST_MEMORY, "no device has so much memory"
        else:
            most, why = fastest() / (6 * _LEAST_MODEL), "no known GPU is so fast"
            most = fastest() / TERA if "flops" in name else most if name.endswith("gpu") else most * _MOST_GPUS
        yield [name], steps.column(name) > most, why


def _paces(steps: Steps) -> dict[str, FloatArray]:
    """Return the logarithm of each speed of the rows by its column, NaN where a row does not state it."""
    work = next((_logarithm(steps.column(name)) for name in ("tokens", "samples") if steps.has(name)), 0.0)
    paces = {name: _logarithm(steps.column(name)) for name in filter(steps.has, _BOUND)}
    return {name: work - pace if name == "seconds" else pace for name, pace in paces.items()}


def _logarithm(values: FloatArray) -> FloatArray:
    """Return the logarithms; NaN for what is not above 0 or not finite."""
    return np.log(np.where((values > 0) & np.isfinite(values), values, np.nan))


def _contradicted(steps: Steps) -> _Odd:
    """Yield the values that contradict the others of their row: two numbers have one ratio in most rows, each training
    its own. The value far from those of the other rows is the damaged one.
    """
    paces, segment = _paces(steps), steps.column("segment")
    found = {name: np.zeros(len(steps), np.bool_) for name in paces}
    for number in distinct(segment):
        rows = np.flatnonzero((segment == number) & (steps.column("interrupted_by") == 0))[1:]
        _mark_contradicted(steps.take(rows), {name: pace[rows] for name, pace in paces.items()}, rows, found)
    for name, odd in found.items():
        yield [name], odd, "the other numbers of the row contradict it"


def _mark_contradicted(
    steps: Steps, paces: dict[str, FloatArray], rows: np.ndarray, found: dict[str, np.ndarray]
) -> None:
    """Mark the contradicted values of one training. steps: its rows; rows: their positions in the masks of `found`."""
    bound = max((_bound_to(name, paces) for name in paces), key=len, default={})
    if len(bound) < 2:
        return
    (first, level), *others = ((name, paces[name] - offset) for name, offset in bound.items())
    doubtful = np.zeros(len(rows), np.bool_)
    for _, other in others:
        doubtful |= np.abs(other - level) > np.log1p(_OTHER)
    where = np.flatnonzero(doubtful)
    if not len(where):
        return
    each = np.array([level[where], *(other[where] for _, other in others)])
    usual = median(level[np.isfinite(level)])
    known = np.isfinite(each)
    nearest = np.nanmin(np.where(known, np.abs(each - usual), np.inf), axis=0)
    two = np.where(np.abs(np.nan_to_num(each, nan=np.inf) - usual) <= nearest, each, np.nan)
    truth = np.where(known.sum(axis=0) > 2, np.nanmedian(each, axis=0), np.nanmax(two, axis=0))
    for name, pace in zip((first, *(name for name, _ in others)), each, strict=True):
        values = steps.column(name)
        unit = _last_decimal(values[:: 1 + len(values) // _SAMPLED])
        rounded = unit / np.maximum(values[where], max(unit, np.finfo(np.float64).tiny))
        found[name][rows[where[np.abs(pace - truth) > np.log1p(_OTHER + rounded)]]] = True


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


def _far_off(steps: Steps) -> _Odd:
    """Yield rates far above those of the other rows, in rows where no other number confirms them."""
    paces = _paces(steps)
    alone = np.sum([np.isfinite(pace) for pace in paces.values()], axis=0) == 1
    works = [_logarithm(steps.column(name)) for name in ("relative_work", "tokens") if steps.has(name)]
    works = [work - median(work[np.isfinite(work)]) for work in works if np.isfinite(work).any()]
    for name, pace in paces.items() if any(map(steps.has, RATES)) else ():
        if name != "seconds":  # steps of different work run at different rates
            pace = pace - sum(works)
        known = pace[2:][np.isfinite(pace[2:])]
        if len(known) >= FEWEST:
            above = pace - median(known)
            odd = (above > np.log(_FASTER)) & (np.arange(len(pace)) >= 2) & alone
            times = significant(float(np.exp(np.max(above, where=odd, initial=0.0))), 3)
            yield [name], odd, f"a step is {times} times as fast as usual"


def _spikes(steps: Steps) -> _Odd:
    """Yield single peaks of memory in a column that is level but for them, or that are far above all."""
    for name in filter(steps.has, _MEMORY):
        rows = np.flatnonzero(np.isfinite(steps.column(name)) & (steps.column("interrupted_by") == 0))
        used, odd = steps.column(name)[rows], np.zeros(len(steps), np.bool_)
        if len(rows) > FEWEST:
            around = np.maximum(np.append(used[1:], used[-2]), np.insert(used[:-1], 0, np.inf))
            is_level = np.mean(np.abs(np.diff(used)) <= _LEVEL * used[1:]) >= _AGREEING
            spikes = used > (_SPIKE_OF_LEVEL if is_level else _SPIKE) * around
            if np.count_nonzero(spikes) <= max(1, _MOST_SPIKES * len(rows)):
                odd[rows[spikes]] = True
        yield [name], odd, "the rows before and after it use much less"


def _exceeding(steps: Steps) -> _Odd:
    """Yield the memory of rows whose peaks contradict each other."""
    more = steps.column("memory_allocated_peak_bytes") > (1 + _SAME) * steps.column("memory_reserved_peak_bytes")
    if np.count_nonzero(more) <= (1 - _AGREEING) * len(more):  # else the log calls something else so
        names = [name for name in _MEMORY if "device" not in name and steps.has(name)]
        yield names, more, "the allocated peak exceeds the reserved one"
