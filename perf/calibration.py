"""Are the intervals right? Simulates thousands of benchmarks whose truth is known and counts how often the tool is.

    python perf/calibration.py                      writes docs/project/calibration.md (some minutes on one core)
    python perf/calibration.py --comparisons 200    a quick look, printed only

Every simulated step time goes through the code that real ones go through: find_warmup, the run means, stats.of_runs,
stats.difference and ratios.verdict_of for several runs, stats.half_widths_of_series for one. Exit code 0, or 1 if a
target is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perf.calibration_page import FEWEST_SPOKEN, GATE_LIMIT, document, misses, percent, sampling_error  # noqa: E402
from tensorprimat.analysis import gate, ratios, stats  # noqa: E402  # found through the line above, from any folder
from tensorprimat.analysis.estimates import changed_level, rounding_deviation  # noqa: E402
from tensorprimat.core.steady import find_steady  # noqa: E402
from tensorprimat.core.warmup import find_warmup  # noqa: E402

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class World:
    """The model by which the steps of one side's runs are simulated. Fractions of the level, which is 1."""

    name: str
    steps: int = 50
    runs: int = 5
    step_noise: float = 0.01
    run_cv: float = 0.005
    phi: float = 0.0
    """Lag-one autocorrelation of the step noise."""
    ramp: int = 0
    """Steps of warm-up that come before, from half as slow again down to the level."""
    outliers: float = 0.0
    """Share of steps that take half as long again."""
    drift: float = 0.0
    """Relative slowdown of the last step of a run compared with the first."""
    hosts: int = 1
    host_cv: float = 0.0
    decay: float = 0.0
    """Relative slowdown of the first step of a warm-up that decays exponentially within `steps`."""
    decay_steps: float = 10.0
    """Its time constant."""
    wander: float = 0.0
    """Standard deviation of slow noise (φ = 0.9) under the step noise."""
    flips: float = 0.0
    """Difference between two levels that every run changes between, every 10 steps on average."""
    declared: int | None = None
    """Warm-up that the runs declare."""
    digits: int | None = None
    """Decimals to which steps of about 6 s are printed."""


def simulate(world: World, random: np.random.Generator, count: int) -> Floats:
    """Step times of `count` benchmarks. shape (count, runs, ramp + steps)"""
    shape = (count, world.runs, world.ramp + world.steps)
    noise = autocorrelated(random, shape, world.phi)
    per_host = random.standard_normal((count, world.hosts))[:, np.arange(world.runs) % world.hosts]
    level = np.exp(world.run_cv * random.standard_normal(shape[:2]) + world.host_cv * per_host)
    place = np.arange(shape[2])
    curve = 1 + 0.5 * np.clip(1 - place / max(world.ramp, 1), 0, None) * (world.ramp > 0)
    curve = curve * (1 + world.drift * np.clip(place - world.ramp, 0, None) / world.steps)
    curve = curve * (1 + world.decay * np.exp(-place / world.decay_steps))
    slow = 1 + 0.5 * (random.random(shape) < world.outliers)
    if world.wander:
        slow = slow * (1 + world.wander * autocorrelated(random, shape, 0.9))
    if world.flips:
        changes = np.cumsum(random.random(shape) < 0.1, axis=-1) + (random.random(shape[:2]) < 0.5)[..., None]
        slow = slow * (1 + world.flips * (changes % 2 - 0.5))
    times = np.asarray(level[..., None] * curve * slow * (1 + world.step_noise * noise))
    if world.digits is not None:
        seconds = 6 + np.random.default_rng(count).random((count, 1, 1))  # between two ticks, alike on both sides
        times = np.round(seconds * times, world.digits)
    return times


