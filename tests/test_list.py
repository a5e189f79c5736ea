"""`tprimat list` shows the results below folders, the best of them, and what a planned matrix lacks."""

import json

import pytest
from each import in_each
from plausible import result

from tensorprimat.cli import main
from tensorprimat.storage.store import to_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with results of two GPUs and models in subfolders, a copy of one, and a broken file."""
    place = tmp_path_factory.mktemp("results")
    (place / "deep" / "history").mkdir(parents=True)
    slow = result("h100", seconds=20.0)
    unfinished = result("h100", seconds=1.0).model_copy(update={"complete": False})
    written = {
        "fast.json": result("h100", seconds=10.0),
        "deep/slow.json": slow,
        "deep/history/slow.json": slow,
        "deep/amd.json": result("mi300x", seconds=12.0),
        "qwen.json": result("h100", model="qwen", seconds=9.0),
        "unfinished.json": unfinished,
    }
    for name, content in written.items():
        (place / name).write_text(to_json(content))
    (place / "broken.json").write_text("{")
    (place / "other.json").write_text("[]")
    return place


def listed(capsys, *flags):
    """Return the JSON that a list prints."""
    assert main(["list", *map(str, flags), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def files(content):
    return [row["file"].rpartition("/")[2] for row in content["results"]]


def test_every_result_below_a_folder_is_listed_once_the_best_of_each_model_and_gpu_first(folder, capsys):
    assert files(listed(capsys, folder)) == ["unfinished.json", "fast.json", "slow.json", "amd.json", "qwen.json"]


def test_broken_files_and_copies_are_named_in_one_line_each(folder, capsys):
    assert main(["list", str(folder)]) == 0
    broken, copies = capsys.readouterr().err.splitlines()
    assert (broken.startswith(f"left out: {folder}/broken.json:1: "), "1 file with the same" in copies) == (True, True)


def test_a_relative_folder_is_listed_next_to_an_absolute_one(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["list", "deep", str(folder / "fast.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 results\n")
    assert "deep/amd.json" in out


def test_the_best_of_each_group_is_a_finished_result(folder, capsys):
    assert files(listed(capsys, folder, "--best")) == ["fast.json", "amd.json", "qwen.json"]
    assert files(listed(capsys, folder, "--best", "--group", "gpu")) == ["amd.json", "qwen.json"]


def test_a_metric_that_is_better_when_lower_is_ordered_from_small_to_large(folder, capsys):
    shown = listed(capsys, folder, "--filter", "gpu=H100", "--filter", "usable", "--metric", "avg_step_time_seconds")
    assert files(shown) == ["fast.json", "slow.json", "qwen.json"]


@in_each(
    ("conditions", "left"),
    [
        (["gpu=MI300X"], ["amd.json"]),
        (["gpu=NVIDIA H100 80GB HBM3", "avg_step_time_seconds > 15"], ["slow.json"]),
        (["model=Qwen2.5-7B"], ["qwen.json"]),
        (["complete=false"], ["unfinished.json"]),
    ],
)
def test_filters_take_any_spelling_of_a_model_or_gpu(conditions, left, folder, capsys):
    flags = [word for condition in conditions for word in ("--filter", condition)]
    assert files(listed(capsys, folder, *flags)) == left


def test_a_typed_order_replaces_the_usual_one(folder, capsys):
    shown = listed(capsys, folder, "--filter", "usable", "--sort", "-avg_step_time_seconds")
    assert files(shown) == ["slow.json", "amd.json", "fast.json", "qwen.json"]


def test_groups_count_all_results_and_measure_the_usable_ones(folder, capsys):
    (llama, _) = listed(capsys, folder, "--filter", "gpu=H100", "--group", "model", "--sort", "model")["groups"]
    assert (llama["model"], llama["results"], llama["measured"]) == ("llama", 3, 2)
    assert llama["lowest"] < llama["median"] < llama["highest"]


def test_the_missing_part_of_a_planned_matrix_is_shown(folder, capsys):
    planned = 'model=llama,qwen gpu=H100,"AMD Instinct MI300X"'
    assert listed(capsys, folder, "--expect", planned)["missing"] == [{"model": "qwen", "gpu": "AMD Instinct MI300X"}]
    unfinished_alone = ["--filter", "complete=false", "--expect", "gpu=H100"]
    assert listed(capsys, folder, *unfinished_alone)["missing"] == [{"gpu": "H100"}], "not a usable result"


@in_each("width", [80, 120])
def test_the_table_fits_the_terminal(width, folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["list", str(folder), "--expect", "model=qwen gpu=MI300X"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert all(
        name in shown for name in ("5 results in", "tokens/s/GPU", "H100 SXM", "Missing of the planned matrix: 1")
    )


def test_the_page_has_every_table(folder, tmp_path, capsys):
    page = tmp_path / "list.html"
    assert main(["list", str(folder), "--html", str(page), "--expect", "model=qwen gpu=MI300X"]) == 0
    assert capsys.readouterr().err.endswith(f"Files: {page}\n")
    assert all(text in page.read_text() for text in ("fast.json", "Missing of the planned matrix: 1"))


@in_each(
    ("flags", "says"),
    [
        (["--filter", "gpu=A100"], "--filter 'gpu=A100': none of 5 rows is left"),
        (["--sort", "num_gpu"], "--sort num_gpu: no row has such a column; columns: num_gpus,"),
        (["--group", "colour"], "--group colour: no row has such a column"),
        (["--metric", "loss"], "--metric loss: must be one of "),
        (["--expect", "model"], 'write it like "model=llama,qwen gpu=H100,MI300X"'),
        (["--query", "SELECT 1"], "--query: needs --from FOLDER"),
        (["--from", "store"], "--from store: choose the store or "),
    ],
)
def test_a_wrong_flag_is_named_in_one_line(flags, says, folder, capsys):
    assert main(["list", str(folder), *flags]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_without_results_is_said_in_one_line(tmp_path, capsys):
    assert main(["list", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"tprimat list: no benchmark results in or below {tmp_path}; run ")
