"""MLPerf Training entries as baselines: in the gate, beside a user's own results, and in the demo."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tensorprimat.analysis import mlperf_result
from tensorprimat.analysis.mlperf_score import Scored
from tensorprimat.cli import main
from tensorprimat.core import store
from tensorprimat.core.errors import InputError
from tensorprimat.core.mlperf_library import bundled
from tensorprimat.core.summary import summarise

AMD = "v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama31_8b"


def own(tmp_path, slower: float = 1.0):
    """A user's result: the entry's runs, each step longer by a factor."""
    result = mlperf_result.baseline(AMD)
    steps = result.steps.replace(seconds=np.asarray(result.steps.column("seconds")) * slower)
    result = summarise(result.model_copy(update={"steps": steps, "runs": ()}))
    return store.write(result, tmp_path / "own.json")


def test_the_rate_of_an_entry_as_a_result_is_that_of_all_its_successful_runs():
    for entry in bundled().entries:
        scored = Scored(entry)
        if scored.tokens_per_second_per_gpu is None:
            continue
        runs = scored.succeeded
        expected = sum(run.samples for run in runs) / sum(run.training_seconds for run in runs)
        rate = mlperf_result.result_of(entry).performance_metrics.samples_per_second
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


def test_a_name_of_several_entries_is_no_baseline():
    with pytest.raises(InputError, match="entries of the library"):
        mlperf_result.baseline("v5.1/AMD")
    with pytest.raises(InputError, match="0 entries"):
        mlperf_result.baseline("v9.9/nobody")


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
    assert len(library) == 8
    assert library[0]["source"] == "MLPerf Training v5.1, llama31_8b, AMD, MI355X_EPYC_9575F_pytorch"
    assert library[0]["date"] == "2025-11-12"
    assert library[0]["measured_here"][0]["ratio"] == pytest.approx(1.0, rel=0.01)
    assert {row["gpu"] for row in library[:4]} == {"MI355X"}
    assert rows == library  # the table's own rows of these rounds give way to the library's


def test_the_demo_writes_a_page_and_says_what_it_rests_on(tmp_path, capsys):
    assert main(["demo", "--output-dir", str(tmp_path), "--no-open"]) == 0
    printed = capsys.readouterr().out
    assert "MI355X needs 104.1 min, B200 86.5" in printed
    assert "not verified by MLCommons" in printed
    assert str(tmp_path / "comparison_report.html") in printed
    assert "MI355X" in (tmp_path / "comparison_report.html").read_text()
