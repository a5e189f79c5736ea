"""`tprimat gate`: exit 0 within, 1 beyond, 3 undecided, 2 where it cannot be judged."""

import numpy as np
import pytest
from plausible import result

from tensorprimat.cli import main
from tensorprimat.core.result import Reported
from tensorprimat.core.summary import summarise
from tensorprimat.storage.store import to_json


@pytest.fixture
def gate(tmp_path, capsys):
    """Run the command on two results (or lists of them); returns exit code, Markdown and what stderr says."""

    def run(base, candidate, *flags):
        arguments = []
        for side, results in (("baseline", base), ("candidate", candidate)):
            for number, one in enumerate(results if isinstance(results, list) else [results]):
                path = tmp_path / f"{side}_{number}.json"
                path.write_text(to_json(one))
                arguments += [f"--{side}", str(path)]
        code = main(["gate", *arguments, *flags])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def h100(**options):
    return result("h100", **{"runs": 5, **options})


@pytest.mark.parametrize(
    ("seconds", "flags", "code"),
    [(12.8, (), 0), (10.0, (), 0), (12.8 * 1.02, (), 0), (12.8 * 1.02, ("--max-slowdown", "1%"), 1)],
)
def test_a_gain_and_a_slowdown_within_the_limit_pass_the_gate(gate, seconds, flags, code):
    found, markdown, _ = gate(h100(), h100(seed=1, seconds=seconds), *flags)
    assert found == code
    assert markdown.startswith(f"### Benchmark gate {'failed' if code else 'passed'}")
    assert "| llama | throughput" in markdown


def test_a_gate_of_a_run_with_itself_says_so(gate):
    _, markdown, _ = gate(h100(), h100())
    assert "- candidate and baseline: the same run is on both sides" in markdown
    _, markdown, _ = gate(h100(), h100(seed=1))
    assert "the same run" not in markdown


def test_a_slowdown_beyond_the_limit_fails_the_gate(gate):
    code, markdown, _ = gate(h100(), h100(seed=1, seconds=12.8 * 1.06))
    assert code == 1
    assert "Benchmark gate failed" in markdown
    assert "−5." in markdown


def test_noise_around_the_limit_is_undecided_with_the_number_of_runs_that_would_decide(gate):
    code, markdown, _ = gate(h100(runs=2, run_noise=0.02), h100(runs=2, run_noise=0.02, seed=1, seconds=12.8 * 1.02))
    assert code == 3
    assert "Benchmark gate undecided" in markdown
    assert "runs on each side would decide" in markdown


def test_single_runs_are_undecided_unless_a_scatter_is_assumed(gate):
    code, markdown, _ = gate(h100(runs=1), h100(runs=1, seed=1, seconds=14.5))
    assert code == 3
    assert "each side needs at least 2 runs" in markdown
    row = next(line for line in markdown.splitlines() if "throughput (tokens/s/GPU)" in line).split(" | ")
    assert all(figure.replace(",", "").isdecimal() for figure in row[3:5])
    code, markdown, _ = gate(h100(runs=1), h100(runs=1, seed=1, seconds=14.5), "--assume-run-cv", "2%")
    assert code == 1
    assert "assumed: single runs vary by 2 %" in markdown


def test_a_gate_at_a_confidence_that_two_runs_cannot_reach_is_undecided(gate):
    sides = (h100(runs=2, run_noise=0.1), h100(runs=2, run_noise=0.1, seed=1))
    code, markdown, _ = gate(*sides, "--confidence", "99.9999999%")
    assert code == 3
    assert "−100.00 % to +3.77e+262 %" in markdown


def test_different_work_is_refused_with_exit_code_2(gate):
    code, markdown, error = gate(h100(), h100(sequence_length=2048))
    assert (code, markdown) == (2, "")
    assert "sequence length 8192 against 2048" in error
    assert "Traceback" not in error


def test_another_precision_is_named_and_the_gate_still_decides(gate):
    code, markdown, _ = gate(h100(), h100(seed=1, precision="fp8", seconds=9.0))
    assert code == 0
    assert "precision BF16 against FP8" in markdown