def autocorrelated(random: np.random.Generator, shape: tuple[int, ...], phi: float) -> Floats:
    """Return the standard normal AR(1) series along the last axis."""
    noise = random.standard_normal(shape)
    for step in range(1, shape[-1]):
        noise[..., step] = phi * noise[..., step - 1] + math.sqrt(1 - phi**2) * noise[..., step]
    return noise


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One benchmark of one side, as the tool sees it."""

    means: list[float]
    """Mean step time of every run after warm-up."""
    drift: float
    settled: bool
    resolution: float


def measure(world: World, times: Floats) -> list[Measured]:
    """Return every benchmark of one side. times: shape (count, runs, steps)"""
    declared = None if world.declared is None else [world.declared] * world.runs
    found = []
    for benchmark in times:
        warmup = find_warmup(list(benchmark), declared)
        found.append(
            Measured(
                means=[float(run[steady.start :].mean()) for run, steady in zip(benchmark, warmup.runs, strict=True)],
                drift=warmup.drift,
                settled=warmup.settled,
                resolution=0.0 if world.digits is None else rounding_deviation(benchmark.ravel()),
            )
        )
    return found


def log_of(world: World, side: Measured) -> stats.LogEstimate:
    """Estimate of one side."""
    hosts = [run % world.hosts for run in range(world.runs)] if world.hosts > 1 else None
    return stats.of_runs(side.means, hosts, resolution=side.resolution, drift=side.drift)


def log_ratio(world: World, slower: Sequence[float], faster: Sequence[float]) -> stats.LogEstimate:
    """Return the comparison's estimate for two sides' run means: the logarithm of how much faster the second is."""
    hosts = [run % world.hosts for run in range(world.runs)] if world.hosts > 1 else None
    return stats.difference(stats.of_runs(list(slower), hosts), stats.of_runs(list(faster), hosts))


@dataclass(frozen=True, kw_only=True)
class Count:
    """Shares of the comparisons of one world."""

    name: str
    stationary: bool
    """A verdict is owed: no warm-up that goes on, no drift."""
    coverage: float
    """The interval holds the true ratio, of the comparisons that have a verdict."""
    false_alarms: float
    """Two equal sides are called different, of all comparisons."""
    unsettled: float
    """No verdict is given because step time drifts."""
    found: float
    """A side that is 2 % faster is called faster."""
    bootstrap_coverage: float
    """Of the percentile bootstrap over runs, which many tools use."""


def compare_sides(
    world: World, other: World, random: np.random.Generator, count: int, *, name: str | None = None
) -> Count:
    """Return A/A comparisons, and the same with every step of the second side 2 % faster."""
    stationary = not any(side.decay or side.drift for side in (world, other))
    first, second = measure(world, simulate(world, random, count)), measure(other, simulate(other, random, count))
    same, verdicts, planted = [], [], []
    for a, b in zip(first, second, strict=True):
        log = stats.difference(log_of(world, a), log_of(other, b))
        faster = replace(log, log=log.log + math.log(1.02))
        further = 0.0 if a.settled and b.settled else ratios.further_drift(log)
        same.append(log.interval(0.95))
        verdicts.append(ratios.verdict_of(log, 0.95, further))
        planted.append(ratios.verdict_of(faster, 0.95, further))
    spoken = [low < 1 < high for (low, high), verdict in zip(same, verdicts, strict=True) if verdict != "unsettled"]
    return Count(
        name=name or world.name,
        stationary=stationary,
        coverage=float(np.mean(spoken)) if len(spoken) >= FEWEST_SPOKEN * count else math.nan,
        false_alarms=float(np.mean([verdict in ("faster", "slower") for verdict in verdicts])),
        unsettled=float(np.mean([verdict == "unsettled" for verdict in verdicts])),
        found=float(np.mean([verdict == "faster" for verdict in planted])),
        bootstrap_coverage=bootstrap_coverage([a.means for a in first], [b.means for b in second], random),
    )


def bootstrap_coverage(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], random: np.random.Generator
) -> float:
    """Return the share of cases in which the percentile bootstrap interval of the ratio of means contains 1."""

    def resampled(means: Floats) -> Floats:
        """Return means of 299 samples with replacement from the runs of every benchmark. shape (count, 299)"""
        drawn = random.integers(0, means.shape[1], (len(means), 299, means.shape[1]))
        return np.asarray(np.take_along_axis(means[:, None, :], drawn, axis=2).mean(axis=2))

    ratios_of_means = resampled(np.array(first)) / resampled(np.array(second))
    low, high = np.quantile(ratios_of_means, (0.025, 0.975), axis=1)
    return float(np.mean((low < 1) & (high > 1)))


def comparisons(random: np.random.Generator, count: int) -> list[Count]:
    """Return every world of the first table."""
    plain = World(name="5 runs of 50 steps, 1 % step noise, 0.5 % run to run")
    alike = (
        plain,
        replace(plain, name="… 1 % run to run", run_cv=0.01),
        replace(plain, name="… 2 % run to run", run_cv=0.02),
        replace(plain, name="… steps autocorrelated, φ = 0.6", phi=0.6),
        replace(plain, name="… steps autocorrelated, φ = 0.9", phi=0.9),
        replace(plain, name="… slow wander of 2 % (φ = 0.9) within the runs", wander=0.02),
        replace(plain, name="… clock flips of 5 % within the runs", flips=0.05),
        replace(plain, name="… a warm-up ramp of 10 steps before", ramp=10),
        replace(plain, name="… 5 % of the steps half as slow again", outliers=0.05),
        replace(plain, name="… 20 steps", steps=20),
        replace(plain, name="2 runs", runs=2),
        replace(plain, name="3 runs", runs=3),
        replace(plain, name="10 runs", runs=10),
        replace(plain, name="3 hosts × 3 runs, hosts differ by 1 %", runs=9, hosts=3, host_cv=0.01),
        replace(
            plain,
            name="2 runs, equal steps of about 6 s, printed with 2 decimals",
            runs=2,
            digits=2,
            step_noise=0,
            run_cv=3e-4,
        ),
        replace(plain, name="warm-up from +5 %, exponential with τ = 10 steps", decay=0.05),
        replace(plain, name="every run drifts by 3 %, without end", drift=0.03),
    )
    decay, long_decay = replace(plain, decay=0.05), replace(plain, decay=0.10, decay_steps=15)
    short = replace(plain, steps=20)
    unlike = (
        ("5 runs, 0.5 % against 2 % run to run", plain, replace(plain, run_cv=0.02)),
        ("2 runs against 10", replace(plain, runs=2), replace(plain, runs=10)),
        ("10 runs against 2", replace(plain, runs=10), replace(plain, runs=2)),
        ("3 runs against 10", replace(plain, runs=3), replace(plain, runs=10)),
        ("warm-up from +5 %, τ = 10 steps, on one side", plain, decay),
        ("warm-up from +10 %, τ = 15 steps, on one side", plain, long_decay),
        ("warm-up from +5 %, τ = 10: 20 against 50 steps", replace(decay, steps=20), decay),
        ("20 steps, warm-up from +3 %, τ = 8, on one side", short, replace(short, decay=0.03, decay_steps=8)),
        ("50 steps, warm-up from +2 %, τ = 20, on one side", plain, replace(plain, decay=0.02, decay_steps=20)),
        (
            "5 warm-up steps declared, a ramp of 15 steps on one side",
            replace(plain, declared=5),
            replace(plain, ramp=15, declared=5),
        ),
    )
    found = [compare_sides(world, world, random, count) for world in alike]
    return found + [compare_sides(first, second, random, count, name=name) for name, first, second in unlike]


@dataclass(frozen=True, kw_only=True)
class GateCount:
    """Shares of the decisions of a gate that tolerates a slowdown of 3 %."""

    name: str
    passed_at_limit: float
    """The candidate is slower by just the limit, and passes."""
    failed_at_limit: float
    """The candidate is slower by just the limit, and fails."""
    failed_equal: float
    """The candidate is as fast as the baseline, and fails."""
    passed_equal: float
    failed_double: float
    """The candidate is slower by twice the limit, and fails."""


def gate_decisions(
    world: World, other: World, random: np.random.Generator, count: int, *, name: str | None = None
) -> GateCount:
    """Return how a gate decides about candidates of known speed, of one model."""
    first, second = measure(world, simulate(world, random, count)), measure(other, simulate(other, random, count))
    decided: dict[float, list[str]] = {0.0: [], GATE_LIMIT: [], 2 * GATE_LIMIT: []}
    for a, b in zip(first, second, strict=True):
        log = stats.difference(log_of(world, a), log_of(other, b))
        further = 0.0 if a.settled and b.settled else ratios.further_drift(log)
        for slower, decisions in decided.items():
            shifted = replace(log, log=log.log + math.log1p(-slower))
            decisions.append(gate.decide(shifted, GATE_LIMIT, level=0.95, to_fail=0.95, further=further))

    def share(slower: float, decision: str) -> float:
        return decided[slower].count(decision) / count

    return GateCount(
        name=name or world.name,
        passed_at_limit=share(GATE_LIMIT, "pass"),
        failed_at_limit=share(GATE_LIMIT, "fail"),
        failed_equal=share(0.0, "fail"),
        passed_equal=share(0.0, "pass"),
        failed_double=share(2 * GATE_LIMIT, "fail"),
    )


def gates(random: np.random.Generator, count: int) -> list[GateCount]:
    """Return every row of the gate's table."""
    plain = World(name="5 runs of 50 steps, 1 % step noise, 0.5 % run to run")
    alike = (
        plain,
        replace(plain, name="… 1 % run to run", run_cv=0.01),
        replace(plain, name="… 2 % run to run", run_cv=0.02),
        replace(plain, name="2 runs", runs=2),
        replace(plain, name="10 runs", runs=10),
    )
    unlike = (
        ("2 runs against 10", replace(plain, runs=2), replace(plain, runs=10)),
        ("10 runs against 2", replace(plain, runs=10), replace(plain, runs=2)),
        ("warm-up from +10 %, τ = 15 steps, of the candidate", plain, replace(plain, decay=0.10, decay_steps=15)),
    )
    found = [gate_decisions(world, world, random, count) for world in alike]
    return found + [gate_decisions(first, second, random, count, name=name) for name, first, second in unlike]


