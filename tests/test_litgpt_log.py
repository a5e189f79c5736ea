"""LitGPT's lines: a step is the sum of its iterations, or has no time."""

import math
from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError
from tensorprimat.core.result import Result

ARGUMENTS = """{'data': Alpaca2k(mask_prompt=False, num_workers=4),
 'devices': 2,
 'model_name': 'pythia-160m',
 'num_nodes': 1,
 'precision': 'bf16-true',
 'seed': 42,
 'train': TrainArgs(save_interval=1000,
                    global_batch_size=8,
                    micro_batch_size=2,
                    max_seq_length=512)}"""
TOTALS = """----------------------------------------
| Performance
| - Total tokens  : 12,288
| - Training Time : 3.00 s
| - Tok/sec       : 0.61 tok/s
| ----------------------------------------
| Memory Usage
| - Memory Used   : 12.34 GB"""


def row(iteration: int, step: int, ms: float, *, ends: bool, loss: str = "10.985") -> str:
    mark = " (step)" if ends else ""
    return (
        f"Epoch 1 | iter {iteration} step {step} | loss train: {loss}, val: n/a | iter time: {ms:.2f} ms{mark}"
        " remaining time: 0:12:01"
    )


def rows(per_step: int, steps: int, ms: float) -> list[str]:
    return [
        row(step * per_step + part, step + (part == per_step), ms, ends=part == per_step)
        for step in range(steps)
        for part in range(1, per_step + 1)
    ]


def read(folder: Path, *lines: str) -> Result:
    path = folder / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path)


def test_the_time_of_a_step_is_the_sum_over_its_iterations(tmp_path):
    result = read(tmp_path, *rows(per_step=2, steps=3, ms=250.0))
    assert [(step.index, step.seconds) for step in result.steps] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert result.provenance.format == "litgpt"


def test_without_accumulation_every_iteration_is_a_step(tmp_path):
    assert read(tmp_path, *rows(per_step=1, steps=3, ms=321.4)).raw_step_times == [0.3214] * 3


def test_where_a_step_is_one_iteration_every_printed_step_has_a_time(tmp_path):
    lines = [row(10 * n, 10 * n, 250.0 + n, ends=True) for n in range(1, 9)]
    assert read(tmp_path, *lines).raw_step_times == pytest.approx([(250.0 + n) / 1000 for n in range(1, 9)])


def test_a_pretraining_without_any_other_clock_says_that_its_waits_are_unknown(tmp_path):
    pretraining = rows(per_step=1, steps=9, ms=200.0)
    assert "wait_unknown" in [one.code for one in read(tmp_path, ARGUMENTS, *pretraining).remarks]
    finetuning = [line.partition(" remaining")[0] for line in pretraining]
    assert "wait_unknown" not in [one.code for one in read(tmp_path, ARGUMENTS, *finetuning).remarks]