def test_a_memory_increase_beyond_its_limit_fails_the_gate_although_speed_passes(gate):
    more = h100(seed=1)
    column = more.steps.column("memory_allocated_bytes") * 1.1
    from tensorprimat.core.summary import summarise

    more = summarise(more.model_copy(update={"steps": more.steps.replace(memory_allocated_bytes=column)}))
    assert gate(h100(), more)[0] == 0
    assert gate(h100(), more, "--max-memory-increase", "20%")[0] == 0
    code, markdown, _ = gate(h100(), more, "--max-memory-increase", "5%")
    assert code == 1
    assert "| llama | peak memory allocated | fail |" in markdown


def test_memory_of_one_run_does_not_claim_an_interval(gate):
    _, markdown, _ = gate(h100(), h100(seed=1), "--max-memory-increase", "5%")
    assert "the whole interval is within the limit" in markdown.partition("peak memory allocated")[2]
    _, markdown, _ = gate(h100(runs=1), h100(runs=1, seed=1), "--max-memory-increase", "5%")
    row = markdown.partition("peak memory allocated")[2]
    assert "without an interval because a side has the peak of one run only" in row
    assert "the whole interval" not in row


def test_a_run_without_a_peak_is_counted_where_the_gate_judges_memory(gate):
    without = h100(runs=1, seed=2)
    without = summarise(
        without.changed(steps=without.steps.replace(memory_allocated_bytes=np.nan), memory_metrics=None)
    )
    sides = [h100(runs=1), without], [h100(runs=1, seed=3), h100(runs=1, seed=4)]
    _, markdown, _ = gate(*sides, "--max-memory-increase", "5%")
    row = markdown.partition("peak memory allocated")[2]
    assert "because a side has the peak of one run only; 1 run without a peak left out" in row


def test_kinds_of_memory_are_never_mixed(gate):
    from tensorprimat.core.result import TrainingConfig

    other = result("mi300x", runs=5, seed=1)
    config: TrainingConfig = other.training_config
    code, markdown, _ = gate(
        h100(), other.model_copy(update={"training_config": config}), "--max-memory-increase", "50%"
    )
    assert code == 3
    assert "the sides have no device memory figure of the same kind" in markdown


def test_a_loss_gap_beyond_its_limit_fails_the_gate_although_speed_passes(gate):
    steps = h100(seed=1).steps
    same = h100()
    worse = same.model_copy(update={"steps": steps.replace(loss=same.steps.column("loss") + 1.0)})
    assert gate(same, h100(seconds=12.7), "--max-loss-gap", "1%")[0] == 0
    code, markdown, _ = gate(same, worse, "--max-loss-gap", "1%")
    assert code == 1
    assert "Loss curves differ from step" in markdown


@pytest.mark.parametrize(("missed", "code"), [((), 0), ((1,), 3), ((1, 2), 3)])
def test_a_candidate_that_misses_its_quality_target_more_often_never_passes(gate, missed, code):
    sides = [h100(), h100(seed=1)]
    for number, one in enumerate(sides):
        reported = Reported(benchmark="llama31_8b", quality_target=3.3)
        metrics = one.performance_metrics.model_copy(update={"reported": reported})
        runs = tuple(
            run.model_copy(
                update={"time_to_train_seconds": None if number and run.index in missed else 5400.0 + run.index}
            )
            for run in one.runs
        )
        sides[number] = one.model_copy(update={"performance_metrics": metrics, "runs": runs})
    found, markdown, _ = gate(*sides, "--accept", "same_task")
    assert found == code
    sentence = f"{len(missed)} of 5 runs of the candidate did not reach the quality target"
    assert (sentence in markdown) == bool(missed)


def test_the_worst_model_decides(gate):
    base = [h100(model="llama"), h100(model="qwen")]
    mixed = [h100(model="llama", seed=1), h100(model="qwen", seed=2, seconds=15.0)]
    code, markdown, _ = gate(base, mixed)
    assert code == 1
    assert "| llama | throughput (tokens/s/GPU) | pass |" in markdown
    assert "| qwen | throughput (tokens/s/GPU) | fail |" in markdown