def gate_of_models_alarms(random: np.random.Generator, count: int, models: int = 6) -> float:
    """Return the share of cases in which a gate over several models, each slower by just the limit, fails."""
    world = World(name="models", steps=20)
    alarms = 0
    for benchmark in simulate(replace(world, runs=2 * world.runs * models), random, count).mean(axis=2):
        sides = np.split(benchmark, 2 * models)
        logs = [log_ratio(world, base, other) for base, other in zip(sides[::2], sides[1::2], strict=True)]
        levels = stats.holm([log.p_value() for log in logs], 0.95)
        alarms += any(
            gate.decide(replace(log, log=log.log + math.log1p(-GATE_LIMIT)), GATE_LIMIT, level=0.95, to_fail=level)
            == "fail"
            for log, level in zip(logs, levels, strict=True)
        )
    return alarms / count


@dataclass(frozen=True, kw_only=True)
class OneRunCount:
    """The quality of one run's interval of its own mean."""

    name: str
    rows: int
    shown: float
    """Share of the runs for which the tool shows an interval."""
    coverage: float
    """The interval holds the true mean, of the runs that have one; nan where hardly any has."""
    others: tuple[float, ...]
    """Coverage of the alternatives over the same rows, in the order of ALTERNATIVES."""


def _independent(series: Floats) -> Floats:
    return np.asarray(stdtrit(series.shape[1] - 1, 0.975) * series.std(axis=1, ddof=1) / math.sqrt(series.shape[1]))


