"""Are the intervals right? Simulates thousands of benchmarks whose truth is known and counts how often the tool is.

    python perf/calibration.py                      writes docs/calibration.md (a minute or two)
    python perf/calibration.py --comparisons 200    a quick look, printed only

Every simulated step time goes through the code that real ones go through: find_steady, the run means, stats.of_runs and
stats.difference for several runs, stats.half_widths_of_series for one. Exit code 0, or 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tensorprimat.analysis import stats  # noqa: E402  # found through the line above, from any folder
from tensorprimat.core.steady import find_steady  # noqa: E402

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class World:
    """How the steps of one side's runs come about. Fractions of the level, which is 1."""

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
    """How much slower the last step of a run is than the first."""
    hosts: int = 1
    host_cv: float = 0.0


def simulate(world: World, random: np.random.Generator, count: int) -> Floats:
    """Step times of `count` benchmarks. shape (count, runs, ramp + steps)"""
    shape = (count, world.runs, world.ramp + world.steps)
    noise = autocorrelated(random, shape, world.phi)
    per_host = random.standard_normal((count, world.hosts))[:, np.arange(world.runs) % world.hosts]
    level = np.exp(world.run_cv * random.standard_normal(shape[:2]) + world.host_cv * per_host)
    place = np.arange(shape[2])
    curve = 1 + 0.5 * np.clip(1 - place / max(world.ramp, 1), 0, None) * (world.ramp > 0)
    curve = curve * (1 + world.drift * np.clip(place - world.ramp, 0, None) / world.steps)
    slow = 1 + 0.5 * (random.random(shape) < world.outliers)
    return np.asarray(level[..., None] * curve * slow * (1 + world.step_noise * noise))


def autocorrelated(random: np.random.Generator, shape: tuple[int, ...], phi: float) -> Floats:
    """Standard normal AR(1) series along the last axis."""
    noise = random.standard_normal(shape)
    for step in range(1, shape[-1]):
        noise[..., step] = phi * noise[..., step - 1] + math.sqrt(1 - phi**2) * noise[..., step]
    return noise


def run_means(times: Floats) -> Floats:
    """Mean step time of every run after the warm-up that find_steady finds. (count, runs, steps) → (count, runs)"""
    return np.array([[run[find_steady(run).start :].mean() for run in benchmark] for benchmark in times])


def log_ratio(world: World, slower: Floats, faster: Floats) -> stats.LogEstimate:
    """What the comparison makes of two sides' run means: the logarithm of how much faster the second is."""
    hosts = [run % world.hosts for run in range(world.runs)] if world.hosts > 1 else None
    return stats.difference(stats.of_runs(slower.tolist(), hosts), stats.of_runs(faster.tolist(), hosts))


@dataclass(frozen=True, kw_only=True)
class Count:
    """Shares of the comparisons of one world."""

    world: World
    coverage: float
    """The interval holds the true ratio."""
    false_alarms: float
    """Two equal sides are called different."""
    found: float
    """A side that is 2 % faster is called faster."""
    bootstrap_coverage: float
    """Of the percentile bootstrap over runs, which many tools use."""


def compare_sides(world: World, other: World, random: np.random.Generator, count: int) -> Count:
    """A/A comparisons, and the same with every step of the second side 2 % faster."""
    first, second = run_means(simulate(world, random, count)), run_means(simulate(other, random, count))
    same = [log_ratio(world, a, b).interval(0.95) for a, b in zip(first, second, strict=True)]
    planted = [log_ratio(world, a, b).interval(0.95) for a, b in zip(first, second / 1.02, strict=True)]
    return Count(
        world=world,
        coverage=float(np.mean([low < 1 < high for low, high in same])),
        false_alarms=float(np.mean([low > 1 or high < 1 for low, high in same])),
        found=float(np.mean([low > 1 for low, _ in planted])),
        bootstrap_coverage=bootstrap_coverage(first, second, random),
    )


def bootstrap_coverage(first: Floats, second: Floats, random: np.random.Generator, resamples: int = 999) -> float:
    """How often the percentile bootstrap interval of the ratio of means over runs holds 1."""
    held = []
    for a, b in zip(first, second, strict=True):
        drawn_a = a[random.integers(0, len(a), (resamples, len(a)))].mean(axis=1)
        drawn_b = b[random.integers(0, len(b), (resamples, len(b)))].mean(axis=1)
        low, high = np.quantile(drawn_a / drawn_b, (0.025, 0.975))
        held.append(low < 1 < high)
    return float(np.mean(held))


