"""Time between steps that no row counts: every format whose log has dates must warn, or count it.

A loader that is too slow, an evaluation, a checkpoint or a hook makes the wall time longer than the step times that a
framework prints. The dates of the rows show it.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from typing import Any

import keyvalue_rows
import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.core.errors import ContradictionError
from tensorprimat.core.user_facts import UserFacts

FACTS = UserFacts(num_gpus=8, global_batch_size=64, sequence_length=2048)
"""Facts of Job, by which every printed rate gives a time."""
SHARE = 0.3
JOB = Job(seconds=2.0, wait=SHARE * 2.0)
START = datetime(2026, 1, 5, 8, tzinfo=timezone.utc)
DATED = frozenset((*("megatron", "primus", "torchtitan", "xtuner", "olmo", "deepspeed", "mlperf", "automodel"),
                   *("nanotron", "metrics rows", "timestamps")))  # fmt: skip
"""Jobs whose logs have dates of their own."""
TABLES = frozenset(("lightning", "metrics table", "metrics rows"))
"""Jobs whose logs are files, which no launcher prints."""


def stretches(make, job, *, every=1):
    """Yield the end of each step with the lines written up to it; the last step has all remaining lines.

    every: 10 yields only the first step and every tenth one.
    """
    lines, known = make(job), {job.first - 1: 0, job.last: None}

    def until(number):
        """Return the number of lines that are written up to the end of a step."""
        if number not in known:
            same = (mine == theirs for mine, theirs in zip(lines, make(replace(job, last=number)), strict=False))
            known[number] = len(list(takewhile(bool, same)))
        return known[number]

    for place, (number, _, now) in enumerate(job.steps(), start=1):
        if place == 1 or place % every == 0:
            yield now, lines[until(number - 1) : until(number)]


def flat(groups):
    return [(now, text) for now, texts in groups for text in texts]


def by_kubernetes(lines):
    """Return lines as `kubectl logs --timestamps` prints them."""
    return "".join(f"{now:%Y-%m-%dT%H:%M:%S.%f}000Z {text}\n" for now, text in lines)


def by_absl(lines):
    """Return lines with the stamp of absl and glog, which has no year."""
    return "".join(f"I{now:%m%d %H:%M:%S.%f} 140 train.py:88] {text}\n" for now, text in lines)


Maker = Callable[[Job], list[str]]


def plain(make, job):
    return by_kubernetes(flat(stretches(make, job)))


def short(make, job):
    return plain(make, replace(job, last=6))


def sparse(make, job):
    return by_kubernetes(flat(stretches(make, replace(job, last=200), every=10)))


def resumed(make, job):
    """Return two trainings; the second repeats steps of the first."""
    again = replace(job, first=21, last=60, resumed=True, hour=job.hour + 1, seconds=1.0005 * job.seconds)
    return plain(make, job) + plain(make, again)


def without_year(make, job):
    return by_absl(flat(stretches(make, job)))


def set_back(make, job):
    """Return a log in whose middle daylight saving time ends."""
    lines = flat(stretches(make, job))
    winter = [now - timedelta(hours=place > len(lines) // 2) for place, (now, _) in enumerate(lines)]
    return by_kubernetes(zip(winter, (text for _, text in lines), strict=True))


SHAPES = (plain, short, sparse, resumed, without_year, set_back)
UNREADABLE = {("olmo", without_year)}
"""Formats and dates of a launcher that are not read together."""


def every_third(names, shapes):
    """Return every third pair of a name and a shape, so that each name has a third of the shapes."""
    return [(name, shape) for n, name in enumerate(names) for m, shape in enumerate(shapes) if (n + m) % 3 == 0]


def shown(path, *, longer=JOB.seconds + JOB.wait):
    """Return how the reader shows the time that no row counts; None where it is silent.

    longer: step time with that time in it.
    """
    try:
        result = logs.read(path, facts=FACTS)
    except ContradictionError:
        return "refused"
    mean = result.performance_metrics.avg_step_time_seconds
    if mean is not None and mean > 0.98 * longer:
        return "counted"
    said = ("audit: ", "steps: not checked against the clock")
    return next((text for text in result.warnings if text.startswith(said)), None)


def is_shown(path, make):
    """Return True if a log shows a hidden wait and tells of none where there is none. make: seconds of it → text."""
    path.write_text(make(0.0))
    silent = shown(path, longer=float("inf")) is None
    path.write_text(make(JOB.wait))
    return silent and shown(path) is not None


@in_each("name", sorted(DATED))
def test_a_log_with_dates_of_its_own_shows_what_its_rows_leave_out(tmp_path, name):
    def text(wait):
        return "\n".join(ALL_JOBS[name](replace(JOB, wait=wait))) + "\n"

    assert name == "timestamps" or is_shown(tmp_path / "a.log", text)
    (tmp_path / "a.log").write_text(text(JOB.wait))
    assert shown(tmp_path / "a.log")


@in_each("name, shape", every_third(sorted(ALL_JOBS.keys() - TABLES - {"timestamps"}), SHAPES))
def test_a_log_that_a_launcher_dated_shows_what_its_rows_leave_out(tmp_path, name, shape):
    if (name, shape) in UNREADABLE:
        pytest.skip("not read")
    assert is_shown(tmp_path / "a.log", lambda wait: shape(ALL_JOBS[name], replace(JOB, wait=wait)))


OF_DIALECTS = {
    "nanotron": 1.05, "composer": 2.0, "verl": 25.0, "slime": 30.0, "tinygrad": 4.25, "colossalai": 22.9,
    "nemo_rl": 2.0, "mlx": 0.5, "paddle": 20.48, "fairseq": 2.0, "fms_fsdp": 2.0, "neuronx": 2.0, "aws": 2.0,
    "t5x": 20.48, "levanter": 120.0, "olmo": 2.0, "maxtext": 2.0,
}  # fmt: skip
OF_DIALECTS |= {"mindformers": 1.75, "automodel": 1.0, "picotron": 524.29 / 499.32}
OF_DIALECTS |= {name: 64 * 2048 / 8 / rate for name, rate in (("lingua", 18400), ("internevo", 4096.25))}
OF_DIALECTS |= {"torchtune": 64 * 2048 / 8 / 16384.5}
"""Row of keyvalue_rows → the time of its steps with FACTS, in seconds."""
OWN_DATES = ("nanotron", "paddle", "mindformers", "automodel", "lingua", "internevo", "fairseq", "aws", "t5x")
OWN_DATES += ("levanter", "olmo")


def redated(text, now):
    """Return a row with another moment in its own date."""
    text = re.sub(r"2026-01-05(.)\d\d:\d\d:\d\d", lambda found: f"{now:%Y-%m-%d}{found[1]}{now:%H:%M:%S}", text)
    text = re.sub(r"01/16/2026 \d\d:\d\d:\d\d", f"{now:%m/%d/%Y %H:%M:%S}", text)
    text = re.sub(r"I0105 \d\d:\d\d:\d\d\.\d{6}", f"I{now:%m%d %H:%M:%S.%f}", text)
    return re.sub(r"(?<!\d)26-01-05 \d\d:\d\d:\d\d\.\d{6}", f"{now:%y-%m-%d %H:%M:%S.%f}", text)


@in_each("launched", [False, True])
@in_each("name", OF_DIALECTS)
def test_every_dialect_shows_what_its_rows_leave_out(tmp_path, name, launched):
    assert OF_DIALECTS.keys() == keyvalue_rows.ROWS.keys()
    if not launched and name not in OWN_DATES:
        pytest.skip("its rows have no dates")

    def text(wait):
        lines = []
        for number in range(1, 41):
            now = START + timedelta(seconds=number * OF_DIALECTS[name] * (1 + wait / JOB.seconds))
            lines += [(now, redated(line, now)) for line in keyvalue_rows.ROWS[name](number).split("\n")]
        return by_kubernetes(lines) if launched else "".join(line + "\n" for _, line in lines)

    path = tmp_path / "a.log"
    path.write_text(text(0.0))
    assert shown(path, longer=float("inf")) is None
    path.write_text(text(JOB.wait))
    assert shown(path, longer=float("inf"))


TOKENS = JOB.batch * JOB.length
METRICS: dict[str, Callable[[int, float], dict[str, float]]] = {
    "a time": lambda n, s: {"step_time_s": s, "train/loss": 3 - n / 100},
    "tokens/s": lambda n, s: {"tokens_per_sec": TOKENS / s, "train/loss": 3 - n / 100},
    "tokens/s/GPU": lambda n, s: {"tokens_per_sec_per_gpu": TOKENS / s / 8, "train/loss": 3 - n / 100},
    "samples/s": lambda n, s: {"samples_per_second": 64 / s, "train/loss": 3 - n / 100},
    "torchtitan": lambda _, s: {"time_metrics/end_to_end(s)": s, "throughput(tps)": TOKENS / s / 8},
    "MaxText": lambda n, s: {"perf/step_time_seconds": s, "learning/loss": 3 - n / 100},
    "Levanter": lambda _, s: {
        "throughput/duration": s,
        "throughput/loading_time": 0.001,
        "throughput/hook_time": 0.0,
        "throughput/examples_per_second": 64 / s,
        "throughput/tokens_per_second": TOKENS / s,
    },
    "Composer": lambda _, s: {"throughput/tokens_per_sec": TOKENS / s, "throughput/batches_per_sec": 1 / s},
    "XTuner": lambda _, s: {"time/step_time": s, "time/data_time": 0.0, "runtime_info/tgs": TOKENS / s / 8},
    "verl": lambda _, s: {"timing_s/step": s, "perf/throughput": TOKENS / s / 8, "perf/total_num_tokens": TOKENS},
    "Lingua": lambda n, s: {"speed/wps": TOKENS / s / 8, "loss/out": 3 - n / 100},
    "Megatron-LM": lambda n, s: {"iteration-time": s, "lm loss": 3 - n / 100},
    "NeMo": lambda n, s: {"train_step_timing in s": s, "reduced_train_loss": 3 - n / 100},
    "OLMo-core": lambda n, s: {"throughput/device/TPS": TOKENS / s / 8, "train/CE loss": 3 - n / 100},
}
"""Trainer → its metrics of a step by its number and seconds."""
Row = dict[str, Any]


def rows_of(trainer, job):
    return [{"_step": n, "_timestamp": now.timestamp(), **METRICS[trainer](n, s)} for n, s, now in job.steps()]


def as_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_csv(rows):
    return "\n".join([",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows), ""])


TABLE_SHAPES: dict[str, Callable[[Sequence[Row]], str]] = {
    "lines": as_lines,
    "csv": as_csv,
    "document": lambda rows: json.dumps(rows, indent=1),
    "dates": lambda rows: as_lines(
        [{**row, "timestamp": datetime.fromtimestamp(row["_timestamp"], timezone.utc).isoformat()} for row in rows]
    ).replace('"_timestamp"', '"other"'),
    "short": lambda rows: as_lines(rows[:6]),
}


@in_each("again", [False, True])
@in_each("trainer, shape", every_third(METRICS, TABLE_SHAPES))
def test_a_table_with_a_clock_shows_what_its_times_leave_out(tmp_path, trainer, shape, again):
    def text(wait):
        job = replace(JOB, wait=wait)
        rows = rows_of(trainer, job)
        if again:
            rows += rows_of(trainer, replace(job, first=21, last=60, hour=9, seconds=1.0005 * job.seconds))
        return TABLE_SHAPES[shape](rows)

    path = tmp_path / f"a.{'csv' if shape == 'csv' else 'json'}"
    path.write_text(text(0.0))
    told = shown(path, longer=float("inf"))
    assert told is None or not told.startswith("audit")
    path.write_text(text(JOB.wait))
    assert shown(path)


@in_each("trainer", METRICS)
def test_a_run_in_mlflows_files_shows_what_its_times_leave_out(tmp_path, trainer):
    for row in rows_of(trainer, JOB):
        for name, value in row.items():
            path = tmp_path / "metrics" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{1000 * row['_timestamp']:.0f} {value} {row['_step']}\n")
    assert shown(tmp_path)


@in_each("trainer", METRICS)
def test_tensorboards_events_show_what_their_times_leave_out(tmp_path, trainer):
    pytest.importorskip("tensorboard")
    from test_tensorboard_log import START as BEGIN
    from test_tensorboard_log import Events

    events = Events(tmp_path)
    for row in rows_of(trainer, JOB):
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        events.log(row["_step"], row["_timestamp"] - BEGIN, values)
    assert shown(events.close())
