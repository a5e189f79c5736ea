"""The page that perf/calibration.py writes: docs/project/calibration.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from perf.calibration_counts import FEWEST_SPOKEN, GATE_LIMIT, Count, GateCount, OneRunCount, SteadyCount
from tensorprimat.analysis import stats


def sampling_error(count: int) -> float:
    """Return the error of a share of 95 % in `count` simulated benchmarks, as the half-width of its 95 % interval."""
    return 1.96 * math.sqrt(0.95 * 0.05 / count)


def percent(share: float) -> str:
    """Return a share for the tables."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def shares(row: object, *fields: str) -> list[str]:
    """Return shares of a row for the tables."""
    return [percent(getattr(row, field)) for field in fields]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    lines = [header, ("---", *("---:" for _ in header[1:])), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


OF_GATE = ("passed_at_limit", "failed_at_limit", "failed_equal", "passed_equal", "failed_double")
STEADY = ("within_two", "too_early", "settled", "dropped")
POWER = (1.00, 0.77, 0.26)
"""Least shares of "2 % found" in the first rows: 0.5, 1 and 2 % run to run, under 1 % step noise."""


def misses(
    compared: Sequence[Count],
    decided: Sequence[GateCount],
    single: Sequence[OneRunCount],
    steady: Sequence[SteadyCount],
    *,
    alarms: Mapping[str, float],
    slack: float,
) -> list[str]:
    """Return the targets that were missed by more than the simulation's own error, `slack`."""
    missed = []
    for row in compared:
        if row.coverage < 0.93 - slack:  # false for nan, the coverage of too few verdicts
            missed.append(f"coverage {percent(row.coverage)} at {row.name}")
        if row.false_alarms > 0.06 + slack:
            missed.append(f"false alarms {percent(row.false_alarms)} at {row.name}")
    for row, least in zip(compared, POWER, strict=False):
        if row.found < least - 0.005 - 2 * slack:  # the error of a share near 50 % is twice that near 95 %
            missed.append(f"2 % found in {percent(row.found)} at {row.name}")
    for decision in decided:
        for wrong in (decision.passed_at_limit, decision.failed_at_limit, decision.failed_equal):
            if wrong > 0.03 + slack:
                missed.append(f"a gate decides wrongly in {percent(wrong)} at {decision.name}")
    for one in single:
        if one.coverage < 0.93 - slack:  # false for nan, the coverage of runs without interval
            missed.append(f"coverage {percent(one.coverage)} at {one.rows} rows, {one.name}")
    for series in steady:
        if series.clean and series.within_two < 0.95:
            missed.append(f"{series.name}: {percent(series.within_two)} within 2 steps")
    missed += [f"{name}: {percent(share)}" for name, share in alarms.items() if share > 0.06 + slack]
    return missed


def document(
    compared: Sequence[Count],
    decided: Sequence[GateCount],
    single: Sequence[OneRunCount],
    steady: Sequence[SteadyCount],
    *,
    alternatives: Sequence[str],
    alarms: Mapping[str, float],
    count: int,
    seed: int,
) -> str:
    """Return the text of docs/project/calibration.md."""
    error = 100 * sampling_error(count)
    least, limit, fewest = f"{100 * FEWEST_SPOKEN:.0f}", f"{100 * GATE_LIMIT:.0f}", stats.FEWEST_SHOWN
    return f"""# Are the intervals right?

`python perf/calibration.py` writes this page. It simulates benchmarks whose true speed is known, sends the simulated
step times through the code that real ones go through, and counts how often the result is right. Each row has {count:,}
simulated benchmarks (seed {seed}), so a share of 95 % is itself known to ± {error:.1f} points.

Words used below:

- **Step noise**: variation from step to step within a run. **Run to run**: variation of the mean from run to run.
- **φ**: correlation of one step with the next. At φ = 0.9 a slow step is followed by slow steps for about 10 steps.
- **Coverage**: share of the 95 % intervals that contain the true value. Goal: 93 to 97 %.
- **False alarm**: two equally fast sides are called different. Goal: at most 6 %.
- **No verdict**: step time keeps drifting, so the tool names no faster side. This does not count as a false alarm.
- **2 % found**: the second side is really 2 % faster, and the tool says that it is faster.
- **Warm-up from +5 %, τ = 10 steps**: the first step takes 5 % longer, and the excess decays exponentially with the
  time constant τ. A **ramp** falls in a straight line instead.
- **Slow wander**: noise with φ = 0.9 in addition to the step noise. **Clock flips**: the run changes between two levels
  of step time, every 10 steps on average.

## Several runs against several runs

The interval of a ratio is Welch's t on the logarithms of the means of the runs. Its degrees of freedom are estimated
with less bias than by Satterthwaite's formula. Where the sides have unequal numbers of runs, the interval lies between
Welch's and Behrens and Fisher's. Coverage counts only the comparisons that get a verdict. It is left out if fewer than
{least} % of the comparisons get one. The last column is the coverage of a common method on the same runs, the
percentile bootstrap.

{
        table(
            ("both sides", "coverage", "false alarms", "no verdict", "2 % found", "bootstrap coverage"),
            (
                (row.name, *shares(row, "coverage", "false_alarms", "unsettled", "found", "bootstrap_coverage"))
                for row in compared
            ),
        )
    }

With two runs on each side the variation is hardly known, so the intervals are wide and rarely find 2 %. Where several
hosts take part, each host counts once, because runs on one host resemble each other. Where all printed times are equal,
the interval is at least as wide as their rounding requires. In the row with 2 decimals both sides print the same times,
so the interval always contains 1.

With few rows, the end of a gradual warm-up is uncertain. Of all decay times that fit about as well as the best, the
tool assumes the one with the largest remaining drift, so it often gives no verdict. If all rows together show a decay,
and more than a quarter of them are dropped as warm-up, too few rows may remain to show the rest of the decay. This
rest then counts as drift even if it is not significant in the remaining rows.

The next list states the share of the simulated reports with at least one wrong verdict. All sides are equally fast,
except in the gate. Several verdicts of one report are corrected together (Holm), and repeated readings of a report are
corrected by their number.

{chr(10).join(f"- {name}: {percent(share)}." for name, share in alarms.items())}

## The gate

The gate of this table tolerates a slowdown of {limit} %. It passes if the whole interval is within the limit, fails if
the whole interval is beyond it, and is undecided otherwise. A candidate that is slower by just the limit should rarely
get either decision: about 2.5 % pass and 2.5 % fail.

{
        table(
            (
                "both sides",
                "at the limit: passes",
                "at the limit: fails",
                "equal speed: fails",
                "equal speed: passes",
                f"{200 * GATE_LIMIT:.0f} % slower: fails",
            ),
            ((row.name, *shares(row, *OF_GATE)) for row in decided),
        )
    }

## One run, its own mean

The interval of a single run covers the noise of its steps only; another run may differ by more. Neighbouring rows are
averaged in batches, so that a run has about 22 batches or more. The interval averages Student's t over all
autocorrelations φ of the batches, each weighted by how well it fits them (`stats.of_one_run`). The tool shows no
interval in three cases: fewer than {
        fewest
    } measured rows; step time keeps drifting; or the rows detected as warm-up differ
from the measured ones by less than 10 % in step time: so small a change may come from the GPU's clock. The last three
columns are the coverage of other methods on the same rows.

{
        table(
            ("steps", "rows", "interval shown", "coverage", *alternatives),
            (
                (row.name, str(row.rows), percent(row.shown), percent(row.coverage), *map(percent, row.others))
                for row in single
            ),
        )
    }

## Where warm-up ends

`find_steady` looks for the end of warm-up in 50 rows with 1 % step noise. Goal: within 2 steps of the true end of a
ramp; without warm-up, hardly more than the first row left out; hardly ever "settled" if step time never settles.

{
        table(
            ("step times", "true end", "within 2 steps", "too early", "called settled", "rows left out"),
            ((row.name, "–" if row.truth is None else str(row.truth), *shares(row, *STEADY)) for row in steady),
        )
    }
"""
