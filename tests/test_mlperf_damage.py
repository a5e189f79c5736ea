"""Damaged and hostile events in MLPerf logs: noise, cut and doubled lines, and lines of two processes."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
import scratch
from drawn import examples
from each import in_each
from hypothesis import given as property_given
from hypothesis import strategies as st
from job_logs import JOBS, Job
from mlperf_journal import Journal
from test_mlperf_log import step_times

from tensorprimat import logs
from tensorprimat.core.errors import TensorPrimatError


@in_each(
    "line",
    [
        ":::MLLOG " + '{"value":' * 10_000 + "1" + "}" * 10_000,
        ":::MLLOG " + "[" * 100_000,
        ':::MLLOG {"time_ms": 1e400, "key": "run_start"}',
        ':::MLLOG {"time_ms": 99999999999999999999, "key": "run_start", "metadata": {}}',
        ':::MLLOG {"time_ms": "soon", "key": 7, "value": {}, "metadata": []}',
        ':::MLLOG {"key": "tracked_stats", "time_ms": 1, "value": {"train_step_time": "fast"}}',
        ':::MLLOG {"key": "tracked_stats", "time_ms": 1, "value": {"train_step_time": -1, "throughput": NaN}}',
        ":::MLLOG " + json.dumps({"key": "seed", "time_ms": 5, "value": 10**4000}),
    ],
)
def test_hostile_events_are_skipped(tmp_path, line):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    journal.lines.insert(4, line)
    assert journal.read(tmp_path / "run.txt").performance_metrics.total_steps == 24


NOISE = st.sampled_from(
    [
        "", "Traceback of nothing", ":::MLLOG", ":::MLLOG {}", "0: :::MLLOG {torn", "train_step_time 0.5",
        "\x1b[31mred\x1b[0m",
    ]
)  # fmt: skip


@examples(20)
@property_given(
    noise=st.lists(st.tuples(st.integers(0, 60), NOISE), max_size=12),
    prefix=st.sampled_from(["", "0: ", "  3: ", "[default0]:", "\x1b[32m"]),
    seconds=st.floats(0.01, 100),
)
def test_noise_and_prefixes_leave_the_planted_steps(tmp_path_factory, noise, prefix, seconds):
    journal = Journal(global_batch_size=16)
    step_times(journal, seconds=seconds)
    journal.lines = [prefix + line for line in journal.lines]
    for position, text in noise:
        journal.lines.insert(position, text)
    result = journal.read(tmp_path_factory.mktemp("mlperf") / "run.txt")
    assert [step.seconds for step in result.steps if step.covers] == [seconds] * 6
    assert result.performance_metrics.total_steps == 24


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MARKS = ["run_start", "run_stop", "block_start", "eval_start", "eval_stop", "tracked_stats", "train_loss"]
KEYS = st.sampled_from([*MARKS, "global_batch_size", "max_sequence_length", "submission_platform", "seed"])
VALUES = JSON | st.dictionaries(
    st.sampled_from(["train_step_time", "throughput", "reduced_train_loss"]), JSON, max_size=3
)
METADATA = JSON | st.dictionaries(st.sampled_from(["step", "samples_count", "status", "lr"]), JSON, max_size=3)


@examples(20)
@property_given(events=st.lists(st.tuples(KEYS, JSON, VALUES, METADATA), max_size=12))
def test_nothing_but_the_tools_own_errors_escapes(events):
    documents = [
        {"key": key, "time_ms": time, "value": value, "metadata": metadata} for key, time, value, metadata in events
    ]
    text = "\n".join(":::MLLOG " + json.dumps(document) for document in documents)
    with scratch.written(text, ending=".txt") as path, suppress(TensorPrimatError):
        logs.read(path)


def test_lines_that_were_written_twice_are_not_two_ranks(tmp_path: Path) -> None:
    lines = JOBS["mlperf"](Job())
    path = tmp_path / "result_0.txt"
    path.write_text("".join(f"{line}\n{line}\n" for line in lines))
    assert logs.read(path).training_config.num_gpus is None
    ranks = [line for line in lines if '"init_start"' in line]
    at = lines.index(ranks[0])
    eight = [ranks[0].replace("1767600000000", str(1767600000000 + n)) for n in range(8)]
    path.write_text("".join(f"{line}\n{line}\n" for line in [*lines[:at], *eight, *lines[at + 1 :]]))
    assert logs.read(path).training_config.num_gpus == 8


def test_events_that_are_not_whole_are_a_warning_unless_one_ends_the_log(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    whole = journal.read(tmp_path / "a.txt")
    ends_in_one = tmp_path / "b.txt"
    ends_in_one.write_text("\n".join(journal.lines)[:-20])
    assert "events_cut" not in [one.code for one in (*whole.remarks, *logs.read(ends_in_one).remarks)]
    journal.lines[5] = journal.lines[5][:60]
    cut = journal.read(tmp_path / "c.txt")
    assert ("events_cut", {"events": 1, "first": 6}) in [(one.code, one.values) for one in cut.remarks]


def test_events_of_two_processes_on_one_line_both_count(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    times = journal.read(tmp_path / "a.txt").steps.column("seconds").tolist()
    journal.lines[5:7] = [f"0: {journal.lines[5]}1: {journal.lines[6]} done"]
    result = journal.read(tmp_path / "b.txt")
    assert result.steps.column("seconds").tolist() == times
    assert "events_cut" not in [one.code for one in result.remarks]


def test_an_event_at_the_end_of_a_very_long_line_counts(tmp_path):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    whole = journal.read(tmp_path / "a.txt")
    journal.lines[5] = "progress " * 10_000 + journal.lines[5]
    assert journal.read(tmp_path / "b.txt").steps.column("seconds").tolist() == whole.steps.column("seconds").tolist()


@pytest.mark.parametrize("name", ["samples_count", "step"])
def test_a_count_beyond_any_training_is_no_progress(tmp_path, name):
    journal = Journal(global_batch_size=16)
    step_times(journal)
    whole = journal.read(tmp_path / "a.txt").performance_metrics
    row = next(number for number, line in enumerate(journal.lines) if "train_step_time" in line)
    journal.lines[row] = re.sub(rf'"{name}": [\d.]+', f'"{name}": {10**30}', journal.lines[row])
    assert journal.read(tmp_path / "b.txt").performance_metrics.avg_step_time_seconds == whole.avg_step_time_seconds


def test_a_step_time_shorter_than_any_step_counts_no_steps(tmp_path):
    journal = Journal(global_batch_size=16)
    journal.say("run_start")
    for row in range(6):
        journal.track({"train_step_time": 1e-300 if row == 3 else 0.5}, 2.0, step=[1])
    journal.say("run_stop", None, 0.1, status="success")
    assert journal.read(tmp_path / "a.txt").performance_metrics.total_steps == 5 * 4 + 1