def _batch_means(series: Floats, batches: int = 10) -> Floats:
    whole = series.shape[1] // batches * batches
    return _independent(series[:, :whole].reshape(len(series), batches, -1).mean(axis=2))


def _plugged_in(series: Floats) -> Floats:
    """AR(1) with one bias-corrected estimate of φ, and as many degrees of freedom as effective rows."""
    rows = series.shape[1]
    x = series - series.mean(axis=1, keepdims=True)
    phi = (x[:, 1:] * x[:, :-1]).sum(axis=1) / (x * x).sum(axis=1)
    phi = np.clip(phi + (1 + 4 * phi) / rows, 0, 0.95)
    inflation = (1 + phi) / (1 - phi)
    degrees = np.maximum(rows / inflation - 1, 1)
    return np.asarray(stdtrit(degrees, 0.975) * series.std(axis=1, ddof=1) * np.sqrt(inflation / rows))


ALTERNATIVES: dict[str, Callable[[Floats], Floats]] = {
    "independent steps": _independent,
    "10 batch means": _batch_means,
    "AR(1), one φ": _plugged_in,
}


@dataclass(frozen=True, kw_only=True)
class Process:
    """The step noise of one run, in units of its independent part, which is 1 % of the step time."""

    name: str
    phi: float = 0.0
    """Lag-one autocorrelation."""
    outliers: float = 0.0
    """Share of steps that take half as long again."""
    wander: bool = False
    """Slow noise (φ = 0.9), twice as large as independent noise on top of it."""
    flips: bool = False
    """Two levels, 5 % apart, that the run changes between every 10 rows on average."""

    def draw(self, random: np.random.Generator, shape: tuple[int, int]) -> Floats:
        """Return step times around a true mean of 1. shape: (runs, rows)"""
        series = autocorrelated(random, shape, 0.9 if self.wander else self.phi)
        if self.wander:
            series = 2 * series + random.standard_normal(shape)
        if self.flips:
            changes = np.cumsum(random.random(shape) < 0.1, axis=-1) + (random.random((shape[0], 1)) < 0.5)
            series = series + 5 * (changes % 2 - 0.5)
        series = series + 50 * (random.random(shape) < self.outliers)
        return np.asarray((1 + 0.01 * series) / (1 + 0.5 * self.outliers))