def test_the_total_time_of_a_run_with_rows_between_steps_gives_a_mean(tmp_path):
    lines = [row(n, n // 16, 200.0, ends=False) for n in range(10, 3210, 10)]
    validation = "iter 1600: val loss 2.5000, val time: 40000.00 ms"
    result = read(tmp_path, ARGUMENTS, *lines, validation, "| - Training Time : 680.00 s")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(3.2)
    assert ("time_of_whole_run", 200) in [(one.code, one.values.get("steps")) for one in result.remarks]
    with pytest.raises(NotALogError, match="no step with all of its iterations"):
        read(tmp_path, ARGUMENTS, *lines[:40], "| - Training Time : 80.00 s")


def test_a_step_of_which_iterations_are_missing_has_no_time(tmp_path):
    lines = rows(per_step=2, steps=4, ms=250.0)
    del lines[2]  # the first iteration of the second step
    assert read(tmp_path, *lines).raw_step_times == [0.5, None, 0.5, 0.5]


def test_a_log_that_prints_only_the_last_iteration_of_each_step_is_refused(tmp_path):
    lines = [line for line in rows(per_step=4, steps=5, ms=250.0) if "(step)" in line]
    with pytest.raises(NotALogError, match=r"no step times found, read as litgpt: \d+ iterations were printed"):
        read(tmp_path, *lines)


def test_a_log_of_last_iterations_with_a_summary_gives_a_reported_mean(tmp_path):
    lines = [line for line in rows(per_step=4, steps=5, ms=250.0) if "(step)" in line]
    result = read(tmp_path, *lines, TOTALS)
    assert result.performance_metrics.tokens_per_second == pytest.approx(12_288 / 3.0)  # not litgpt's 0.61
    assert result.performance_metrics.basis == "reported_means"
    assert result.raw_step_times == []


def test_a_summary_of_a_log_without_its_beginning_gives_no_rate(tmp_path):
    lines = [line for line in rows(per_step=4, steps=12, ms=250.0) if "(step)" in line][6:]
    with pytest.raises(NotALogError):  # its tokens are those of all trainings, its time that of the last one
        read(tmp_path, "Resuming training from out/step-6/lit_model.pth", *lines, TOTALS)


def test_arguments_fill_the_configuration(tmp_path):
    result = read(tmp_path, ARGUMENTS, *rows(per_step=2, steps=3, ms=250.0), TOTALS)
    config = result.training_config
    assert (config.global_batch_size, config.micro_batch_size, config.sequence_length, config.num_gpus) == (
        8, 2, 512, 2,
    )  # fmt: skip
    assert (config.precision, config.seed, result.model.name) == ("bf16", 42, "pythia-160m")
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(8 * 512 / 0.5 / 2)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(12.34)


def test_samples_of_fine_tuning_differ_in_length_so_tokens_stay_unknown(tmp_path):
    longest = "The longest sequence length in the train data is 301, the model's maximum sequence length is 301"
    result = read(tmp_path, ARGUMENTS, longest, *rows(per_step=2, steps=3, ms=250.0))
    assert result.training_config.sequence_length is None
    assert result.performance_metrics.tokens_per_second is None


def test_validation_lines_are_not_steps_and_a_nan_loss_stays_nan(tmp_path):
    lines = rows(per_step=1, steps=3, ms=250.0)
    lines.insert(2, "iter 2: val loss 10.1000, val time: 33000.10 ms")
    lines[-1] = row(3, 3, 250.0, ends=True, loss="nan")
    steps = read(tmp_path, *lines).steps
    assert len(steps) == 3
    assert math.isnan(steps[2].loss)


def test_rows_that_are_printed_twice_or_by_two_ranks_count_once(read_text):
    row = "Epoch 1 | iter {0} step {0} | loss train: 9.{0}, val: n/a | iter time: 15{0}.40 ms (step)\n"
    alone = read_text("".join(row.format(n) for n in range(1, 9))).steps
    twice = read_text("".join(row.format(n) * 2 for n in range(1, 9))).steps
    ranks = read_text("".join(f"0: {row.format(n)}1: {row.format(n).replace('.40', '.90')}" for n in range(1, 9))).steps
    assert len(alone) == 8
    assert alone.column("seconds").tolist() == twice.column("seconds").tolist() == ranks.column("seconds").tolist()


@in_each(
    ("row", "ends"),
    [
        ("iter {n} step {step}: loss 3.5{n:02}, iter time: {ms}ms", " (optimizer.step)"),
        ("[rank: 0] iter {n} step {step}: iter time: {ms}ms", " (optimizer.step)"),
        (
            "Ep 1 | iter {n} | stEp {step}: loss train (curr): 1.6{n:02}, val (prev val iter): 2 | iter time: {ms} ms",
            " (opt.step)",
        ),
    ],
)
def test_rows_of_the_first_versions_are_summed_to_steps(tmp_path, row, ends):
    lines = [
        row.format(n=n, step=n // 2, ms=f"{500 + 250 * (n % 2 == 0):.2f}") + ends * (n % 2 == 0) for n in range(1, 41)
    ]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    result = logs.read(path)
    assert result.provenance.format == "litgpt"
    assert result.steps.column("index").tolist() == list(range(1, 21))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.25)
