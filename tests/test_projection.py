"""Projection to another number of GPUs: refused unless it predicts measured points that were left out."""

import json

import plausible
import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.mlperf import projection
from tensorprimat.mlperf.library import bundled
from tensorprimat.reproduce import published
from tensorprimat.storage import store

GROUPS = projection.groups(bundled().entries)
MI300X = "v5.1/MangoBoost/MI300X-LLMBoost-GPUBoost-1node/llama2_70b_lora"


def test_a_left_out_point_is_predicted_without_its_own_gpu():
    ours = [group for group in GROUPS if group.benchmark == "llama2_70b_lora"]
    validation = projection.validate(ours)
    first = validation.points[0]
    others = projection.exponent_of([group for group in ours if group.gpu != first.fewer.entry.gpu])
    expected = first.fewer.samples_per_second * others.factor(first.more.entry.num_gpus / first.fewer.entry.num_gpus)[0]
    assert first.predicted == pytest.approx(expected)


def test_a_pair_of_points_that_a_later_round_repeats_is_one():
    pairs = [
        tuple(
            tuple(sorted((run.seconds, run.samples) for run in one.entry.runs if run.seconds is not None))
            for one in pair
        )
        for group in GROUPS
        for pair in group.pairs
    ]
    assert len(set(pairs)) == len(pairs)


def test_two_entries_that_state_different_precisions_make_no_pair():
    stated = [{one.precision for one in pair} - {None} for group in GROUPS for pair in group.pairs]
    assert max(map(len, stated)) == 1
    hpe = {entry.num_gpus: entry for entry in bundled().entries if entry.system.startswith("HPE-GB300")}
    assert (hpe[16].precision, hpe[32].precision) == ("fp4", "fp8")
    assert not projection.groups(list(hpe.values()))


def test_a_benchmark_with_enough_left_out_points_is_projected():
    exponent, validation = projection.exponent_for(GROUPS, "llama2_70b_lora", 4)
    assert len(validation.points) >= projection.FEWEST_POINTS
    assert 0.85 <= validation.coverage <= 0.95
    middle, low, high = exponent.factor(4)
    assert low < middle < high < 4.5


@in_each("benchmark", ["llama31_8b", "llama31_405b", "gpt3", "nothing"])
def test_a_benchmark_whose_coverage_is_not_shown_is_refused(benchmark):
    with pytest.raises(UsageError, match="not reliable"):
        projection.exponent_for(GROUPS, benchmark, 4)


def test_a_number_of_gpus_beyond_the_left_out_points_is_refused():
    with pytest.raises(UsageError, match="the scaling data reach only"):
        projection.exponent_for(GROUPS, "llama2_70b_lora", 1000)


def test_the_command_prints_the_interval_with_its_validation(tmp_path, capsys):
    file = store.write(published.result_of_baseline(published.find_baseline(f"mlperf:{MI300X}")), tmp_path / "own.json")
    assert main(["project", "--from", str(file), "--gpus", "16", "--gpu", "MI300X", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    measured = published.result_of_baseline(
        published.find_baseline("mlperf:" + MI300X.replace("1node", "2node"))
    ).performance_metrics.tokens_per_second_per_gpu
    assert row["low"] < measured < row["high"]
    assert main(["project", "--from", str(file), "--gpus", "16", "--gpu", "B200"]) == 2
    assert main(["project", "--from", str(file)]) == 2
    assert main(["project", "--from", str(file), "--gpus", "16", "--benchmark", "llama31_8b"]) == 2
    assert "not reliable" in capsys.readouterr().err


def test_every_output_states_that_mlcommons_has_not_verified_the_rates(tmp_path, capsys):
    file = store.write(published.result_of_baseline(published.find_baseline(f"mlperf:{MI300X}")), tmp_path / "own.json")
    notice = "derived from the logs of MLPerf Training v4.1, v5.0, v5.1, v6.0; not verified by MLCommons"
    for arguments in (["--benchmark", "llama2_70b_lora"], ["--from", str(file), "--gpus", "16"]):
        assert main(["project", *arguments]) == 0
        assert f"Rates of submissions: {notice}." in capsys.readouterr().out
        assert main(["project", *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["derived"] == notice


def test_a_benchmark_that_the_library_lacks_is_refused_with_those_it_has(capsys):
    assert main(["project", "--benchmark", "nothing"]) == 2
    assert "--benchmark nothing: no entry matches; entries have gpt3, llama2_70b_lora" in capsys.readouterr().err


def test_the_measured_number_of_gpus_is_not_a_projection(tmp_path, capsys):
    file = store.write(published.result_of_baseline(published.find_baseline(f"mlperf:{MI300X}")), tmp_path / "own.json")
    assert main(["project", "--from", str(file), "--gpus", "8"]) == 2
    assert "that is the measured number of GPUs" in capsys.readouterr().err


def test_a_projection_states_that_its_exponents_are_of_another_task(tmp_path, capsys):
    own = store.write(published.result_of_baseline(published.find_baseline(f"mlperf:{MI300X}")), tmp_path / "own.json")
    other = store.write(plausible.result("mi300x", runs=2), tmp_path / "other.json")
    for file, shown in (
        (own, "llama2_70b_lora did (samples"),
        (other, ", although its own task is another one (llama), and that its global batch"),
    ):
        assert main(["project", "--from", str(file), "--gpus", "16"]) == 0
        assert shown in capsys.readouterr().out


def test_a_projection_from_one_gpu_names_one_gpu(tmp_path, capsys):
    eight = plausible.result("mi300x", runs=2)
    one = eight.changed(training_config=eight.training_config.changed(num_gpus=1))
    file = store.write(one, tmp_path / "one.json")
    assert main(["project", "--from", str(file), "--gpus", "8"]) == 0
    printed = capsys.readouterr().out
    assert " tokens/s/GPU on 8 GPUs (90 % interval " in printed
    assert " on 1 GPU. This assumes" in printed


def test_a_result_of_a_cpu_is_not_projected_by_the_scaling_of_gpus(tmp_path, capsys):
    file = store.write(plausible.result("cpu", runs=2), tmp_path / "cpu.json")
    assert main(["project", "--from", str(file), "--gpus", "8"]) == 2
    assert "a result of a CPU cannot be projected" in capsys.readouterr().err


def test_the_left_out_points_are_listed_with_their_misses(capsys):
    assert main(["project", "--benchmark", "llama2_70b_lora"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("missed") > 1
    assert "is reliable" in printed
    assert main(["project", "--benchmark", "llama31_8b"]) == 0
    assert "is not reliable" in capsys.readouterr().out


def test_a_gpu_that_the_catalogue_does_not_hold_is_not_taken_for_another_such_gpu(tmp_path, capsys):
    file = store.write(plausible.result("h100", device_name="Accelerator 9"), tmp_path / "own.json")
    for name, code in (("Accelerator 8", 2), ("accelerator-9", 0)):
        assert main(["project", "--from", str(file), "--gpus", "16", "--gpu", name]) == code
        assert ("the result is of Accelerator 9" in capsys.readouterr().err) == (code == 2)
