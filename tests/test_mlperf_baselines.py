"""MLPerf Training entries as baselines: in the gate, next to a user's own results, and in the demo."""

import json
import re

import numpy as np
import pytest

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.summary import summarise
from tensorprimat.facts import catalogue, mlperf_rules
from tensorprimat.mlperf import result as mlperf_result
from tensorprimat.mlperf.library import bundled
from tensorprimat.mlperf.score import Scored
from tensorprimat.reproduce import published
from tensorprimat.storage import store

AMD = "v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama31_8b"


def own(tmp_path, slower: float = 1.0):
    """Return a user's result: the entry's runs, each step longer by a factor."""
    result = published.result_of_baseline(published.find_baseline(f"mlperf:{AMD}"))
    steps = result.steps.replace(seconds=np.asarray(result.steps.column("seconds")) * slower)
    result = summarise(result.model_copy(update={"steps": steps, "runs": ()}))
    return store.write(result, tmp_path / "own.json")


def test_the_rate_of_an_entry_as_a_result_is_that_of_all_its_successful_runs():
    for entry in bundled().entries:
        scored = Scored(entry)
        if scored.tokens_per_second_per_gpu is None:
            continue
        runs = [run for run in scored.succeeded if run.training_seconds]
        expected = sum(run.samples for run in runs) / sum(run.training_seconds for run in runs)
        rate = mlperf_result.result_of_entry(entry).performance_metrics.samples_per_second
        assert rate == pytest.approx(expected, rel=2e-3), entry.name


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.05, 1)])
def test_the_gate_judges_against_an_entry(tmp_path, capsys, slower, code):
    candidate = own(tmp_path, slower)
    assert main(["gate", "--against", f"mlperf:{AMD}", "--candidate", str(candidate), "--max-slowdown", "3%"]) == code
    assert "llama" in capsys.readouterr().out


def test_the_gate_takes_one_baseline_and_one_only(tmp_path, capsys):
    candidate = str(own(tmp_path))
    assert main(["gate", "--candidate", candidate]) == 2
    assert main(["gate", "--candidate", candidate, "--baseline", candidate, "--against", f"mlperf:{AMD}"]) == 2
    assert main(["gate", "--candidate", candidate, "--against", "v5.1"]) == 2
    assert "either --baseline or --against" in capsys.readouterr().err


def test_a_name_of_several_entries_is_not_a_baseline():
    with pytest.raises(UsageError, match="published results have this in their names: mlperf:"):
        published.find_baseline("mlperf:v5.1/AMD")
    with pytest.raises(UsageError, match="the nearest are mlperf:"):
        published.find_baseline("mlperf:v9.9/nobody")


@pytest.mark.parametrize("name", [f"mlperf:{AMD}", AMD, AMD.upper(), AMD.partition("/")[2], f"mlperf:{AMD[5:]}"])
def test_a_baseline_is_found_by_its_name_with_or_without_kind_and_by_a_part_that_only_it_has(name):
    assert published.find_baseline(name).name == f"mlperf:{AMD}"


def test_a_kind_restricts_the_search_to_its_results():
    with pytest.raises(UsageError, match="the nearest are published:"):
        published.find_baseline(f"published:{AMD}")


def test_published_shows_the_nearest_library_rows_with_their_level(tmp_path, capsys):
    arguments = [
        "compare",
        str(own(tmp_path)),
        "--published",
        "--no-plot",
        "--json",
        "--output-dir",
        str(tmp_path / "out"),
    ]
    assert main(arguments) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["published"] if row["source"].startswith("MLPerf")]
    library = [row for row in rows if "not verified by MLCommons" in (row["note"] or "")]
    assert len(library) >= 8
    assert library[0]["source"] == "MLPerf Training v5.1, llama31_8b, AMD, MI355X_EPYC_9575F_pytorch"
    assert library[0]["date"] == "2025-11-12"
    assert library[0]["measured_here"][0]["ratio"] == pytest.approx(1.0, rel=0.01)
    assert {row["gpu"] for row in library[:4]} == {"MI355X"}
    assert rows == library
    assert (library[0]["precision"], library[0]["peft"]) == ("fp8", "none")


def test_the_demo_writes_a_page_states_its_sources_and_ends_with_its_one_answer(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "--output-dir", str(tmp_path), "--no-open"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines() if str(tmp_path) not in line)
    printed = " ".join(out.split())
    assert printed.count("NVIDIA GB200 · FP4 is faster than AMD MI355X · FP8: 1.27x") == 2
    assert printed.endswith("One machine or node set per side; other machines may differ.")
    assert "not verified by MLCommons" in printed
    assert str(tmp_path / "comparison_report.html") in printed
    assert "MI355X" in (tmp_path / "comparison_report.html").read_text()
    assert (tmp_path / "mlperf_llama31_8b.png").read_bytes().startswith(b"\x89PNG")


