"""`tprimat reproduce` and `benchmark.py --reproduce`: a published speed beside the user's, setting by setting."""

import json
import re
from pathlib import Path

import pytest

from tensorprimat.cli import main, reproduce
from tensorprimat.reproduce import published
from tensorprimat.reproduce.reproduction import known_cost, reproduction_of
from tensorprimat.storage import store

ROW = "torchtitan/llama/8xH100_96GB_HBM2e/fp8/16x8192/FSDP_8_compile_float8"
EAGER = "torchtitan/llama/8xH100_96GB_HBM2e/bf16/16x8192/FSDP_8_eager"
BRIDGE = "Megatron-Bridge_26.08/deepseekv3-671b/256xGB300"


def own(name=EAGER, *, faster=1.0, **config):
    """Return a user's result: what a published row states, with another speed and other settings."""
    result = published.as_result(published.find_baseline(name).row)
    figures = result.performance_metrics
    return result.changed(
        training_config=result.training_config.changed(**config),
        performance_metrics=figures.changed(tokens_per_second_per_gpu=figures.tokens_per_second_per_gpu * faster),
    )


def against(name, result):
    return reproduction_of(published.find_baseline(name), result, "own.json")


def printed(capsys, *words):
    assert main(["reproduce", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_examples_of_the_manual_name_published_results():
    names = re.findall(r"tprimat reproduce (?!--)(\S+)", str(reproduce.command.__doc__))
    assert [published.find_baseline(name.strip('"')).row is not None for name in names] == [True, True]


def test_two_differences_whose_costs_are_published_explain_a_gap():
    found = against(ROW, own())
    assert [line.key for line in found.of_state("different")] == ["precision", "compile"]
    assert found.gap.ratio == pytest.approx(5762 / 8532)
    low, high = found.gap.explained
    assert low < found.gap.ratio <= high + 0.01
    assert found.gap.rest == pytest.approx((found.gap.ratio / high, found.gap.ratio / low))


def test_a_difference_without_a_published_pair_has_an_unknown_cost_and_comes_after_the_known_ones():
    found = against(ROW, own(num_gpus=8, micro_batch_size=1))
    *known, last = found.of_state("different")
    assert (last.key, last.cost) == ("micro_batch_size", None)
    assert all(line.cost for line in known)


def test_the_cost_of_a_setting_comes_from_rows_of_one_source_that_differ_in_it_alone():
    near = published.find_baseline(ROW).row
    cost = known_cost("compile", "yes", "no", near)
    assert cost.pairs == 2
    assert (cost.low, cost.high) == (pytest.approx(5762 / 6667, abs=0.01), pytest.approx(5762 / 6667, abs=0.01))
    back = known_cost("compile", "no", "yes", near)
    assert (back.low, back.high) == (pytest.approx(1 / cost.high), pytest.approx(1 / cost.low))
    assert known_cost("compile", "yes", "perhaps", near) is None


def test_each_environment_variable_and_version_is_a_setting_of_its_own():
    result = own(BRIDGE, environment={"NCCL_NVLS_ENABLE": "1", "NVTE_FUSED_ATTN": "0"}, versions={})
    states = {line.label: line.state for line in against(BRIDGE, result).lines}
    assert states["NCCL_NVLS_ENABLE"] == "different"
    assert states["NVTE_FUSED_ATTN"] == "not stated by the source"
    assert states["USE_MNNVL"] == states["container"] == "not stated by you"


def test_sides_that_did_other_work_have_no_gap_and_say_why():
    found = against(ROW, own(sequence_length=128))
    assert found.gap is None
    assert "sequence length" in found.because
    assert found.because.endswith(". ./benchmark.py --reproduce NAME trains the published settings.")  # not "both"


def test_the_configuration_file_that_states_an_entry_s_precision_is_its_recipe():
    found = against("mlperf:v6.0/Dell/1xXE9785L_8xMI355X/llama31_8b", own())
    assert "Dell/benchmarks/llama31_8b/implementations/AMD/config_MI355X_1x8x1.sh" in found.row.recipe
    assert {line.key: line.published for line in found.lines}["fp8_recipe"] == "mxfp4"


def test_an_entry_without_a_rate_is_compared_by_its_minutes_with_a_log_of_its_benchmark_only(shared):
    log = str(shared / "logs/mlperf/v5.1_nvidia_gb200x8_llama31_8b.txt")
    name = "v6.0/GigaComputing/G894-SD3-AAX7_pytorch/llama31_8b"
    from tensorprimat.session.sides import load_any

    [item], _ = load_any([Path(log)])
    found = against(f"mlperf:{name}", item.result)
    assert (found.gap.figure, found.gap.published) == ("minutes to train", pytest.approx(74.081, abs=0.001))
    assert found.gap.ratio == pytest.approx(found.gap.published / found.gap.measured)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_screen_shows_gap_table_and_unstated_settings(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    file = store.write(own(data="c4"), tmp_path / "own.json")
    assert main(["reproduce", ROW, str(file)]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= int(columns) for line in text.splitlines())
    for part in ("Yours 5,762, published 8,532 tokens/s/GPU: 0.68x the speed", "Not in the source: data c4"):
        assert part in " ".join(text.split())
    assert re.search(r"compiled +yes +no +0\.86x", text)


def test_json_holds_every_setting_with_its_state_and_cost(tmp_path, capsys):
    document = printed(capsys, ROW, store.write(own(), tmp_path / "own.json"))
    assert document["gap"]["ratio"] == pytest.approx(0.6753, abs=0.001)
    [compiled] = [one for one in document["settings"] if one["key"] == "compile"]
    assert (compiled["state"], compiled["known_cost"]["pairs"]) == ("different", 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["torchtitan/llama/9xH100", "own.json"], "no published result has this in its name; the nearest are"),
        (["--list", "torchtitan/llama/9xH100"], "no published result has this in its name; the nearest are"),
        (["torchtitan/llama", "own.json"], "published results have this in their names"),
        ([ROW], "name a published result and your result"),
        ([], "--list prints the names"),
        ([ROW, "absent.json"], "absent.json"),
        (["--list", ROW, "own.json"], "--list takes a part of a name"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store.write(own(), tmp_path / "own.json")
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_list_shows_the_names_that_the_command_takes(capsys):
    assert main(["reproduce", "--list", "26.08"]) == 0
    names = re.findall(r"(published:\S+)", capsys.readouterr().out)
    assert len(names) > 10
    assert all(published.find_baseline(name).name == name for name in names)


def test_a_dry_run_plans_what_a_published_row_states(capsys):
    row = "Megatron-Bridge_25.11/llama/8xGB300/fp8/128x8192/current_scaling"
    assert main(["run", "--reproduce", row, "--dry-run", "--steps", "7"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("Engine bridge", "8 × GB300", "Batch 128 sequences of 8,192 tokens", "7 measured"):
        assert part in text
    assert main(["run", "--reproduce", row]) == 0  # without a GPU, too
    shown = capsys.readouterr()
    assert "no GPU here, so this is a dry run" in shown.err
    assert "WOULD TRAIN" in shown.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([ROW], "no engine here runs torchtitan; --engine torch runs its settings"),
        ([BRIDGE], "deepseekv3-671b is not among llama, qwen, mistral; give --model CONFIG.json"),
    ],
)
def test_a_published_row_that_nothing_here_can_run_is_refused_with_the_remedy(words, says, capsys):
    assert main(["run", "--reproduce", *words, "--dry-run"]) == 2
    assert says in capsys.readouterr().err