def test_a_model_that_the_candidate_lacks_is_an_error(gate):
    code, _, error = gate([h100(model="llama"), h100(model="qwen")], h100(model="llama", seed=1))
    assert code == 2
    assert "qwen" in error


def test_several_configurations_on_one_side_are_an_error(gate):
    code, _, error = gate([h100(), h100(precision="fp8", seed=4)], h100(seed=1))
    assert code == 2
    assert "--baseline: 2 configurations of llama" in error


@pytest.mark.parametrize(
    "flags", [["--max-slowdown", "150%"], ["--max-slowdown", "lots"], ["--confidence", "100%"], ["--no-such-flag"]]
)
def test_a_wrong_flag_is_named(gate, flags):
    code, _, error = gate(h100(), h100(seed=1), *flags)
    assert code == 2
    assert flags[0] in error


def test_text_from_files_is_harmless_in_the_comment(gate):
    hostile = {"device_name": "<img src=x onerror=alert(1)> | @all"}
    code, markdown, _ = gate(h100(**hostile), h100(seed=1, model="llama", **hostile))
    assert code == 0
    assert "<img" not in markdown


def test_a_gate_passes_on_less_than_the_same_work_only_if_accepted(gate):
    code, _, error = gate(h100(), h100(seed=1, global_batch_size=256, seconds=25.4))
    assert code == 2
    assert "--accept same_work_per_token" in error
    assert gate(h100(), h100(seed=1, global_batch_size=256, seconds=25.4), "--accept", "same-work-per-token")[0] == 0
    assert gate(h100(), h100(seed=1), "--accept", "anything")[0] == 2


def test_a_gate_passes_on_a_model_shape_that_a_side_does_not_state_only_if_accepted(gate):
    silent = h100(seed=1)
    silent = silent.model_copy(update={"model": silent.model.model_copy(update={"shape": None, "preset": None})})
    code, markdown, _ = gate(h100(), silent)
    assert code == 3
    assert "the model shape may differ; give --shape, or use --accept same_work" in markdown
    assert gate(h100(), silent, "--accept", "same_work")[0] == 0
    assert gate(h100(), silent, "--shape", "llama3.1-8b")[0] == 0
    assert gate(h100(seconds=10.0), silent)[0] == 1


def test_a_gate_never_passes_on_an_impossible_figure(gate):
    code, _, error = gate(h100(), h100(seed=1, seconds=0.5))
    assert code == 2
    assert "an impossible figure (MFU above 100 %)" in error


def test_an_unsettled_candidate_is_undecided(gate):
    base = h100(warmup=0, noise=0.001)
    seconds = base.steps.column("seconds").reshape(5, -1)
    drifting = summarise(
        base.model_copy(update={"steps": base.steps.replace(seconds=(seconds * (1 + 0.002 * np.arange(50))).ravel())})
    )
    code, markdown, _ = gate(base, drifting, "--max-slowdown", "5%")
    assert code == 3
    assert "step time keeps drifting" in markdown


def test_a_fact_that_the_files_lack_can_be_stated_to_the_gate(gate):
    def without_length(**options):
        made = h100(**options)
        config = made.training_config.model_copy(update={"sequence_length": None})
        return summarise(made.model_copy(update={"training_config": config}))

    code, _, printed = gate(without_length(), without_length(seed=1))
    assert code == 2
    assert "--sequence-length" in printed
    code, markdown, _ = gate(without_length(), without_length(seed=1), "--sequence-length", "8192")
    assert code == 0
    assert "set by flag, not read from a file: --sequence-length 8192." in markdown
    flags = ["--sequence-length", "candidate=8192", "--sequence-length", "baseline=2048"]
    code, _, printed = gate(without_length(), without_length(seed=1), *flags)
    assert code == 2
    assert "sequence length 2048 against 8192" in printed
    assert gate(h100(), h100(seed=1), "--gpu", "tpu=v5")[0] == 2