def test_no_result_of_mlperf_is_in_the_published_tables():
    assert not [row for row in catalogue.published_tables() if "MLPerf" in f"{row.source} {row.framework}"]


def test_every_baseline_has_a_name_of_its_own_by_which_it_is_found():
    every = published.baselines()
    assert len({one.name for one in every}) == len(every)
    assert sum(one.entry is not None for one in every) == len(bundled().entries)
    for one in every:
        assert published.find_baseline(one.name) == one


def test_list_published_holds_entries_and_rows_with_the_same_keys(capsys):
    assert main(["mlperf", "list", "--published", "--gpu", "MI355X", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in rows} == {"mlperf", "published"}
    assert {row["gpu"] for row in rows} == {"MI355X"}
    required = {"round", "benchmark", "submitter", "system", "gpu", "num_gpus", "runs", "successes", "minutes",
              "tokens_per_second_per_gpu", "global_batch_size", "precision", "mfu", "date"}  # fmt: skip
    assert all(required <= row.keys() for row in rows)
    assert all(row["url"] or row["source"] for row in rows if row["kind"] == "published")
    assert main(["mlperf", "list", "--published", "--submitter", "AMD", "--json"]) == 0
    assert {row["submitter"] for row in json.loads(capsys.readouterr().out)} == {"AMD"}


def test_the_option_published_is_for_list_only(capsys):
    assert main(["mlperf", "show", "v5.1/AMD", "--published"]) == 2
    assert "--published belongs to list" in capsys.readouterr().err


def test_a_gate_against_a_published_row_is_undecided_without_an_assumption(tmp_path, capsys):
    name = "published:Megatron-Bridge_25.11/llama/8xB200/fp8/128x8192/current_scaling"
    candidate = str(own(tmp_path))
    arguments = ["gate", "--against", name, "--candidate", candidate, "--accept", "same_work_per_token"]
    assert main(arguments) == 3
    shown = capsys.readouterr().out
    assert "a published figure has no runs; state their variation with --assume-run-cv PERCENT" in shown
    assert "runs on each side would decide" not in shown
    assert main([*arguments, "--assume-run-cv", "1%"]) in (0, 1)
    assert main(["gate", "--against", "published:nobody", "--candidate", candidate]) == 2
    assert "the nearest are published:" in capsys.readouterr().err


def test_mfu_needs_shape_precision_and_peak_and_names_the_missing_one():
    scored = {entry.name: Scored(entry) for entry in bundled().entries}
    assert scored["v5.1/NVIDIA/theia_ngpu8_ngc25.09_nemo/llama31_8b"].mfu.value == pytest.approx(
        46724 * 51470401536 / 15e15, rel=1e-3
    )
    assert scored[AMD].precision == "fp8"
    assert scored[AMD].mfu.value > 0.2
    assert "precision" in scored["v5.1/Nebius/nebius_b200_n1/llama31_8b"].mfu.because
    assert "tokens" in scored[AMD.replace("llama31_8b", "llama2_70b_lora")].mfu.because
    for one in scored.values():
        assert (one.mfu.value is None) == bool(one.mfu.because)
        assert one.mfu.value is None or 0.05 < one.mfu.value < 0.8


def test_every_stated_precision_is_of_an_entry_of_the_library():
    entries = {entry.name for entry in bundled().entries}
    for (round, submitter, system, benchmark), row in mlperf_rules._precisions().items():
        assert f"{round}/{submitter}/{system}/{benchmark}" in entries
        folder = rf"{submitter}/(benchmarks/{benchmark}|systems)/"
        assert re.match(rf"\S+/training_results_{round}( at \w+)?, {folder}", row.source)


@pytest.mark.parametrize(
    ("name", "tokens_per_second", "peak_tflops"),
    [("Megatron-Bridge 25.09/llama/8xH100 SXM/fp8/128x8192", 14079, 1978.9),
     ("NeMo/llama/8xB200/bf16/128x8192", 21629, 2250.0)],
)  # fmt: skip
def test_the_mfu_of_a_published_rate_is_charged_at_the_precision_that_ran(name, tokens_per_second, peak_tflops):
    found = [one for one in published.baselines() if one.name.replace("_", " ").startswith(f"published:{name}")]
    matrices = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336) + 4096 * 128256
    work = 6 * matrices + 6 * 32 * 32 * 128 * 8192
    assert [one.mfu.value for one in found] == [
        pytest.approx(tokens_per_second * work / (peak_tflops * 1e12), rel=1e-3)
    ]


def test_the_first_word_of_a_gpu_selects_its_rows_of_published_tables_too(capsys):
    found = {}
    for name in ("H100", "H100 SXM"):
        assert main(["mlperf", "list", "--published", "--gpu", name, "--json"]) == 0
        found[name] = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert found["H100"] >= found["H100 SXM"]
    assert any(name.startswith("published:") for name in found["H100"])
