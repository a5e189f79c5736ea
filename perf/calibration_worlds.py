"""The worlds that perf/calibration.py simulates: step times of known truth, of several runs and of one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class World:
    """The model by which the steps of one side's runs are simulated; amounts are fractions of the level, which is 1."""

    name: str
    steps: int = 50
    runs: int = 5
    step_noise: float = 0.01
    run_cv: float = 0.005
    phi: float = 0.0
    """Lag-one autocorrelation of the step noise."""
    ramp: int = 0
    """Steps of warm-up that come before, from 50 % slower down to the level."""
    outliers: float = 0.0
    """Share of steps that take 50 % longer."""
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
    """Return the step times of `count` benchmarks, shape (count, runs, ramp + steps)."""
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
    """Return standard normal AR(1) series along the last axis."""
    noise = random.standard_normal(shape)
    for step in range(1, shape[-1]):
        noise[..., step] = phi * noise[..., step - 1] + math.sqrt(1 - phi**2) * noise[..., step]
    return noise


PLAIN = World(name="5 runs of 50 steps, 1 % step noise, 0.5 % run to run")
SCATTERED = replace(PLAIN, name="… 1 % run to run", run_cv=0.01)
MORE_SCATTERED = replace(PLAIN, name="… 2 % run to run", run_cv=0.02)
TWO_RUNS, THREE_RUNS, TEN_RUNS = (replace(PLAIN, name=f"{runs} runs", runs=runs) for runs in (2, 3, 10))
DECAY, LONG_DECAY = replace(PLAIN, decay=0.05), replace(PLAIN, decay=0.10, decay_steps=15)
SHORT = replace(PLAIN, name="… 20 steps", steps=20)
Sides = tuple[str, World, World]
"""Name, first side and second side."""


def alike(*worlds: World) -> tuple[Sides, ...]:
    """Return each world as both sides of a comparison."""
    return tuple((world.name, world, world) for world in worlds)


COMPARED: tuple[Sides, ...] = (
    *alike(
        PLAIN,
        SCATTERED,
        MORE_SCATTERED,
        replace(PLAIN, name="… steps autocorrelated, φ = 0.6", phi=0.6),
        replace(PLAIN, name="… steps autocorrelated, φ = 0.9", phi=0.9),
        replace(PLAIN, name="… slow wander of 2 % (φ = 0.9) within the runs", wander=0.02),
        replace(PLAIN, name="… clock flips of 5 % within the runs", flips=0.05),
        replace(PLAIN, name="… after a warm-up ramp of 10 steps", ramp=10),
        replace(PLAIN, name="… 5 % of the steps take 50 % longer", outliers=0.05),
        SHORT,
        TWO_RUNS,
        THREE_RUNS,
        TEN_RUNS,
        replace(PLAIN, name="3 hosts × 3 runs, hosts differ by 1 %", runs=9, hosts=3, host_cv=0.01),
        replace(
            TWO_RUNS,
            name="2 runs, equal steps of about 6 s, printed with 2 decimals",
            digits=2,
            step_noise=0,
            run_cv=3e-4,
        ),
        replace(DECAY, name="warm-up from +5 %, exponential with τ = 10 steps"),
        replace(PLAIN, name="every run drifts by 3 %, without end", drift=0.03),
    ),
    ("5 runs, 0.5 % against 2 % run to run", PLAIN, MORE_SCATTERED),
    ("2 runs against 10", TWO_RUNS, TEN_RUNS),
    ("10 runs against 2", TEN_RUNS, TWO_RUNS),
    ("3 runs against 10", THREE_RUNS, TEN_RUNS),
    ("warm-up from +5 %, τ = 10 steps, on one side", PLAIN, DECAY),
    ("warm-up from +10 %, τ = 15 steps, on one side", PLAIN, LONG_DECAY),
    ("warm-up from +5 %, τ = 10: 20 against 50 steps", replace(DECAY, steps=20), DECAY),
    ("20 steps, warm-up from +3 %, τ = 8, on one side", SHORT, replace(SHORT, decay=0.03, decay_steps=8)),
    ("50 steps, warm-up from +2 %, τ = 20, on one side", PLAIN, replace(PLAIN, decay=0.02, decay_steps=20)),
    (
        "5 warm-up steps declared, a ramp of 15 steps on one side",
        replace(PLAIN, declared=5),
        replace(PLAIN, ramp=15, declared=5),
    ),
)
GATED: tuple[Sides, ...] = (
    *alike(PLAIN, SCATTERED, MORE_SCATTERED, TWO_RUNS, TEN_RUNS),
    ("2 runs against 10", TWO_RUNS, TEN_RUNS),
    ("10 runs against 2", TEN_RUNS, TWO_RUNS),
    ("warm-up from +10 %, τ = 15 steps, of the candidate", PLAIN, LONG_DECAY),
)


@dataclass(frozen=True, kw_only=True)
class Process:
    """The step noise of one run, in units of its independent part, which is 1 % of the step time."""

    name: str
    phi: float = 0.0
    """Lag-one autocorrelation."""
    outliers: float = 0.0
    """Share of steps that take 50 % longer."""
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
    Process(name="5 % of the steps take 50 % longer", outliers=0.05),
    Process(name="slow wander (φ = 0.9) of 2 % under 1 % noise", wander=True),
    Process(name="clock flips of 5 % every 10 steps", flips=True),
)
