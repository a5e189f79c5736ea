"""Series files: named by their content, checked when they are read, never another result's."""

import json
import random
import subprocess
import sys

import pytest
from test_store import result

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.storage import series, store
from tensorprimat.system import atomic


@pytest.fixture(autouse=True)
def _short_series(monkeypatch):
    monkeypatch.setattr(store, "INLINE_STEPS", 3)


def document(path):
    return json.loads(path.read_text())


def test_a_series_file_is_named_after_its_content_and_its_hash_is_in_the_json(tmp_path):
    path = store.write(result(rows=5), tmp_path / "a.json")
    stated = document(path)
    file = tmp_path / stated["series_file"]
    assert stated["series_file"] == f"series_{stated['series_sha256'][:16]}.npz"
    assert series.is_whole(file, stated["series_sha256"])
    assert store.load(path).steps == result(rows=5).steps


def test_the_content_of_a_series_file_in_a_cycle_of_objects_is_freed_without_a_message():
    code = """
import gc
from tensorprimat.storage import series
from tensorprimat.core.steps import Step, Steps
cycle = [series.to_bytes(Steps.of([Step(index=1, seconds=0.5)]))]
cycle.append(cycle)
del cycle
gc.collect()
"""
    freed = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=False)
    assert (freed.returncode, freed.stderr) == (0, "")


def test_an_extract_of_another_log_never_changes_the_content_of_an_older_file(tmp_path):
    for stamp, seconds in (("s1", 1.0), ("s2", 3.0), ("s3", 1.0)):
        store.save(result(rows=5, seconds=seconds), tmp_path, stamp=stamp)
    kept = {
        path.stem[-2:]: store.load(path).performance_metrics.avg_step_time_seconds
        for path in (tmp_path / "history").glob("*.json")
    }
    assert kept == {"s1": 1.0, "s2": 3.0, "s3": 1.0}
    assert len(list(tmp_path.glob("series_*.npz"))) == 1, "what no JSON names any more has gone"


def test_a_kill_between_the_two_writes_leaves_the_old_result_whole(tmp_path, monkeypatch):
    path = store.write(result(rows=5, seconds=1.0), tmp_path / "a.json")
    write = atomic.write_atomically

    def killed(target, content):
        if target.suffix == ".json":
            raise KeyboardInterrupt
        write(target, content)

    monkeypatch.setattr(atomic, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        store.write(result(rows=5, seconds=3.0), path)
    assert store.load(path).performance_metrics.avg_step_time_seconds == 1.0


def damaged(content, random_):
    """Yield variants of a file as copies go wrong: cut, holes, changed bytes, another file."""
    yield b""
    for part in (1, 10, len(content) // 2, len(content) - 1):
        yield content[:part]
    yield b"\0" * len(content)
    yield content[::-1]
    yield content + content
    for _ in range(30):
        changed = bytearray(content)
        for _ in range(random_.choice((1, 4, 40))):
            changed[random_.randrange(len(changed))] = random_.randrange(256)
        yield bytes(changed)


def test_a_damaged_series_file_is_refused_with_the_reason(tmp_path):
    path = store.write(result(rows=5), tmp_path / "a.json")
    file = tmp_path / document(path)["series_file"]
    content = file.read_bytes()
    for variant in damaged(content, random.Random(7)):
        file.write_bytes(variant)
        assert variant != content
        assert loads_or_refuses(path) == "refused"


def loads_or_refuses(path):
    try:
        return store.load(path).performance_metrics.total_time_seconds
    except InputError as error:
        printed = str(error)
    return (
        "refused"
        if "\n" not in printed and ("series" in printed or "raw_step" in printed or "step_m" in printed)
        else printed
    )


def test_compare_goes_on_without_a_result_whose_series_file_is_damaged(tmp_path, capsys):
    paths = [store.write(result(rows=9, seconds=0.5 + n / 10), tmp_path / f"{n}.json") for n in range(3)]
    (tmp_path / document(paths[1])["series_file"]).write_bytes(b"PK\3\4")
    out = ["--no-plot", "--output-dir", str(tmp_path / "out")]
    assert main(["compare", *map(str, paths), *out]) == 0
    assert capsys.readouterr().err.count("is damaged or of another result") == 1
    assert main(["compare", str(tmp_path), *out]) == 0
    assert main(["compare", str(paths[0]), str(paths[1]), *out]) == 2, "one result is nothing to compare"


def test_a_series_file_without_its_hash_in_the_json_is_refused(tmp_path):
    path = store.write(result(rows=5), tmp_path / "a.json")
    content = document(path)
    del content["series_sha256"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="has no hash"):
        store.load(path)


def test_a_series_file_that_claims_more_than_it_holds_is_refused(tmp_path):
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("seconds.npy", b"\0" * 10**7)
    path = store.write(result(rows=5), tmp_path / "a.json")
    content = {**document(path), "series_file": "a.npz", "series_sha256": series.sha256_of(packed.getvalue())}
    path.write_text(json.dumps(content))
    path.with_suffix(".npz").write_bytes(packed.getvalue())
    with pytest.raises(InputError, match="claims to hold"):
        store.load(path)
