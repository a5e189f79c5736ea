"""Read whole rounds of MLPerf Training and compare every rate with the run's own clock.

    python3 perf/mlperf_rounds.py ROUND_FOLDER …
    python3 perf/mlperf_rounds.py training_results_v5.1 --benchmarks llama2_70b_lora --show off

A folder holds SUBMITTER/results/SYSTEM/BENCHMARK/result_N.txt, as the public repositories do. The clock is read here
without the project's reader: samples over the time between block_start and block_stop, or, without such marks, over
run_start to run_stop less eval_start to eval_stop. A rate is right if it is within 1 % of that clock, explained if
`audit.explained_by` names the difference in seconds to within 1 %, else off. Exits with 1 if less than 99 % of the
complete runs are read, or if a rate is off.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tensorprimat import logs
from tensorprimat.audit.verdict import SUBTRACTED
from tensorprimat.core.errors import TensorPrimatError
from tensorprimat.core.provenance import Audit
from tensorprimat.facts import mlperf_rules
from tensorprimat.system.processes import usable_cores

BENCHMARKS = tuple(row.name for row in mlperf_rules.benchmarks())
WITHIN = 0.01
GOAL = 0.99
MARK = ":::MLLOG"
OUTCOMES = ("right", "explained", "off", "no clock", "refused", "incomplete")
_SECONDS = re.compile(r"(-?[\d,.]+(?:e[-+]?\d+)?) s\b")


@dataclass(kw_only=True)
class Own:
    """The figures that the marks of one file give by themselves."""

    started: float | None = None
    stopped: float | None = None
    evaluated: float = 0.0
    in_blocks: float = 0.0
    unopened: int = 0
    """Number of block_stop marks without a block_start before them."""
    samples: float = 0.0

    @property
    def rate(self) -> float | None:
        """Return the samples per second of training by the marks alone."""
        if not self.samples or self.started is None or self.stopped is None:
            return None
        whole = self.stopped - self.started - self.evaluated
        blocks = self.in_blocks if self.in_blocks > whole / 2 and not self.unopened else 0.0  # else marks are missing
        return self.samples / (blocks or whole)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of reading one file."""

    path: str
    outcome: str
    note: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of every round and what is not right in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="rounds, unpacked")
    parser.add_argument("--benchmarks", nargs="+", default=BENCHMARKS, help="folders of results to read")
    parser.add_argument("--show", nargs="+", default=["off", "no clock", "refused"], choices=OUTCOMES)
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="processes")
    chosen = parser.parse_args(argv)
    return max(_round(folder, chosen) for folder in chosen.folders)


def _round(folder: Path, chosen: argparse.Namespace) -> int:
    files = sorted(str(path) for path in folder.rglob("result_*.txt") if path.parent.name in chosen.benchmarks)
    with ProcessPoolExecutor(chosen.jobs) as pool:
        found = list(pool.map(judge, files, chunksize=8))
    _print_table(folder, found)
    _print_chosen(folder, [one for one in found if one.outcome in chosen.show])
    counts = Counter(one.outcome for one in found)
    complete = len(found) - counts["incomplete"]
    read = complete - counts["refused"]
    print(f"{folder.name}: {read} of {complete} complete runs read, {counts['off']} rates off\n")
    return int(not complete or read < GOAL * complete or counts["off"] > 0)


def judge(path: str) -> Outcome:
    """Read one file with the project, and its marks alone; return the outcome of the comparison."""
    own = _own_clock(path)
    if own.started is None or own.stopped is None:
        return Outcome(path=path, outcome="incomplete", note="no run_start or no run_stop")
    try:
        result = logs.read(path)
    except TensorPrimatError as error:
        return Outcome(path=path, outcome="refused", note=str(error).removeprefix(path))
    rate = result.performance_metrics.samples_per_second
    if rate is None or own.rate is None:
        return Outcome(path=path, outcome="no clock", note="the marks count no samples" if rate else "no rate")
    apart = rate / own.rate - 1
    note = f"{rate:,.4g} samples/s, by the clock {own.rate:,.4g} ({apart:+.1%})"
    if abs(apart) <= WITHIN:
        return Outcome(path=path, outcome="right", note=note)
    explained = _explained(result.audit)
    note += f"; {', '.join(result.audit.explained_by)}" if result.audit else ""
    return Outcome(path=path, outcome="explained" if explained else "off", note=note)


def _explained(audit: Audit | None) -> bool:
    """Return True if the seconds that the audit names make up its difference to within 1 % of its clock."""
    if audit is None or not audit.clock_seconds or not audit.ratio:
        return False
    named = [one for one in audit.explained_by if SUBTRACTED not in one]
    seconds = sum(float(match[1].replace(",", "")) for one in named if (match := _SECONDS.search(one)))
    difference = audit.clock_seconds - audit.clock_seconds / audit.ratio
    return bool(named) and abs(difference - seconds) <= WITHIN * audit.clock_seconds


def _own_clock(path: str) -> Own:
    own = Own()
    evaluation = block = None
    for key, time, counts in _marks(path):
        if key == "run_start" and own.started is None:
            own.started = time
        elif key == "run_stop":
            own.stopped = time
        elif key == "eval_start":
            evaluation = time
        elif key == "eval_stop" and evaluation is not None:
            own.evaluated += time - evaluation
            own.in_blocks -= time - evaluation if block is not None else 0.0
            evaluation = None
        elif key == "block_start":
            block = time
        elif key == "block_stop" and block is not None:
            own.in_blocks, block = own.in_blocks + time - block, None
        elif key == "block_stop":
            own.unopened += 1
        own.samples = max(own.samples, counts)
    return own


def _marks(path: str) -> Iterator[tuple[str, float, float]]:
    """Yield (key, seconds since the epoch, samples so far) of every mark; gpt3 counts tokens as epochs."""
    length = 0.0
    with open(path, errors="replace") as lines:
        for line in lines:
            at = line.find(MARK)
            if at < 0:
                continue
            try:
                event: dict[str, Any] = json.loads(line[at + len(MARK) :])
            except ValueError:
                continue
            key, counts = event.get("key", ""), event.get("metadata") or {}
            if key == "max_sequence_length":
                length = float(event.get("value") or 0)
            samples = counts.get("samples_count") or 0
            if not samples and length and "epoch_num" in counts:
                samples = counts["epoch_num"] / length
            counting = key in ("block_stop", "eval_start", "eval_stop", "eval_accuracy", "run_stop")
            yield key, event.get("time_ms", 0) / 1000, float(samples) if counting else 0.0


def _print_table(folder: Path, found: Sequence[Outcome]) -> None:
    by_benchmark: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        by_benchmark[Path(one.path).parent.name][one.outcome] += 1
    print(f"{folder.name:<20}{'files':>8}" + "".join(f"{outcome:>12}" for outcome in OUTCOMES))
    for benchmark, counts in sorted(by_benchmark.items()):
        print(f"{benchmark:<20}{counts.total():>8}" + "".join(f"{counts[outcome]:>12}" for outcome in OUTCOMES))


def _print_chosen(folder: Path, chosen: Sequence[Outcome]) -> None:
    by_system: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in chosen:
        by_system[str(Path(one.path).parent.relative_to(folder)), one.outcome].append(one)
    for (system, outcome), some in by_system.items():
        print(f"  {outcome}: {len(some)} of {system}: {some[0].note}")


if __name__ == "__main__":
    sys.exit(main())
