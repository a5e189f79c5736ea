"""Sides of a comparison as people name them: folders, files, logs, with and without names."""

import gzip
import io
import json
from pathlib import Path

import job_logs
import pytest
from plausible import result
from test_extract import log

from tensorprimat.analysis import sides
from tensorprimat.cli import main
from tensorprimat.core.notices import Notice
from tensorprimat.session import sides as by_argument
from tensorprimat.storage import store


@pytest.fixture
def compare(tmp_path, capsys):
    """Run compare on paths below tmp_path and return exit code, comparison.json and what was printed."""

    def run(*arguments):
        code = main(["compare", *map(str, arguments), "--no-plot", "--output-dir", str(tmp_path / "report")])
        printed = capsys.readouterr()
        report = tmp_path / "report" / "comparison.json"
        return code, json.loads(report.read_text()) if code == 0 else None, printed.out + printed.err

    return run


def runs_in(folder, machine="h100", **options):
    store.save(result(machine, **{"runs": 5, **options}), folder, stamp="1")
    return folder


def labels(document):
    return [side["label"] for side in document["sides"]]


def test_two_folders_are_two_sides_and_the_first_is_the_baseline(tmp_path, compare):
    old, new = runs_in(tmp_path / "old"), runs_in(tmp_path / "new", seconds=13.6, seed=1)
    for first, second, verdict in ((old, new, "slower"), (new, old, "faster")):
        code, document, _ = compare(first, second)
        assert code == 0
        assert labels(document) == [first.name, second.name]
        assert (document["pairs"][0]["baseline"], document["verdict"]) == (first.name, verdict)
        assert [side["runs"] for side in document["sides"]] == [5, 5]


def test_arguments_of_one_name_are_one_side(tmp_path, compare):
    for number in range(3):
        runs_in(tmp_path / f"{number}", runs=1, seed=number, timestamp=None)
    _, document, _ = compare(f"base={tmp_path / '0'}", f"base={tmp_path / '1'}", f"new={tmp_path / '2'}")
    assert [(side["label"], len(side["files"])) for side in document["sides"]] == [("base", 2), ("new", 1)]


def test_the_same_results_on_both_sides_are_counted_on_both(tmp_path, compare):
    runs_in(tmp_path / "a")
    _, document, _ = compare(f"x={tmp_path / 'a'}", f"y={tmp_path / 'a'}")
    assert document["verdict"] == "no_difference_shown"


def test_sides_of_different_devices_are_called_after_them(tmp_path, compare):
    _, document, _ = compare(runs_in(tmp_path / "x", "mi300x", seconds=11.0), runs_in(tmp_path / "y"))
    assert labels(document) == ["MI300X", "H100"]
    assert document["pairs"][0]["baseline"] == "MI300X"


def test_a_baseline_can_be_chosen_among_several_sides_which_are_ranked(tmp_path, compare):
    for name, seconds in (("a", 12.8), ("b", 11.0), ("c", 14.0)):
        runs_in(tmp_path / name, seconds=seconds, seed=ord(name))
    _, document, printed = compare(tmp_path / "a", tmp_path / "b", tmp_path / "c", "--baseline", "c")
    assert {pair["baseline"] for pair in document["pairs"]} == {"c"}
    ranked = [line.split()[0] for line in printed.splitlines() if line.startswith(("  a ", "  b ", "  c "))]
    assert ranked[:3] == [
        "b",
        "a",
        "c",
    ]  # the picture comes first; the table of results keeps the order of the command line


def test_a_path_that_does_not_exist_is_named_also_after_a_file_that_was_left_out(tmp_path, compare):
    sides = [runs_in(tmp_path / name) for name in "ab"]
    (tmp_path / "notes.txt").write_text("nothing about training\n")
    code, _, printed = compare(tmp_path / "notes.txt", *sides, tmp_path / "missing.json")
    assert (code, printed) == (2, f"tprimat compare: {tmp_path / 'missing.json'}: no such file\n")


def test_the_option_by_groups_all_files_whatever_the_arguments(tmp_path, compare):
    runs_in(tmp_path / "a", precision="bf16")
    runs_in(tmp_path / "b", precision="fp8", seconds=9.0)
    _, document, _ = compare(tmp_path / "a", tmp_path / "b", "--by", "precision")
    assert labels(document) == ["BF16", "FP8"]


