"""Memory, power, clock and temperature of the measured steps, each with its formula and numbers."""

from __future__ import annotations

import numpy as np

from tensorprimat.core.quantities import count, counted, fixed, listed, precise
from tensorprimat.core.result import MEMORY_KINDS
from tensorprimat.core.steps import Steps, finite
from tensorprimat.core.terms import POWER_COLUMN, Term, combined, stated_rows, term_of
from tensorprimat.core.units import GB

COUNTED_ENERGY = "energy_joules_per_gpu"


def memory_figures(steps: Steps, measured: Steps) -> dict[str, Term]:
    """Return the average over measured rows and the peak over all rows (the first step may contain it), by kind.

    steps: the rows of the measured trainings.
    """
    found, seen = {}, steps.seen
    for kind in MEMORY_KINDS:
        names = [name for name in (f"{kind}_bytes", f"{kind}_peak_bytes") if name in seen]
        used = f"{kind}_bytes"
        if used in names and len(in_use := finite(measured.column(used))):
            mean, name = float(in_use.mean()), f"mean of {used} over the measured rows"
            put_in = f"{count(mean)} bytes / 10**9, mean of {counted(len(in_use), 'row')}"
            found[f"avg_{kind}_gb"] = term_of(mean / GB, f"{name} / 10**9", put_in, (name, mean, "bytes"))
        columns = {name: float(np.fmax.reduce(steps.column(name), initial=-np.inf)) for name in names}
        if not columns or not np.isfinite(highest := max(columns.values())):
            continue
        name = max(columns, key=columns.__getitem__)
        row = int(np.nanargmax(steps.column(name)))
        put_in, largest = f"{count(highest)} bytes / 10**9, {steps.place(row)}", f"largest of {listed(names)}"
        found[f"peak_{kind}_gb"] = term_of(highest / GB, f"{largest} / 10**9", put_in, (largest, highest, "bytes"))
    return found


ROWS_OF_POWER = {
    "avg_power_watts_per_gpu": (POWER_COLUMN,),
    "energy_joules_per_gpu": (POWER_COLUMN, COUNTED_ENERGY),
    "sampled_energy_joules_per_gpu": (POWER_COLUMN, COUNTED_ENERGY),
    "avg_clock_hertz": ("clock_hertz",),
    "avg_temperature_celsius": ("temperature_celsius",),
    "max_temperature_celsius": ("temperature_celsius",),
    "throttled_seconds": ("throttled_seconds",),
    "slowdown_seconds": ("slowdown_seconds",),
}
"""Field of PowerMetrics → the columns of steps from which it is computed."""
LEAST_KNOWN = 0.5
"""Least share of the measured time whose rows state a level (power, clock, temperature) for a mean of it: a mean over a
minority may be of an idle moment or of a peak."""
LEAST_ADDED_UP = 0.9
"""The same for energy from sampled power, which counts the other rows at the mean: if their power differs from it by a
fifth, the energy is wrong by 2 %."""


def known_share(measured: Steps, name: str) -> float:
    """Return the share of the measured time in rows that state a level; of the steps, unless all rows have times."""
    covers, seconds, levels = measured.columns("covers", "seconds", name)
    weights = seconds * covers if np.isfinite(seconds).all() else covers.astype(np.float64)
    whole = float(weights.sum())
    return float(weights[stated_rows(levels, covers)].sum()) / whole if whole else 0.0


def _level(measured: Steps, name: str) -> Term | None:
    """Return the mean of a level over the rows that state it; None if they are less than LEAST_KNOWN of the time."""
    return combined(measured, name) if measured.has(name) and known_share(measured, name) >= LEAST_KNOWN else None


def power_figures(measured: Steps) -> dict[str, Term]:
    """Return mean power and energy of a GPU over the measured rows, as far as enough rows state them.

    A mean of power, clock or temperature is that over the rows that state it. It needs LEAST_KNOWN of the measured
    time, energy from sampled power LEAST_ADDED_UP, and a sum of a counter's values every row.
    """
    if not {name for columns in ROWS_OF_POWER.values() for name in columns} & {*measured.seen}:
        return {}
    drawn = _level(measured, POWER_COLUMN)  # watts × seconds are joules: the same ratio of sums
    joules, time = _whole(measured, COUNTED_ENERGY), measured.total_seconds()
    found = {} if drawn is None else {"avg_power_watts_per_gpu": drawn}
    sampled = None
    if drawn is not None and time and known_share(measured, POWER_COLUMN) >= LEAST_ADDED_UP:
        put_in = f"{precise(drawn.value)} W × {precise(time)} s"
        of_power, of_time = ("mean power", drawn.value, "W"), ("seconds of the measured rows", time, "s")
        sampled = term_of(drawn.value * time, "mean power × seconds of the measured rows", put_in, of_power, of_time)
    if joules is not None:
        found[COUNTED_ENERGY] = _amount(measured, joules, "joules", "J")
    if sampled is not None:
        found[COUNTED_ENERGY if joules is None else "sampled_energy_joules_per_gpu"] = sampled
    if (clock := _level(measured, "clock_hertz")) is not None:
        found["avg_clock_hertz"] = clock
    if (mean := _level(measured, "temperature_celsius")) is not None:
        found["avg_temperature_celsius"] = mean
        hottest, name = float(np.nanmax(measured.column("temperature_celsius"))), "highest mean of a measured step"
        put_in, formula = f"{fixed(hottest, 1)} °C, {counted(len(measured), 'row')}", f"{name}, of the hottest GPU"
        found["max_temperature_celsius"] = term_of(hottest, formula, put_in, (name, hottest, "°C"))
    for name in ("throttled_seconds", "slowdown_seconds"):
        if (held := _whole(measured, name)) is not None:
            found[name] = _amount(measured, held, name.replace("_", " "), "s")
    return found


def _amount(measured: Steps, amount: float, of: str, unit: str) -> Term:
    """Return an amount per step, added up over the measured rows."""
    name = f"Σ {of} per step × steps covered"
    put_in = f"{precise(amount)} {unit}, {counted(len(measured), 'row')}"
    return term_of(amount, f"{name}, over the measured rows", put_in, (name, amount, unit))


def _whole(measured: Steps, name: str) -> float | None:
    """Return the sum of an amount per step over the rows; None where a row lacks it: a part is not the sum."""
    amount, covers = measured.columns(name, "covers")
    amounts = amount * covers
    return float(amounts.sum()) if len(amounts) and np.isfinite(amounts).all() else None