def comparisons(random: np.random.Generator, count: int) -> list[Count]:
    """Every world of the first table."""
    plain = World(name="5 runs of 50 steps, 1 % step noise, 0.5 % run to run")
    worlds: Iterable[tuple[World, World]] = (
        (world, world)
        for world in (
            plain,
            replace(plain, name="… steps autocorrelated, φ = 0.6", phi=0.6),
            replace(plain, name="… steps autocorrelated, φ = 0.9", phi=0.9),
            replace(plain, name="… a warm-up ramp of 10 steps before", ramp=10),
            replace(plain, name="… 5 % of the steps half as slow again", outliers=0.05),
            replace(plain, name="… 20 steps", steps=20),
            replace(plain, name="2 runs", runs=2),
            replace(plain, name="3 runs", runs=3),
            replace(plain, name="10 runs", runs=10),
            replace(plain, name="3 hosts × 3 runs, hosts differ by 1 %", runs=9, hosts=3, host_cv=0.01),
            replace(plain, name="not stationary: every run drifts by 3 %", drift=0.03),
        )
    )
    unequal = replace(plain, name="5 runs, 0.5 % against 2 % run to run")
    pairs = [*worlds, (unequal, replace(unequal, run_cv=0.02))]
    return [compare_sides(first, second, random, count) for first, second in pairs]


@dataclass(frozen=True, kw_only=True)
class OneRunCount:
    """What one run's interval of its own mean is worth."""

    rows: int
    phi: float
    outliers: float
    """Share of steps that take half as long again, at 1 % step noise."""
    effective: float
    """Independent rows that this many autocorrelated ones are worth, in truth."""
    coverage: float
    shown: float
    """Share of intervals that are not refused for too few effective rows."""
    coverage_shown: float
    others: tuple[float, ...]
    """Coverage of the alternatives, in the order of ALTERNATIVES."""


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
    "steps taken as independent": _independent,
    "10 batch means": _batch_means,
    "AR(1), φ plugged in": _plugged_in,
}


def one_run(rows: int, phi: float, random: np.random.Generator, count: int, outliers: float = 0.0) -> OneRunCount:
    """Coverage of the mean of one AR(1) series."""
    series = autocorrelated(random, (count, rows), phi) + 50 * (random.random((count, rows)) < outliers)
    half_widths, effective = stats.half_widths_of_series(series)
    error = np.abs(series.mean(axis=1) - 50 * outliers)
    held, shown = error < half_widths, effective >= stats.MINIMUM_EFFECTIVE
    lags = np.arange(1, rows)
    return OneRunCount(
        rows=rows,
        phi=phi,
        outliers=outliers,
        effective=rows / (1 + 2 * float(((1 - lags / rows) * phi**lags).sum())),
        coverage=float(held.mean()),
        shown=float(shown.mean()),
        coverage_shown=float(held[shown].mean()) if shown.any() else math.nan,
        others=tuple(float((error < half_width(series)).mean()) for half_width in ALTERNATIVES.values()),
    )


def family_alarms(random: np.random.Generator, count: int, candidates: int = 4) -> float:
    """How often any of several candidates equal to the baseline is called different, under Holm's correction."""
    world = World(name="family", steps=20)
    alarms = 0
    for benchmark in simulate(replace(world, runs=world.runs * (candidates + 1)), random, count).mean(axis=2):
        base, *others = np.split(benchmark, candidates + 1)
        logs = [log_ratio(world, base, other) for other in others]
        levels = stats.holm([log.p_value() for log in logs], 0.95)
        alarms += any(abs(log.log) > log.half_width(level) for log, level in zip(logs, levels, strict=True))
    return alarms / count


def assumed_alarms(random: np.random.Generator, count: int) -> float:
    """A/A false alarms of single runs that scatter by 0.5 % when --assume-run-cv 0.5% says so."""
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
    """What find_steady says about one kind of series."""

    name: str
    truth: int | None
    """Where warm-up really ends; None where it never does."""
    within_two: float
    too_early: float
    settled: float
    dropped: float
    """Mean share of rows left out."""
    clean: bool
    """A ramp with nothing but independent noise on it."""


def steadiness(random: np.random.Generator, count: int, rows: int = 50) -> list[SteadyCount]:
    """Every series of the third table: warm-up, none, or no rest at all."""
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
        ("never settles: 5 % drift", 1 + 0.05 * place / rows, 0.0, 0.0, None),
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


def sampling_error(count: int) -> float:
    """How far a share of 95 % is off by chance in `count` simulated benchmarks (95 % of the time)."""
    return 1.96 * math.sqrt(0.95 * 0.05 / count)