def test_logs_are_compared_directly_packed_or_not(tmp_path, compare):
    (tmp_path / "one.log").write_text("  seq_length ............... 8192\n" + log())
    text = "  seq_length ............... 8192\n" + log(milliseconds=9000.0).replace(" 07:", " 09:")
    (tmp_path / "two.log.gz").write_bytes(gzip.compress(text.encode()))
    code, document, _ = compare(
        f"h100={tmp_path / 'one.log'}", f"mi300x={tmp_path / 'two.log.gz'}", "--model-name", "llama"
    )
    assert code == 0
    assert labels(document) == ["h100", "mi300x"]
    assert document["fairness"]["level"] == "same_work"
    assert document["fairness"]["conditions"] == ["model shape", "trainable parameters"]
    assert document["ratio"]["value"] == pytest.approx(10 / 9, rel=1e-3)


def test_a_log_and_a_result_are_compared(tmp_path, compare):
    (tmp_path / "one.log").write_text("  seq_length ............... 8192\n" + log())
    folder = runs_in(tmp_path / "results")
    code, document, _ = compare(folder, tmp_path / "one.log", "--model-name", "llama")
    assert code == 0
    assert document["sides"][0]["label"] == "H100"
    assert document["ratio"]["value"] > 0


def test_a_log_alone_is_read_and_not_refused_as_json(tmp_path, compare):
    (tmp_path / "one.log").write_text("  seq_length ............... 8192\n" + log())
    code, document, printed = compare(tmp_path / "one.log")
    assert (code, len(document["sides"])) == (0, 1)
    assert "invalid JSON" not in printed


def test_files_of_equal_settings_and_clearly_different_speed_are_two_sides_of_one_folder(tmp_path, compare):
    folder = tmp_path / "results"
    folder.mkdir()
    for name, seconds in (("first", 9.7), ("second", 7.69)):
        store.write(result("h100", device_name="H100", seconds=seconds), folder / f"{name}.json")
    _, document, _ = compare(folder)
    assert labels(document) == ["H100 [first]", "H100 [second]"]


def test_sides_are_not_called_after_the_seeds_of_further_runs(tmp_path, compare):
    for name, runs, seconds in (("slow", 2, 12.8), ("fast", 3, 9.5)):
        (tmp_path / f"{name}.json").write_text(store.to_json(result("h100", runs=runs, seconds=seconds)))
    _, document, _ = compare(tmp_path)
    assert labels(document) == ["H100 [fast]", "H100 [slow]"]


def test_runs_of_one_named_side_pool_although_only_some_state_a_setting(tmp_path, compare):
    folder = tmp_path / "results"
    folder.mkdir()
    silent = result("h100", seed=1, seconds=12.9)
    config = silent.training_config.model_copy(update={"attention_backend": None})
    store.write(result("h100"), folder / "a.json")
    store.write(
        silent.model_copy(update={"training_config": config, "timestamp": "2025-11-04T00:00:00"}), folder / "b.json"
    )
    runs_in(tmp_path / "new", seed=3)
    _, document, _ = compare(f"base={folder}", f"new={tmp_path / 'new'}")
    assert len(document["sides"]) == 2
    assert any("only some of the 2 files state attention" in warning for warning in document["warnings"])


def test_models_with_equal_shapes_pair_whatever_their_names(tmp_path, compare):
    folder = tmp_path / "results"
    folder.mkdir()
    store.write(result("h100", runs=3), folder / "a.json")
    own = result("mi300x", runs=3, seconds=11.0)
    named = own.model_copy(update={"model": own.model.model_copy(update={"name": "our-8b", "preset": None})})
    store.write(named, folder / "b.json")
    _, document, _ = compare(folder)
    assert len(document["pairs"]) == 1
    assert document["verdict"] == "faster"


def test_two_named_sides_of_two_models_are_refused_with_a_remedy(tmp_path, compare):
    runs_in(tmp_path / "a")
    runs_in(tmp_path / "b", model="qwen")
    _, document, _ = compare(tmp_path / "a", tmp_path / "b")
    assert document["verdict"] == "not_comparable"
    assert document["fairness"]["remedy"] == "Benchmark the same model on both sides."


