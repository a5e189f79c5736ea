"""Calibration of the intervals: thousands of simulated benchmarks of known truth, and how often the tool is right.

    python perf/calibration.py                      writes docs/project/calibration.md (some minutes on one core)
    python perf/calibration.py --comparisons 200    a quick look, printed only

Every simulated step time goes through the code that real ones go through: find_warmup, the run means, stats.of_runs,
stats.welch_log_ratio and ratios.verdict_of for several runs, stats.half_widths_of_series for one. Exit code 0, or 1
if a target is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perf.calibration_counts import FEWEST_SPOKEN, GATE_LIMIT, Count, GateCount, SteadyCount  # noqa: E402
from perf.calibration_one_run import ALTERNATIVES, one_run  # noqa: E402
from perf.calibration_page import document, misses, percent, sampling_error  # noqa: E402
from perf.calibration_worlds import COMPARED, GATED, PROCESSES, Floats, World, autocorrelated, simulate  # noqa: E402
from tensorprimat.analysis import gate, ratios, stats  # noqa: E402  # found through the line above, from any folder
from tensorprimat.analysis.estimates import rounding_of  # noqa: E402
from tensorprimat.core.steady import find_steady  # noqa: E402
from tensorprimat.core.warmup import find_warmup  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One benchmark of one side, as the tool sees it."""

    means: list[float]
    """Mean step time of every run after warm-up."""
    drift: float
    settled: bool
    rounding: float


def measure(world: World, times: Floats) -> list[Measured]:
    """Return every benchmark of one side. times: shape (count, runs, steps)."""
    declared = None if world.declared is None else [world.declared] * world.runs
    found = []
    for benchmark in times:
        warmup = find_warmup(list(benchmark), declared)
        found.append(
            Measured(
                means=[float(run[steady.start :].mean()) for run, steady in zip(benchmark, warmup.runs, strict=True)],
                drift=warmup.drift,
                settled=warmup.settled,
                rounding=0.0 if world.digits is None else rounding_of(benchmark.ravel()),
            )
        )
    return found


def log_of(world: World, side: Measured) -> stats.LogEstimate:
    """Return the estimate of one side's step time, as a logarithm."""
    return stats.of_runs(side.means, hosts_of(world), rounding=side.rounding, drift=side.drift)


def hosts_of(world: World) -> list[int] | None:
    """Return the host of each run, where there are several."""
    return [run % world.hosts for run in range(world.runs)] if world.hosts > 1 else None


def log_ratios(
    world: World, first: Sequence[Measured], other: World, second: Sequence[Measured]
) -> Iterator[tuple[stats.LogEstimate, float]]:
    """Yield the estimate of every comparison, and the amount by which a drift that goes on may still move it."""
    for a, b in zip(first, second, strict=True):
        log = stats.welch_log_ratio(log_of(world, a), log_of(other, b))
        yield log, 0.0 if a.settled and b.settled else ratios.further_drift(log)


def log_ratio(world: World, slower: Sequence[float], faster: Sequence[float]) -> stats.LogEstimate:
    """Return the comparison's estimate for two sides' run means: the logarithm of how much faster the second is."""
    hosts = hosts_of(world)
    return stats.welch_log_ratio(stats.of_runs(list(slower), hosts), stats.of_runs(list(faster), hosts))