PROCESSES = (
    Process(name="independent steps"),
    Process(name="autocorrelated, φ = 0.3", phi=0.3),
    Process(name="autocorrelated, φ = 0.6", phi=0.6),
    Process(name="autocorrelated, φ = 0.8", phi=0.8),
    Process(name="autocorrelated, φ = 0.9", phi=0.9),
    Process(name="5 % of the steps half as slow again", outliers=0.05),
    Process(name="slow wander (φ = 0.9) of 2 % under 1 % noise", wander=True),
    Process(name="clock flips of 5 % every 10 steps", flips=True),
)


def one_run(process: Process, rows: int, random: np.random.Generator, count: int) -> OneRunCount:
    """Return how often the interval of single runs holds their true mean, by the way that a real run takes."""
    of_length: dict[int, list[Floats]] = {}
    carried: dict[int, list[float]] = {}
    for run in process.draw(random, (count, rows)):
        warmup = find_warmup([run])
        start = warmup.runs[0].start
        if rows - start >= stats.FEWEST_SHOWN and warmup.settled and not changed_level(run, start):
            of_length.setdefault(rows - start, []).append(run[start:])
            carried.setdefault(rows - start, []).append(warmup.drift)
    held: list[Floats] = []
    for length, runs in of_length.items():
        series = np.array(runs)
        means = series.mean(axis=1)
        relative = series / means[:, None] - 1
        drift = stats.student(0.95, math.inf) * np.array(carried[length])
        half_widths = np.hypot(stats.half_widths_of_series(relative)[0], drift)
        tried = (half_width(relative) for half_width in ALTERNATIVES.values())
        held.append(np.array([np.abs(np.log(means)) < half for half in (half_widths, *tried)], np.float64))
    every = np.concatenate(held, axis=1) if held else np.empty((1 + len(ALTERNATIVES), 0))
    shown = every.shape[1] / count
    known = every.mean(axis=1) if shown >= FEWEST_SPOKEN else np.full(1 + len(ALTERNATIVES), np.nan)
    return OneRunCount(
        name=process.name, rows=rows, shown=shown, coverage=float(known[0]), others=tuple(map(float, known[1:]))
    )