@pytest.mark.parametrize("word", ["=x.json", "base="])
def test_an_incomplete_name_or_path_of_a_side_is_refused(compare, word):
    code, _, printed = compare(word, "other.json")
    assert code == 2
    assert "NAME=PATH" in printed


def test_a_path_that_holds_nothing_is_named(tmp_path, compare):
    (tmp_path / "noise.txt").write_text("nothing at all\n")
    code, _, printed = compare(tmp_path / "noise.txt")
    assert code == 2
    assert "noise.txt" in printed
    assert "invalid JSON" not in printed


def on_side(name, *results):
    return [
        store.Loaded(path=Path(f"{name}{number}.json"), result=one, side=name) for number, one in enumerate(results)
    ]


def test_a_thousand_files_of_one_side_are_each_compared_with_one_of_their_kind(monkeypatch):
    requested = []
    real = sides.differing_fields
    monkeypatch.setattr(sides, "differing_fields", lambda *pair, **how: requested.append(pair) or real(*pair, **how))
    of_one = result("h100", steps=3)
    [group] = sides.gather(on_side("old", *[of_one] * 1000), "platform")
    assert len(group.runs) == 1000
    assert len(requested) < 10


def test_a_file_that_contradicts_any_file_of_a_side_is_a_benchmark_of_its_own():
    one, silent, other = (result("h100", attention_kernel=kernel) for kernel in ("flash", None, "eager"))
    groups = sides.gather(on_side("old", one, silent, other, one), "platform")
    assert sorted(len(group.files) for group in groups) == [1, 3]


def test_the_scaling_factor_of_an_mlperf_folder_is_not_a_log_and_is_reported_as_not_applied(tmp_path, compare):
    for side, seconds in (("a", 2.0), ("b", 2.2)):
        (tmp_path / side).mkdir()
        for number in range(2):
            rows = job_logs.mlperf(job_logs.Job(seconds=seconds + 0.001 * number, hour=8 + number))
            (tmp_path / side / f"result_{number}.txt").write_text("\n".join(rows) + "\n")
    (tmp_path / "a" / "scaling.json").write_text('{"scaling_factor": 1.02}')
    code, _, printed = compare(tmp_path / "a", tmp_path / "b")
    assert code == 0
    assert "scaling.json: MLPerf's scaling factor is not applied here; tprimat mlperf import applies it" in printed
    assert "left out" not in printed


def test_logs_in_a_folder_or_in_its_subfolders_are_runs_of_the_side(tmp_path, compare):
    for side, pace, place in (("old", 10000.0, "run{}/train.log"), ("new", 9000.0, "run{}.log")):
        for number in (1, 2):
            file = tmp_path / side / place.format(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            text = log(milliseconds=pace + 7 * number).replace(" 07:", f" 1{number}:")
            file.write_text("  seq_length ............... 8192\n" + text)
    _, document, printed = compare(tmp_path / "old", tmp_path / "new", "--model-name", "llama")
    assert [(side["label"], side["runs"]) for side in document["sides"]] == [("old", 2), ("new", 2)]
    assert f"{tmp_path / 'old'}: read from its subfolders run1, run2" in printed
    assert document["verdict"] == "faster"


def test_results_in_subfolders_are_found_but_not_earlier_ones_in_history(tmp_path, compare):
    runs_in(tmp_path / "old" / "monday")
    runs_in(tmp_path / "old" / "history", seconds=99.0)
    _, document, _ = compare(f"old={tmp_path / 'old'}", f"new={runs_in(tmp_path / 'new', seconds=11.0)}")
    assert [(side["label"], side["runs"]) for side in document["sides"]] == [("old", 5), ("new", 5)]


def test_ranks_in_subfolders_are_one_run(tmp_path, compare):
    for rank in (0, 1):
        folder = tmp_path / "job" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("  seq_length ............... 8192\n" + log())
    _, document, _ = compare(f"job={tmp_path / 'job'}")
    assert [side["runs"] for side in document["sides"]] == [1]


def test_standard_input_is_a_side(tmp_path, compare, monkeypatch):
    text = "  seq_length ............... 8192\n" + log()
    (tmp_path / "one.log").write_text(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.replace("10", "11").encode())))
    code, document, _ = compare("piped=-", f"file={tmp_path / 'one.log'}", "--model-name", "llama")
    assert code == 0
    assert labels(document) == ["piped", "file"]


