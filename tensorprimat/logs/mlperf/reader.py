"""MLPerf Training: `:::MLLOG {json}` lines, as every submission's result files hold them.

`tracked_stats` rows contain each submitter's own measurements, which only their keys distinguish:

- NVIDIA logs seconds of one step: `train_step_time`, in 2024 `train_step_timing in s`; a row averages the steps since
  the row before it. Its logging callback adds a row per block between two evaluations, which states the mean of the
  same steps once more (mlperf_common/callbacks/logging.py, `_log_train_step_time`): shown, never measured.
- AMD logs `throughput` in samples/s, a row per block. NVIDIA logs it in addition to step times, for gpt3 of 2024 in
  tokens/s.
- NVIDIA's callback of 2025 adds `max_memory_usage`: PyTorch's peak of allocated memory, in GiB (at first in bytes).
- `metadata` states the progress: `samples_count`, or a `step` that counts steps, samples or tokens; the clock
  decides which.
- A run without any such row is read from its block_start and block_stop (AMD's Primus, Google's MaxText).

Rows of warm-up, initialisation and validation have keys of their own and are not steps. By the rules of the rounds
warm-up ends before run_start, so every row after it counts. `events` collects the events, `rows` turns rows into steps,
`system` reads the system description of the submission.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from statistics import median
from typing import Any

from tensorprimat.core import terms
from tensorprimat.core.notices import Notice
from tensorprimat.core.steps import Step, Steps
from tensorprimat.facts import mlperf_rules
from tensorprimat.logs import repeats
from tensorprimat.logs.fields import number_in
from tensorprimat.logs.format import Reading
from tensorprimat.logs.mlperf import system as mlperf_system
from tensorprimat.logs.mlperf.events import MARK, TOKENS_KEY, Event, collect, configuration_of, events_in
from tensorprimat.logs.mlperf.rows import marks_evidence, rows_of_run
from tensorprimat.logs.mlperf.run import COUNTING, MlperfEvents
from tensorprimat.logs.text import Log

TIMED = frozenset(("run_start", "block_start", "tracked_stats", *COUNTING))
"""Events that only one rank writes, in the order of their times."""
FEWEST_STANDING = 3  # rows without progress: one or two may be logged twice
SAME_RATE = 3.0  # largest ratio of two rates of one unit (evaluation, stalls); between units it is a sequence's length


def detect(log: Log) -> int:
    return sum(1 for _, text in log.head() if MARK in text)


def read(log: Log) -> Reading:
    torn: list[int] = []
    launched = mlperf_system.LaunchLines()
    times: list[float] = []
    content = collect(_events(log, torn, launched, times))
    if repeats.goes_back(times):
        raise repeats.refusal_of_order(log.name)
    settings = content.settings
    config = configuration_of(settings)
    if isinstance(optimizer := settings.get("opt_name"), str):
        config["optimizer"] = optimizer
    if learning_rate := number_in(settings.get("opt_base_learning_rate")):
        config["learning_rate"] = learning_rate
    if any(run.started is not None for run in content.runs):
        config["warmup_steps"] = 0  # warm-up is over at run_start
    reading = Reading(training_config=config, source="MLPerf training log")
    if benchmark := _benchmark(settings):
        reading.model["name"] = benchmark
    _describe_task(reading, settings)
    mlperf_system.describe_system(reading, settings, ranks=content.ranks, path=log.path, launched=launched)
    _describe_runs(reading, content.runs)
    batch, length = config.get("global_batch_size"), config.get("sequence_length")
    for run in content.runs:
        run.batch, run.length = batch, length
    steps = [step for number, run in enumerate(content.runs) for step in rows_of_run(run, number)]
    reading.steps = Steps.of(steps)
    if any(run.tokens for run in content.runs):
        _leave_out_longest(reading, f"samples are shorter, so the tokens are those that the log counts in {TOKENS_KEY}")
    elif not mlperf_rules.states_length(benchmark):
        shorter = (
            f"samples of {benchmark} are shorter"
            if mlperf_rules.benchmark_rules(benchmark or "")
            else f"the rules of {benchmark} are not known, so samples may be shorter"
        )
        _leave_out_longest(
            reading, f"{shorter} and tokens are not counted; give --sequence-length if every sample has that length"
        )
    reading.evidence = marks_evidence(content.runs, steps)
    _report_rates(reading, content.runs, batch, length)
    if any("eval_accuracy" in run.counts and not (run.evaluations or run.rows) for run in content.runs):
        reading.warnings.append(Notice("evaluation_counts", "evaluation"))
    if standing := _without_progress(content.runs):
        reading.warnings.append(Notice("rows_standing", "steps", standing=standing))
    if torn:
        reading.warnings.append(Notice("events_cut", "events", events=len(torn), first=torn[0]))
    return reading


def _without_progress(runs: Sequence[MlperfEvents]) -> int:
    """Return the number of rows of steps whose position is not beyond that of the row before; 0 for a few of them."""
    found = 0
    for run in runs:
        rows = (row for row in run.rows if not row.of_block and row.step_seconds is not None)
        positions = [row.position for row in rows if row.position is not None]
        found += sum(after <= before for before, after in pairwise(positions))
    return found if found >= FEWEST_STANDING else 0


def _events(log: Log, torn: list[int], launched: mlperf_system.LaunchLines, times: list[float]) -> Iterator[Event]:
    """Yield every well-formed event. torn: receives the lines of others, except a last line that ends the log.

    launched: receives the facts that other lines state; times: receives the times of the events TIMED.
    """
    line = 0
    for line, origin, text in log.lines_by_rank():
        launched.take(text, origin.rank)
        for event in events_in(text, line, torn):
            if event.key in TIMED:
                times.append(event.time)
            yield event
    if torn and torn[-1] == line:
        torn.pop()


def _leave_out_longest(reading: Reading, because: str) -> None:
    """Leave out the maximum length of a sequence where samples differ in length, or may."""
    if longest := reading.training_config.pop("sequence_length", None):
        reading.warnings.append(Notice("length_is_maximum", "sequence_length", length=longest, because=because))


def _report_rates(reading: Reading, runs: Sequence[MlperfEvents], batch: int | None, length: int | None) -> None:
    """Keep a throughput that is logged in addition to step times as reported: it measures the same steps once more.

    Its unit, samples/s or tokens/s, is the one that agrees with the step times.
    """
    rows = [row for run in runs for row in run.rows]
    rates = [row.rate for row in rows if row.rate is not None]
    times = [row.step_seconds for row in rows if row.step_seconds is not None]
    if not rates or not times:
        return
    units = {"samples_per_second": batch, "tokens_per_second": batch * length if batch and length else None}
    steps_per_second = 1 / median(times)
    for name, amount in units.items():
        if amount and 1 / SAME_RATE < median(rates) / (amount * steps_per_second) < SAME_RATE:
            column = f"reported_{name}"
            rates_only = Steps.of(Step(index=0, seconds=None, **{column: rate}) for rate in rates)  # type: ignore[arg-type]
            term = terms.combined(rates_only, column)
            reading.reported[name] = None if term is None else term.value
            break
    else:
        reading.warnings.append(Notice("throughput_unclear", "throughput", rate=median(rates), step=median(times)))
    if "samples_per_second" not in reading.reported and "reported_samples_per_second" in reading.steps.seen:
        reading.steps = reading.steps.replace(reported_samples_per_second=math.nan)


def _describe_runs(reading: Reading, runs: Sequence[MlperfEvents]) -> None:
    first, last = runs[0], runs[-1]
    if first.started is not None:
        reading.timestamp = datetime.fromtimestamp(first.started, timezone.utc).isoformat(timespec="seconds")
    reading.run_facts = [_to_target(run) for run in runs]
    if len(runs) == 1 and first.started is not None and first.stopped is not None:
        reading.reported |= {"time_to_train_seconds": first.stopped - first.started, "samples_to_train": first.samples}
    statuses = {run.status for run in runs}
    if len(statuses) == 1:
        reading.reported["status"] = statuses.pop()
    if last.started is not None and last.stopped is None:
        reading.complete, reading.ended_by = False, "the log ends before run_stop"


def _to_target(run: MlperfEvents) -> dict[str, float | None]:
    """Return the time and samples to the quality target; {} for a run that did not reach it."""
    if run.status != "success" or run.started is None or run.stopped is None:
        return {}
    return {"time_to_train_seconds": run.stopped - run.started, "samples_to_train": run.samples}


def _benchmark(settings: dict[str, Any]) -> str | None:
    """Return the benchmark by its name in the rules; reference runs write gpt-oss-20b for gpt_oss_20b."""
    name = settings.get("submission_benchmark")
    if not isinstance(name, str):
        return None
    of_rules = name.replace("-", "_")
    return of_rules if mlperf_rules.benchmark_rules(of_rules) else name


def _describe_task(reading: Reading, settings: dict[str, Any]) -> None:
    """Set the benchmark, its quality target, and whether all parameters train."""
    if (name := _benchmark(settings)) is None:
        return
    rules = mlperf_rules.benchmark_rules(name)
    stated = number_in(settings.get("target_accuracy"))
    target = stated if stated is not None else rules.target if rules else None
    reading.reported |= {"benchmark": name, "quality_target": target}
    if "lora_rank" in settings or "lora" in name:
        reading.training_config["peft"] = "lora"
    elif rules and rules.peft:
        reading.training_config["peft"] = rules.peft