def family_alarms(random: np.random.Generator, count: int, candidates: int = 4) -> float:
    """Return the share of cases in which one of several equal candidates differs from the baseline (Holm)."""
    world = World(name="family", steps=20)
    alarms = 0
    for benchmark in simulate(replace(world, runs=world.runs * (candidates + 1)), random, count).mean(axis=2):
        base, *others = np.split(benchmark, candidates + 1)
        alarms += _any_alarm([log_ratio(world, base, other) for other in others])
    return alarms / count


def models_alarms(random: np.random.Generator, count: int, models: int = 6) -> float:
    """Return the share of cases in which one of several models, or their mean, differs between equal sides (Holm)."""
    world = World(name="models", steps=20)
    alarms = 0
    for benchmark in simulate(replace(world, runs=2 * world.runs * models), random, count).mean(axis=2):
        sides = np.split(benchmark, 2 * models)
        logs = [log_ratio(world, base, other) for base, other in zip(sides[::2], sides[1::2], strict=True)]
        alarms += _any_alarm([*logs, stats.geometric_mean(logs)])
    return alarms / count


def _any_alarm(logs: Sequence[stats.LogEstimate]) -> bool:
    levels = stats.holm([log.p_value() for log in logs], 0.95)
    return any(abs(log.log) > log.half_width(level) for log, level in zip(logs, levels, strict=True))


def looking_alarms(random: np.random.Generator, count: int, first: int = 2, last: int = 10) -> tuple[float, float]:
    """Return the share of equal sides that ever differ if examined after every run: corrected, and uncorrected."""
    world = World(name="looks", steps=20, runs=last)
    ours, theirs = (simulate(world, random, count).mean(axis=2) for _ in range(2))
    corrected, plain = 0, 0
    for a, b in zip(ours, theirs, strict=True):
        p_values = [log_ratio(world, a[:runs], b[:runs]).p_value() for runs in range(first, last + 1)]
        plain += min(p_values) < 0.05
        corrected += any(p < 1 - stats.level_of_look(0.95, look) for look, p in enumerate(p_values, start=1))
    return corrected / count, plain / count


def assumed_alarms(random: np.random.Generator, count: int) -> float:
    """Return A/A false alarms of single runs that scatter by 0.5 % when --assume-run-cv 0.5% says so."""
    world = World(name="one run", runs=1)
    first, second = (simulate(world, random, count)[:, 0, :] for _ in range(2))
    variance = np.full(count, 2 * 0.005**2)
    for side in (first, second):
        relative = side / side.mean(axis=1, keepdims=True) - 1
        variance = variance + (stats.half_widths_of_series(relative)[0] / stats.student(0.95, math.inf)) ** 2
    distance = np.abs(np.log(first.mean(axis=1) / second.mean(axis=1)))
    return float(np.mean(distance > stats.student(0.95, math.inf) * np.sqrt(variance)))


@dataclass(frozen=True, kw_only=True)
class SteadyCount:
    """The results of find_steady on one kind of series."""

    name: str
    truth: int | None
    """True end of the warm-up; None if there is none."""
    within_two: float
    too_early: float
    settled: float
    dropped: float
    """Mean share of rows left out."""
    clean: bool
    """A ramp with nothing but independent noise on it."""