def percent(share: float) -> str:
    """A share for the tables."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [header, ("---", *("---:" for _ in header[1:])), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    single = [one_run(rows, phi, random, count) for rows in (20, 50, 100, 200) for phi in (0.0, 0.3, 0.6, 0.8)]
    single += [one_run(rows, 0.0, random, count, outliers=0.05) for rows in (50, 200)]
    steady = steadiness(random, count)
    family, assumed = family_alarms(random, count), assumed_alarms(random, count)
    text = document(compared, single, steady, family=family, assumed=assumed, count=count, seed=options.seed)
    print(text)
    slack = sampling_error(count)
    missed = misses(compared, single, steady, family=family, assumed=assumed, slack=slack)
    print(f"{time.monotonic() - began:.0f} s; targets missed: {'; '.join(missed) or 'none'}", file=sys.stderr)
    if count >= 2000:
        path = ROOT / "docs" / "calibration.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if missed else 0


def misses(
    compared: Sequence[Count],
    single: Sequence[OneRunCount],
    steady: Sequence[SteadyCount],
    *,
    family: float,
    assumed: float,
    slack: float,
) -> list[str]:
    """Targets that were missed by more than the simulation's own error, `slack`.

    Left out: two runs per side (wider than need be), a series that drifts, rows worth fewer than the tool shows an
    interval for, and outliers in one short run.
    """
    missed = []
    for row in compared:
        stationary = not row.world.drift and row.world.runs > 2
        if stationary and not 0.93 - slack <= row.coverage <= 0.97 + slack:
            missed.append(f"coverage {percent(row.coverage)} at {row.world.name}")
    if compared[0].found < 0.9:
        missed.append(f"2 % found in {percent(compared[0].found)}")
    for one in single:
        meant = one.effective >= stats.MINIMUM_EFFECTIVE and not one.outliers
        if meant and not 0.93 - slack <= one.coverage <= 0.97 + slack:
            missed.append(f"coverage {percent(one.coverage)} at {one.rows} rows, φ {one.phi}")
    for series in steady:
        if series.clean and series.within_two < 0.95:
            missed.append(f"{series.name}: {percent(series.within_two)} within 2 steps")
    for name, alarms in (("of a family", family), ("under an assumption", assumed)):
        if alarms > 0.05 + slack:
            missed.append(f"false alarms {name}: {percent(alarms)}")
    return missed


def document(
    compared: Sequence[Count],
    single: Sequence[OneRunCount],
    steady: Sequence[SteadyCount],
    *,
    family: float,
    assumed: float,
    count: int,
    seed: int,
) -> str:
    """docs/calibration.md."""
    error = 100 * sampling_error(count)
    return f"""# Are the intervals right?

Written by `python perf/calibration.py` (seed {seed}, {count:,} simulated benchmarks per row, so a coverage of 95 % is
itself known to ± {error:.1f} points). The simulated step times go through the code that real ones go through.

## Several runs against several runs

Student's t on the logarithms of run means, Welch's t for the ratio. Wanted: the 95 % interval holds the truth in 93 to
97 % of cases, equal sides are called different in about 5 %, which is the same thing seen from the other end, and 2 %
are found in at least 90 % of the first row.
The last column is what a percentile bootstrap over the same runs would have covered.

{
        table(
            ("both sides", "coverage", "A/A false alarms", "planted 2 % found", "bootstrap coverage"),
            (
                (
                    row.world.name,
                    percent(row.coverage),
                    percent(row.false_alarms),
                    percent(row.found),
                    percent(row.bootstrap_coverage),
                )
                for row in compared
            ),
        )
    }

Two runs are too few to find 2 %: Welch's interval is wide, and wider than it need be. Where hosts differ their means
are the sample, so that three hosts say less than nine runs on one would seem to. A drift that every run repeats changes
what the mean means, not whether the interval holds it; the result carries a warning that the series never settles.

Four candidates equal to one baseline, corrected together by Holm: any false alarm in {percent(family)}.
One run per side under `--assume-run-cv 0.5%`, where that is true: A/A false alarms {percent(assumed)}.

## One run, its own mean

The t interval averaged over the autocorrelations that the rows allow (stats.of_one_run). "All" counts every interval;
the tool shows only those with at least {stats.MINIMUM_EFFECTIVE:g} effective rows. Where the rows are worth fewer in
truth, the few that pass are those that look less autocorrelated than they are, and cover less: the price of judging
from the same rows. A few outliers in one short run cover less too: most runs hold fewer of them than is typical. The
last three columns (all intervals) are what was tried and not taken.

{
        table(
            ("rows", "φ", "effective", "coverage (all)", "shown", "coverage (shown)", *ALTERNATIVES),
            (
                (
                    str(row.rows),
                    f"{row.phi:g}" + (f", {percent(row.outliers)} outliers" if row.outliers else ""),
                    f"{row.effective:.0f}",
                    percent(row.coverage),
                    percent(row.shown),
                    percent(row.coverage_shown),
                    *map(percent, row.others),
                )
                for row in single
            ),
        )
    }

## Where warm-up ends

find_steady on 50 rows with 1 % noise. Wanted: within 2 steps of the truth for a clean ramp; nothing but the first row
gone where there is no warm-up; "never settles" said where it is so.

{
        table(
            ("series", "truth", "within 2 steps", "too early", "called settled", "rows dropped"),
            (
                (
                    row.name,
                    "–" if row.truth is None else str(row.truth),
                    percent(row.within_two),
                    percent(row.too_early),
                    percent(row.settled),
                    percent(row.dropped),
                )
                for row in steady
            ),
        )
    }
"""


if __name__ == "__main__":
    sys.exit(main())