def compare_sides(world: World, other: World, random: np.random.Generator, count: int, *, name: str = "") -> Count:
    """Return the shares over comparisons of equal sides, and over the same with every step of the second 2 % faster."""
    first, second = measure(world, simulate(world, random, count)), measure(other, simulate(other, random, count))
    same, verdicts, planted = [], [], []
    for log, further in log_ratios(world, first, other, second):
        faster = replace(log, log=log.log + math.log(1.02))
        same.append(log.interval(0.95))
        verdicts.append(ratios.verdict_of(log, 0.95, further))
        planted.append(ratios.verdict_of(faster, 0.95, further))
    spoken = [low < 1 < high for (low, high), verdict in zip(same, verdicts, strict=True) if verdict != "unsettled"]
    return Count(
        name=name,
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
        """Return means of 299 samples with replacement from the runs of every benchmark, shape (count, 299)."""
        drawn = random.integers(0, means.shape[1], (len(means), 299, means.shape[1]))
        return np.asarray(np.take_along_axis(means[:, None, :], drawn, axis=2).mean(axis=2))

    ratios_of_means = resampled(np.array(first)) / resampled(np.array(second))
    low, high = np.quantile(ratios_of_means, (0.025, 0.975), axis=1)
    return float(np.mean((low < 1) & (high > 1)))


def comparisons(random: np.random.Generator, count: int) -> list[Count]:
    """Return the rows of the first table, one for each pair of sides."""
    return [compare_sides(first, second, random, count, name=name) for name, first, second in COMPARED]


def gate_decisions(world: World, other: World, random: np.random.Generator, count: int, *, name: str = "") -> GateCount:
    """Return the shares of a gate's decisions about candidates of known speed, on one model."""
    first, second = measure(world, simulate(world, random, count)), measure(other, simulate(other, random, count))
    decided: dict[float, list[str]] = {0.0: [], GATE_LIMIT: [], 2 * GATE_LIMIT: []}
    for log, further in log_ratios(world, first, other, second):
        for slower, decisions in decided.items():
            shifted = replace(log, log=log.log + math.log1p(-slower))
            decisions.append(gate.decide_ratio(shifted, GATE_LIMIT, level=0.95, to_fail=0.95, further=further))

    def share(slower: float, decision: str) -> float:
        return decided[slower].count(decision) / count

    return GateCount(
        name=name,
        passed_at_limit=share(GATE_LIMIT, "pass"),
        failed_at_limit=share(GATE_LIMIT, "fail"),
        failed_equal=share(0.0, "fail"),
        passed_equal=share(0.0, "pass"),
        failed_double=share(2 * GATE_LIMIT, "fail"),
    )


def gates(random: np.random.Generator, count: int) -> list[GateCount]:
    """Return every row of the gate's table."""
    return [gate_decisions(first, second, random, count, name=name) for name, first, second in GATED]


def logs_of_models(random: np.random.Generator, count: int, models: int = 6) -> Iterator[list[stats.LogEstimate]]:
    """Yield the ratio of two equal sides on each of several models, for every simulated benchmark."""
    world = World(name="models", steps=20)
    for benchmark in simulate(replace(world, runs=2 * world.runs * models), random, count).mean(axis=2):
        sides = np.split(benchmark, 2 * models)
        yield [log_ratio(world, base, other) for base, other in zip(sides[::2], sides[1::2], strict=True)]


def gate_of_models_alarms(random: np.random.Generator, count: int) -> float:
    """Return the share of cases in which a gate over several models, each slower by just the limit, fails."""
    alarms = 0
    for logs in logs_of_models(random, count):
        levels = stats.holm([log.p_value() for log in logs], 0.95)
        shifted = [replace(log, log=log.log + math.log1p(-GATE_LIMIT)) for log in logs]
        decided = [
            gate.decide_ratio(log, GATE_LIMIT, level=0.95, to_fail=level)
            for log, level in zip(shifted, levels, strict=True)
        ]
        alarms += "fail" in decided
    return alarms / count


def family_alarms(random: np.random.Generator, count: int, candidates: int = 4) -> float:
    """Return the share of cases in which one of several equal candidates differs from the baseline (Holm)."""
    world = World(name="family", steps=20)
    alarms = 0
    for benchmark in simulate(replace(world, runs=world.runs * (candidates + 1)), random, count).mean(axis=2):
        base, *others = np.split(benchmark, candidates + 1)
        alarms += _any_alarm([log_ratio(world, base, other) for other in others])
    return alarms / count


def models_alarms(random: np.random.Generator, count: int) -> float:
    """Return the share of cases in which one of several models, or their mean, differs between equal sides (Holm)."""
    return sum(_any_alarm([*logs, stats.geometric_mean(logs)]) for logs in logs_of_models(random, count)) / count


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
    """Return the share of false alarms between single runs that vary by 0.5 %, as --assume-run-cv 0.5% states."""
    world = World(name="one run", runs=1)
    first, second = (simulate(world, random, count)[:, 0, :] for _ in range(2))
    variance = np.full(count, 2 * 0.005**2)
    for side in (first, second):
        relative = side / side.mean(axis=1, keepdims=True) - 1
        variance = variance + (stats.half_widths_of_series(relative)[0] / stats.student(0.95, math.inf)) ** 2
    distance = np.abs(np.log(first.mean(axis=1) / second.mean(axis=1)))
    return float(np.mean(distance > stats.student(0.95, math.inf) * np.sqrt(variance)))


def steadiness(random: np.random.Generator, count: int, rows: int = 50) -> list[SteadyCount]:
    """Return the rows of the last table: series with a warm-up, without one, and without a steady part."""
    place = np.arange(rows)

    def ramp(length: int, height: float) -> Floats:
        return 1 + height * np.clip(1 - place / length, 0, None)

    flat = np.ones(rows)
    kinds: tuple[tuple[str, Floats, float, float, int | None], ...] = (
        ("no warm-up but the first step", flat, 0.0, 0.0, 1),
        ("no warm-up, φ = 0.6", flat, 0.6, 0.0, 1),
        ("no warm-up, 5 % of the steps take 50 % longer", flat, 0.0, 0.05, 1),
        ("ramp of 5 steps from +50 %", ramp(5, 0.5), 0.0, 0.0, 5),
        ("ramp of 10 steps from +50 %", ramp(10, 0.5), 0.0, 0.0, 10),
        ("ramp of 20 steps from +50 %", ramp(20, 0.5), 0.0, 0.0, 20),
        ("ramp of 10 steps from +200 %", ramp(10, 2.0), 0.0, 0.0, 10),
        ("ramp of 10 steps from +50 %, φ = 0.6", ramp(10, 0.5), 0.6, 0.0, 10),
        ("ramp of 10 steps from +50 %, outliers as above", ramp(10, 0.5), 0.0, 0.05, 10),
        ("10 steps at −5 % (GPU still cool, clock higher)", np.where(place < 10, 0.95, 1.0), 0.0, 0.0, 10),
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
    alarm = ", at least one false alarm"
    looks = f"One comparison, read after every run from 2 to 10 ({percent(uncorrected)} without correction){alarm}"
    assumed = "One run per side, `--assume-run-cv 0.5%`, and runs that do vary by 0.5 %, a false alarm"
    alarms = {
        f"Four candidates against one baseline{alarm}": family_alarms(random, count),
        f"Six models and their mean{alarm}": models_alarms(random, count),
        looks: corrected,
        "A gate over six models, each slower by just the limit, fails": gate_of_models_alarms(random, count),
        assumed: assumed_alarms(random, count),
    }
    rows = (compared, decided, single, steady)
    text = document(*rows, alternatives=list(ALTERNATIVES), alarms=alarms, count=count, seed=options.seed)
    print(text)
    slack = sampling_error(count)
    missed = misses(*rows, alarms=alarms, slack=slack)
    print(f"{time.monotonic() - began:.0f} s; targets missed: {'; '.join(missed) or 'none'}", file=sys.stderr)
    if count >= 2000:
        path = ROOT / "docs" / "project" / "calibration.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
