"""Logs that were cut, folded or rewritten on their way: a number that the whole log lacks comes with a warning."""

import random
import sys
from pathlib import Path

import pytest

from tensorprimat import logs
from tensorprimat.core.errors import TensorPrimatError

sys.path.append(str(Path(__file__).parents[1] / "perf"))

import fault_cuts
import fuzz_readers
from each import in_each, in_some
from job_logs import Job
from table_logs import ALL_JOBS

HEADED = {
    "metrics.csv": ("epoch,train_loss,train_step_timing in s,step", "0,9.1,0.5{0},{0}0"),
    "wandb.csv": ("step,step_time,loss,tokens_per_sec", "{0},0.2{0},2.5,99{0}.25"),
    "step_time": ("", "1700000{0:03d}500 {0}.25 {0}"),
    "perf.csv": (
        "model,n_gpus,nnodes,training_precision,machine_name,gpu_architecture,status,metric,performance",
        "llama_{0},8,1,bf16,node,gfx942,SUCCESS,tokens/s/gpu,12{0}.5",
    ),
}
"""Files whose first line names the columns: the last number of a row ends the line."""
LOGS = [
    *((f"{name}-{number}.log", "\n".join(row.format(n) for n in range(1, 9)) + "\n")
      for name, rows in fuzz_readers.ROWS.items() for number, row in enumerate(rows)),
    *((name, "\n".join([*filter(None, [head]), *(row.format(n) for n in range(1, 9))]) + "\n")
      for name, (head, row) in HEADED.items()),
]  # fmt: skip
PLACES = 2  # of a last line that are tried: so many from its end, so many elsewhere
WIDTHS = 2  # of the usual ones of terminals: each log has its own two


def read(path, text):
    path.write_bytes(text.encode())
    try:
        return logs.read(path)
    except TensorPrimatError:
        return None


def wrong(path, whole, text, *, warned_is_right=True):
    """Return the first column with a number that the whole log lacks, unless a warning came with it."""
    found = read(path, text)
    if found is None or (warned_is_right and set(found.warnings) - set(whole.warnings)):
        return None
    return fault_cuts.foreign(fault_cuts.values(whole), fault_cuts.values(found))


@in_some(3, ("name", "text"), LOGS)
def test_damage_on_the_way_gives_no_number_that_the_log_lacks(tmp_path, monkeypatch, name, text):
    monkeypatch.setattr(fault_cuts, "SHARE", 0.0)
    monkeypatch.setattr(fault_cuts, "COLUMNS", [*fault_cuts.COLUMNS, "learning_rate", "gradient_norm"])
    path = tmp_path / name
    whole = read(path, text)
    if whole is None:
        return  # a row that is only part of a log
    last = len(text.rstrip("\n").rpartition("\n")[2]) + 1
    chance = random.Random(name)
    places = {*range(1, PLACES + 1), *chance.sample(range(1, last + 1), min(PLACES, last))}
    for missing in places:
        rescaled = "huggingface" in name  # steps are counted by the clock of the whole log
        assert wrong(path, whole, text[:-missing], warned_is_right=rescaled) is None, text[:-missing][-40:]
    for width in chance.sample(fault_cuts.TERMINALS, WIDTHS):
        assert wrong(path, whole, fault_cuts.folded(text, width)) is None, width
    assert wrong(path, whole, fault_cuts.with_commas(text)) is None
    of_windows = read(path, text.replace("\n", "\r\n"))
    assert fault_cuts.values(of_windows) == fault_cuts.values(whole)


def test_step_times_with_a_decimal_comma_are_not_thousands_of_seconds(tmp_path):
    row = "step:{0} - train/loss:2,5 - train/lr(1e-3):0,02 - train/time(s):1,2{0}"
    text = "\n".join(row.format(number) for number in range(10, 40)) + "\n"
    path = tmp_path / "a.log"
    path.write_text(text)
    with pytest.raises(TensorPrimatError, match="decimal commas") as caught:
        logs.read(path)
    assert "decimal points" in str(caught.value)


COLUMNS_OF_A_JOB = 3  # of some 150 that are tried


@in_some(2, "name", ALL_JOBS)
def test_a_log_of_which_every_line_is_cut_at_one_column_gives_no_number_that_it_lacks(tmp_path, name):
    chance = random.Random(name)
    lines = ALL_JOBS[name](fault_cuts.any_job(chance))
    path = tmp_path / ("a.csv" if name in fault_cuts.TABLES else "a.log")
    for width in chance.sample(range(12, max(map(len, lines))), COLUMNS_OF_A_JOB):
        cut = "\n".join(line[:width] for line in lines) + "\n"
        assert fault_cuts.silently_wrong(path, "\n".join(lines) + "\n", cut, is_job=True) is None, width


@in_each(
    ("name", "label", "cut", "column"),
    [
        ("megatron", "throughput per GPU (TFLOP/s/GPU):", "40", "reported_tflops_per_gpu"),
        ("torchtitan", "tps:", "8", "reported_tokens_per_second_per_gpu"),
        ("nanochat", "tok/sec:", "65", "reported_tokens_per_second"),
        ("composer", "device/tokens_per_sec:", "819", "reported_tokens_per_second_per_gpu"),
        ("nemo_rl", "- E2E (Tokens/sec/gpu):", "819", "reported_tokens_per_second_per_gpu"),
    ],
)
def test_a_number_of_which_the_delimiter_or_decimals_are_missing_is_not_read(tmp_path, name, label, cut, column):
    lines = ALL_JOBS[name](Job(startup=2.0))
    assert any(label in line for line in lines)
    shortened = [line[: line.index(label) + len(f"{label} {cut}")] if label in line else line for line in lines]
    found = read(tmp_path / "a.log", "\n".join(shortened) + "\n")
    assert found is None or not found.steps.has(column)