def test_a_run_compared_with_itself_is_reported(tmp_path, compare):
    text = "  seq_length ............... 8192\n" + log()
    for name in ("one.log", "copy.log"):
        (tmp_path / name).write_text(text)
    _, _, printed = compare(tmp_path / "one.log", tmp_path / "copy.log", "--model-name", "llama")
    assert "the same run is on both sides" in printed
    (tmp_path / "copy.log").write_text(log(milliseconds=9991.0).replace(" 07:", " 09:"))
    _, _, printed = compare(tmp_path / "one.log", tmp_path / "copy.log", "--model-name", "llama")
    assert "the same run" not in printed


def test_runs_of_one_side_that_differ_like_two_machines_are_reported(tmp_path, compare):
    for name, seconds, hour in (("old/a", 2.0, 1), ("old/b", 1.5, 3), ("new/c", 1.5, 5), ("new/d", 1.52, 7)):
        file = tmp_path / f"{name}.log"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(job_logs.megatron(job_logs.Job(seconds=seconds, hour=hour))))
    _, document, printed = compare(tmp_path / "old", tmp_path / "new")
    assert [side["runs"] for side in document["sides"]] == [2, 2]
    of_old, of_new = (side["warnings"] for side in document["sides"])
    unlike = Notice("speeds_unlike", "runs", low="1.5", high="2", unit="seconds a step")
    assert unlike in of_old
    assert unlike.partition(" (")[0] not in "".join(of_new)
    assert "kept as two results" not in printed, "they are one side here"


def test_a_tensorboard_file_is_called_after_its_folder():
    paths = [Path(f"runs/{name}/events.out.tfevents.1700000000.host.1.{number}") for number, name in enumerate("ab")]
    assert by_argument._provisional([by_argument.Argument(path=path) for path in paths]) == ["a", "b"]


def test_the_name_of_a_side_has_no_suffix_of_a_log():
    paths = [Path("run-1m09.wandb"), Path("history.csv"), Path("train.err.gz"), Path("b.log.zip")]
    named = by_argument._provisional([by_argument.Argument(path=path) for path in paths])
    assert named == ["run-1m09", "history", "train", "b"]


def test_a_path_given_twice_without_names_is_one_side_with_a_warning(tmp_path, compare):
    path = runs_in(tmp_path / "a")
    _, document, printed = compare(path, path)
    assert len(document["sides"]) == 1
    assert f"{path}: named 2 times, so it is one side" in printed


def test_a_file_of_which_some_runs_are_known_keeps_its_other_runs_apart_from_those_of_later_files():
    """Two runs under one number would be one run with a second warm-up inside its measured steps."""
    both = result("h100", runs=2, seed=1)
    first = both.changed(steps=both.steps.take(both.steps.column("run") == 0), runs=both.runs[:1])
    later = result("h100", runs=2, seed=2)
    later = later.changed(runs=tuple(run.changed(started_at=f"2025-12-0{1 + run.index}") for run in later.runs))
    kept, warnings = sides.usable_results(on_side("old", first, both, later))
    assert any("counted once" in text for text in warnings)
    [group] = sides.gather(kept, "platform")
    assert [(run.index, run.total_steps, run.measured_steps) for run in group.result.runs] == [
        (number, 55, 50) for number in range(4)
    ]
    assert [run.avg_step_time_seconds for run in group.result.runs] == pytest.approx(
        [alone.performance_metrics.avg_step_time_seconds for alone in group.runs], rel=5e-4
    )


def test_a_path_whose_name_another_side_was_given_is_a_side_of_its_own(tmp_path, compare, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seconds in (("one", 12.8), ("h100", 13.6)):
        Path(f"{name}.json").write_text(store.to_json(result("h100", runs=3, seconds=seconds)))
    _, document, _ = compare("h100=one.json", "h100.json")
    assert [side["runs"] for side in document["sides"]] == [3, 3]
    assert document["verdict"] == "slower"