def steadiness(random: np.random.Generator, count: int, rows: int = 50) -> list[SteadyCount]:
    """Return every series of the third table: warm-up, none, or no rest at all."""
    place = np.arange(rows)

    def ramp(length: int, height: float) -> Floats:
        return 1 + height * np.clip(1 - place / length, 0, None)

    flat = np.ones(rows)
    kinds: tuple[tuple[str, Floats, float, float, int | None], ...] = (
        ("no warm-up but the first step", flat, 0.0, 0.0, 1),
        ("no warm-up, φ = 0.6", flat, 0.6, 0.0, 1),
        ("no warm-up, 5 % of the steps half as slow again", flat, 0.0, 0.05, 1),
        ("ramp of 5 steps from +50 %", ramp(5, 0.5), 0.0, 0.0, 5),
        ("ramp of 10 steps from +50 %", ramp(10, 0.5), 0.0, 0.0, 10),
        ("ramp of 20 steps from +50 %", ramp(20, 0.5), 0.0, 0.0, 20),
        ("ramp of 10 steps from +200 %", ramp(10, 2.0), 0.0, 0.0, 10),
        ("ramp of 10 steps from +50 %, φ = 0.6", ramp(10, 0.5), 0.6, 0.0, 10),
        ("ramp of 10 steps from +50 %, outliers as above", ramp(10, 0.5), 0.0, 0.05, 10),
        ("10 steps at −5 % (clocks still cool)", np.where(place < 10, 0.95, 1.0), 0.0, 0.0, 10),
        ("never settles: drifts by 5 %", 1 + 0.05 * place / rows, 0.0, 0.0, None),
        ("never settles: +5 % after 70 % of the steps", np.where(place < 0.7 * rows, 1.0, 1.05), 0.0, 0.0, None),
    )
    counts = []
    for name, curve, phi, outliers, truth in kinds:
        slow = 1 + 0.5 * (random.random((count, rows)) < outliers)
        found = [find_steady(row) for row in curve * slow * (1 + 0.01 * autocorrelated(random, (count, rows), phi))]
        starts = np.array([steady.start for steady in found])
        near = np.nan if truth is None else np.mean(np.abs(starts - truth) <= 2)
        counts.append(
            SteadyCount(
                name=name,
                truth=truth,
                within_two=float(near),
                too_early=float(np.nan if truth is None else np.mean(starts < truth - 2)),
                settled=float(np.mean([steady.settled for steady in found])),
                dropped=float(starts.mean()) / rows,
                clean=truth is not None and truth > 1 and not phi and not outliers,
            )
        )
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print, and write the document unless this is a quick look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--comparisons", type=int, default=2000, help="per setting (default 2000); fewer are only printed"
    )
    parser.add_argument("--seed", type=int, default=20260105)
    options = parser.parse_args(argv)
    random, count = np.random.default_rng(options.seed), options.comparisons
    began = time.monotonic()
    compared = comparisons(random, count)
    single = [one_run(process, rows, random, count) for rows in (50, 100, 200) for process in PROCESSES]
    decided = gates(random, count)
    steady = steadiness(random, count)
    corrected, uncorrected = looking_alarms(random, count)
    alarm = ": comparisons with a false alarm"
    looks = f"Read again after every run from 2 to 10 ({percent(uncorrected)} without correction){alarm}"
    alarms = {
        f"Four candidates against one baseline, corrected together (Holm){alarm}": family_alarms(random, count),
        f"Six models and their mean, corrected together (Holm){alarm}": models_alarms(random, count),
        looks: corrected,
        "A gate over six models, each slower by just the limit, corrected together (Holm): gates that fail": (
            gate_of_models_alarms(random, count)
        ),
        "One run per side with `--assume-run-cv 0.5%`, where that is true: false alarms": assumed_alarms(random, count),
    }
    text = document(
        compared,
        decided,
        single,
        steady,
        alternatives=list(ALTERNATIVES),
        alarms=alarms,
        count=count,
        seed=options.seed,
    )
    print(text)
    slack = sampling_error(count)
    missed = misses(compared, decided, single, steady, alarms=alarms, slack=slack)
    print(f"{time.monotonic() - began:.0f} s; targets missed: {'; '.join(missed) or 'none'}", file=sys.stderr)
    if count >= 2000:
        path = ROOT / "docs" / "project" / "calibration.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
