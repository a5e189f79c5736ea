"""The settings that a framework prints before it starts training belong to that training, wherever they begin."""

import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.core.summary import pool

DUMPED_FIRST = {
    "nanotron": ["tokens=TokensArgs(sequence_length={length}, train_steps=9,", " batch_accumulation_per_replica=1,"],
    "composer": ["max_seq_len: {length}", "global_train_batch_size: 64"],
    "litgpt": ["{{'data': Alpaca(),", " 'train': TrainArgs(max_seq_length={length})}}", "Seed set to 42"],
}
"""Settings in the order in which frameworks print them: the sequence length before the line that starts training."""


@in_each("name", DUMPED_FIRST)
def test_settings_before_the_line_that_starts_training_belong_to_what_follows(tmp_path, name):
    lines: list[str] = []
    for number, (length, seconds) in enumerate(((2048, 2.0), (4096, 4.1), (2048, 2.02))):
        job = Job(length=length, seconds=seconds, last=60 if number == 1 else 40, banner=False, hour=8 + number)
        lines += [text.format(length=length) for text in DUMPED_FIRST[name]]
        lines += [line for line in ALL_JOBS[name](job) if not line.startswith("Seed")]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    results = logs.read_each(path)
    assert [result.training_config.sequence_length for result in results] == [2048, 4096, 2048]
    measured = logs.read(path)
    assert measured.training_config.sequence_length == 4096
    assert measured.performance_metrics.avg_step_time_seconds == pytest.approx(4.1, rel=0.001)


def test_every_training_of_a_table_with_one_header_is_read(tmp_path):
    rows = ["step,step_time,total_tokens"]
    for begin, tokens, seconds in ((0, 1000, 1.0), (30, 3000, 2.5), (0, 1000, 1.5)):
        rows += [f"{begin + n},{seconds + n / 1000:.4f},{tokens * (begin + n)}" for n in range(1, 31)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(rows) + "\n")
    times = [result.performance_metrics.avg_step_time_seconds for result in logs.read_each(path)]
    assert times == pytest.approx([1.016, 2.516, 1.516], rel=0.001)


def test_a_slow_row_of_a_log_that_has_only_rates_is_named(read_text):
    rows = [
        f"Step {n} | loss:1.9 lr:2e-05 tokens_per_second_per_gpu:{500.0 if n == 21 else 15000.0 + n} "
        for n in range(1, 41)
    ]
    told = {one.code: one.values for one in read_text("\n".join(rows) + "\n").remarks}["slow_rows"]
    assert (told["rows"], told["row"], told["share"]) == (1, "step 21", "0.033")


def test_a_slow_row_of_one_of_several_runs_names_the_run(read_text):
    rows = [
        f"Step {n} | loss:1.9 lr:2e-05 tokens_per_second_per_gpu:{500.0 if n == 21 else 15000.0 + n} "
        for n in range(1, 41)
    ]
    warnings = pool(
        [read_text("\n".join(rows) + "\n"), read_text("\n".join(rows).replace("500.0", "600.0") + "\n")]
    ).warnings
    slow = [warning for warning in warnings if "slow row" in warning]
    assert [warning.partition(" 1 slow row")[0] for warning in slow] == ["steps: run 1:", "steps: run 2:"]
