"""`tprimat verify` finds what was changed, lost or put there, and nothing else."""

import json
import os

import pytest
from each import in_each
from test_store import result

from tensorprimat.cli import main
from tensorprimat.storage import store

ROW = (
    "[2026-01-05 10:00:{second:02d}] iteration {index:8d}/      40 | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-05 | global batch size:    64 | loss: 9.0E+00 |\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """Results of a live run and of a log, one with a series file."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "output"
    log = tmp_path / "train.log"
    rows = [ROW.format(second=i, index=i, samples=64 * i, ms=1000 + 7.3 * (i % 5)) for i in range(1, 41)]
    log.write_text("".join(rows))
    assert main(["extract", "--log-file", str(log), "--model-name", "llama", "--output", str(out) + "/"]) == 0
    monkeypatch.setattr(store, "INLINE_STEPS", 30)
    store.save(result(rows=60, seconds=0.123456789), out, stamp="s1")
    capsys.readouterr()
    return out


def verified(folder, capsys, *flags):
    code = main(["verify", str(folder), "--json", *flags])
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] == (code == 0)
    return code, {(one["state"], one["file"].rpartition("/")[2]) for one in document["findings"]}, document["findings"]


def wrong(found):
    return {pair for pair in found if pair[0] not in ("ok", "unchecked")}


def of_log(folder):
    return next(path for path in folder.glob("benchmark_*.json") if "train.log" in path.read_text())


def with_series(folder):
    return next(path for path in folder.glob("benchmark_*.json") if '"series_file": "' in path.read_text())


def test_an_untouched_folder_is_verified_with_its_log(folder, capsys):
    code, found, findings = verified(folder, capsys)
    assert (code, wrong(found)) == (0, set())
    assert any("its log train.log is the one that was read" in one["says"] for one in findings)
    assert main(["verify", str(folder)]) == 0


def test_a_changed_figure_is_named_with_the_value_from_the_steps(folder, capsys):
    path = of_log(folder)
    document = json.loads(path.read_text())
    document["performance_metrics"]["avg_step_time_seconds"] = 0.9
    path.write_text(json.dumps(document))
    code, found, findings = verified(folder, capsys)
    assert code == 1
    assert ("differs", path.name) in found
    assert any("avg_step_time_seconds is 0.9, the steps give 1.01" in one["says"] for one in findings)
    assert main(["verify", str(folder)]) == 1
    assert "differs" in capsys.readouterr().out


def test_a_changed_step_shows_in_every_figure_that_rests_on_it(folder, capsys):
    path = of_log(folder)
    document = json.loads(path.read_text())
    document["raw_step_times"][20] *= 1.5
    path.write_text(json.dumps(document))
    assert ("differs", path.name) in verified(folder, capsys)[1]


def test_a_result_that_is_not_in_history_is_foreign(folder, capsys):
    path = of_log(folder)
    document = json.loads(path.read_text())
    document["gpu_info"]["device_name"] = "NVIDIA H100"
    path.write_text(json.dumps(document))
    assert wrong(verified(folder, capsys)[1]) == {("foreign", path.name)}


def test_a_log_that_was_changed_differs_and_one_that_is_gone_is_unchecked(folder, capsys):
    log = folder.parent / "train.log"
    log.write_text(log.read_text() + "one more line\n")
    assert ("differs", of_log(folder).name) in verified(folder, capsys)[1]
    log.unlink()
    code, found, _ = verified(folder, capsys)
    assert (code, wrong(found)) == (0, set())
    elsewhere = folder.parent / "logs"
    elsewhere.mkdir()
    (elsewhere / "train.log").write_text("another")
    assert verified(folder, capsys, "--logs", str(elsewhere))[0] == 1


def test_a_log_that_was_moved_and_renamed_is_found_by_its_hash(folder, capsys):
    archive = folder.parent / "archive" / "2026"
    archive.mkdir(parents=True)
    (folder.parent / "train.log").rename(archive / "job-17.out")
    code, _, findings = verified(folder, capsys, "--logs", str(archive.parent))
    assert code == 0
    assert any(f"train.log (now {archive / 'job-17.out'}) is the one that was read" in one["says"]
               for one in findings)  # fmt: skip
    (folder / "train.log").write_text("another of its name")
    assert verified(folder, capsys, "--logs", str(archive.parent))[0] == 0
    (folder / "train.log").unlink()
    changed = (archive / "job-17.out").read_text()
    (archive / "job-17.out").write_text(changed.replace("1007.3", "1007.4"))
    code, found, _ = verified(folder, capsys, "--logs", str(archive.parent))
    assert (code, ("missing", of_log(folder).name) in found) == (1, True)


@in_each("value", [10**400, -(10**400), 1e308, "nan", [], None])
def test_a_figure_that_is_missing_too_large_or_of_another_kind_differs(folder, capsys, value):
    path = of_log(folder)
    document = json.loads(path.read_text())
    document["performance_metrics"]["total_time_seconds"] = value
    path.write_text(json.dumps(document))
    code, found, _ = verified(folder, capsys)
    assert (code, ("differs", path.name) in found) == (1, True)


def test_a_series_file_that_is_damaged_lost_or_named_by_nobody_is_found(folder, capsys):
    path = with_series(folder)
    file = folder / json.loads(path.read_text())["series_file"]
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert {("differs", path.name), ("differs", file.name)} <= verified(folder, capsys)[1]
    file.unlink()
    assert ("missing", path.name) in verified(folder, capsys)[1]
    file.write_bytes(content)
    (folder / "series_0123456789abcdef.npz").write_bytes(content)
    assert wrong(verified(folder, capsys)[1]) == {("foreign", "series_0123456789abcdef.npz")}


def test_foreign_and_unreadable_files_are_named(folder, capsys):
    (folder / "notes.json").write_text("{}")
    (folder / "half.json").write_text('{"performance_metrics": {')
    assert wrong(verified(folder, capsys)[1]) == {("foreign", "notes.json"), ("differs", "half.json")}


def test_pipes_with_names_of_results_and_their_copies_are_reported_and_do_not_block(folder, capsys):
    (folder / "history").mkdir(exist_ok=True)
    for name in ("benchmark_cuda_x.json", "history/benchmark_cuda_x_1.json", "history/series_0123456789abcdef.npz"):
        os.mkfifo(folder / name)
    code, found, _ = verified(folder, capsys)
    assert code == 1
    assert wrong(found) == {
        ("differs", "benchmark_cuda_x.json"), ("differs", "benchmark_cuda_x_1.json"),
        ("foreign", "series_0123456789abcdef.npz"),
    }  # fmt: skip


@pytest.mark.parametrize(("folder", "says"), [("none", "no such folder"), (".", "no benchmark results in this folder")])
def test_a_folder_without_results_verifies_nothing(tmp_path, capsys, folder, says):
    assert main(["verify", str(tmp_path / folder)]) == 2
    assert says in capsys.readouterr().err


def test_a_fresh_result_agrees_with_its_own_rounding(shared, tmp_path, capsys):
    log = shared / "logs" / "mlperf" / "v4.1_nvidia_h100x256_gpt3.txt"
    main(["extract", "--log-file", str(log), "--output", str(tmp_path)])
    main(["verify", str(tmp_path)])  # its drift is 0.0003668 by all digits and 0.0003669 by the six that are kept
    assert "differs" not in capsys.readouterr().out
