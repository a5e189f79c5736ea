"""`tprimat export` writes results, runs and steps as Parquet, which DuckDB and `tprimat list --from` read."""

import gc
import json
import sys

import pytest
from each import in_each
from plausible import result

from tensorprimat.cli import main
from tensorprimat.storage.store import to_json

pytest.importorskip("pyarrow", reason="the store needs pyarrow")
pytest.importorskip("duckdb", reason="queries of the store need duckdb")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return a folder of two results, and the store of it."""
    folder, store = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("store")
    for number, machine in enumerate(("h100", "mi300x")):
        (folder / f"{machine}.json").write_text(to_json(result(machine, runs=2, steps=6, warmup=1, seed=number)))
    (folder / "broken.json").write_text("{")
    assert main(["export", str(folder), "--output", str(store)]) == 0
    return folder, store


def answer(capsys, store, sql):
    assert main(["list", "--from", str(store), "--query", sql, "--json"]) == 0
    return [tuple(row.values()) for row in json.loads(capsys.readouterr().out)["rows"]]


def test_the_store_lists_what_the_files_list(places, capsys):
    folder, store = places
    assert main(["list", str(folder), "--json"]) == 0
    of_files = json.loads(capsys.readouterr().out)
    assert main(["list", "--from", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == of_files


def test_the_same_files_give_the_same_bytes(places, tmp_path):
    folder, store = places
    assert main(["export", str(folder), "--output", str(tmp_path)]) == 0
    names = ["results.parquet", "runs.parquet", "steps.parquet"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert all((tmp_path / name).read_bytes() == (store / name).read_bytes() for name in names)


def test_a_query_joins_the_steps_of_every_run_to_its_result(places, capsys):
    folder, store = places
    found = answer(
        capsys, store,
        "SELECT gpu, count(*), max(seconds) FROM results JOIN steps USING (file) GROUP BY gpu ORDER BY gpu",
    )  # fmt: skip
    logged = [json.loads((folder / f"{machine}.json").read_text())["raw_step_times"] for machine in ("h100", "mi300x")]
    assert found == [
        (gpu, len(seconds), pytest.approx(max(seconds)))
        for gpu, seconds in zip(("H100 SXM", "MI300X"), logged, strict=True)
    ]
    assert answer(capsys, store, "SELECT count(*) FROM runs") == [(4,)]


@in_each(
    ("sql", "says"),
    [
        ("SELECT nothing FROM results", "--query: Binder Error"),
        ("SELECT * FROM read_csv('/etc/hostname')", "--query: Permission Error"),
        ("COPY (SELECT 1) TO '{store}/runs.parquet' (FORMAT csv, USE_TMP_FILE false)", "--query: not one statement"),
        ("SELECT 1; ATTACH '{store}/runs.parquet' AS x", "--query: not one statement"),
        ("EXPLAIN ANALYZE COPY results TO '{store}/steps.parquet'", "--query: not one statement"),
        ("", "--query: not one statement"),
    ],
)
def test_a_query_that_reads_other_files_or_writes_any_is_refused_in_one_line(sql, says, places, capsys):
    before = [file.read_bytes() for file in sorted(places[1].iterdir())]
    assert main(["list", "--from", str(places[1]), "--query", sql.format(store=places[1].resolve())]) == 2
    assert capsys.readouterr().err.startswith(f"tprimat list: {says}")
    assert [file.read_bytes() for file in sorted(places[1].iterdir())] == before


def test_a_folder_that_is_no_store_is_refused(tmp_path, capsys):
    assert main(["list", "--from", str(tmp_path)]) == 2
    assert "no results.parquet in it; write it with tprimat export" in capsys.readouterr().err


def test_folders_without_results_are_refused_in_one_line_and_nothing_is_left(tmp_path, capsys):
    for folder, says in (("none", "no such folder"), (".", "no benchmark results")):
        assert main(["export", str(tmp_path / folder), "--output", str(tmp_path / "new" / "store")]) == 2
        assert says in capsys.readouterr().err
    gc.collect()  # pytest fails where a writer of Parquet is closed after its file
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_remedy(places, tmp_path, monkeypatch, capsys):
    folder, store = places
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main(["export", str(folder), "--output", str(tmp_path / "store")]) == 2
    assert main(["list", "--from", str(store)]) == 2
    exported, listed = capsys.readouterr().err.splitlines()
    assert (exported.endswith("pip install pyarrow"), listed.endswith("pip install duckdb")) == (True, True)
    assert not (tmp_path / "store").exists()
