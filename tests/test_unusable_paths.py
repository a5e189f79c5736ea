"""Paths that the file system refuses: every command that takes one says so in one line, and exits with 1 or 2."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import plausible
import pytest
import test_mlperf_rounds as rounds
from job_logs import JOBS, Job
from test_passes import spec

from tensorprimat.cli import main
from tensorprimat.core import mlperf_library, store
from tensorprimat.core.errors import InputError
from tensorprimat.core.micro_result import MicroResult
from tensorprimat.logs import discover
from tensorprimat.logs.text import Log

PATHS = {
    "a name of 300 characters": "x" * 300,
    "a name of 300 characters with an ending": "x" * 295 + ".json",
    "a path of 6,000 characters": "/".join(["folder" * 30] * 33),
    "a path below a file": "train.log/a",
    "a path below a file with an ending": "train.log/a.json",
    "a link to itself": "loop",
    "a path below a link to itself": "loop/a.json",
    "a name with a null character": "a\0b.json",
}
READING = (
    *("extract P", "extract --log-file P", "extract --follow P", "extract train.log --shape P", "compare P"),
    *("compare P h100.json", "compare h100.json P", "compare a=P b=h100.json", "compare a=h100.json b=P"),
    *("compare h100.json mi300x.json --shape P", "enhance P", "enhance h100.json P", "metrics P", "history P"),
    *("metrics h100.json --shape P", "analyze P", "analyze train.log P", "aggregate P", "verify P", "primus P"),
    *("verify results --logs P", "gate --candidate P --baseline h100.json", "gate --candidate h100.json --baseline P"),
    *("aggregate cells --roofline r.png --results P", "mlperf import P --round v9.9 --output new.jsonl"),
    *("mlperf list --library P", "project --library P --benchmark llama31_8b --gpus 16", "project --from P --gpus 16"),
    *("run --model P", "convert --model llama --source P --output nemo --dry-run", "passes --device cpu --data P"),
)
"""Command lines that read the path P."""
WRITING = (
    *("extract train.log --output P", "compare h100.json mi300x.json --no-plot --output-dir P"),
    *("enhance h100.json mi300x.json --no-plot --output-dir P", "history results --output-dir P"),
    *("aggregate cells --output P", "aggregate cells --csv P/a.csv", "aggregate cells --html P/a.html"),
    *("mlperf import round --round v9.9 --output P/a.jsonl", "demo --no-open --output-dir P"),
    *("run --model llama --output P", "pretrain --model llama --output P", "sweep --device cpu --output P"),
    *("convert --model llama --source hf://a/b --output P", "warmup --device cpu --output P"),
    *("preflight --quick --device cpu --output P", "passes --device cpu --output P"),
)
"""Command lines that would write to the path P."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with something for every command to read."""
    monkeypatch.chdir(tmp_path)
    for name in ("PRIMUS_PATH", "LLAMA_LOG", "LLAMA_CONFIG", "TPRIMAT_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("h100", "mi300x"):
        Path(f"{name}.json").write_text(store.to_json(plausible.result(name, runs=2)))
    Path("train.log").write_text("\n".join(JOBS["megatron"](Job())) + "\n")
    Path("loop").symlink_to("loop")
    for name in ("results", "cells"):
        Path(name).mkdir()
    Path("results/h100.json").write_text(Path("h100.json").read_text())
    values = spec().model_dump(exclude={"forward_only", "num_parameters"})
    cell = MicroResult(**values, trial_times_ms=(10.0, 12.0), mean_time_ms=11.0)
    Path("cells/bench_a.json").write_text(cell.model_dump_json())
    rounds.write(tmp_path / "round", rounds.TEN)
    library = mlperf_library.bundled()
    Path("library.jsonl").write_text(mlperf_library.dump(replace(library, entries=library.entries[:3])))
    return tmp_path


def outcome(line: str, path: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Sequence[str]]:
    """Return the exit code of a command line, and the lines of stderr without those of progress."""
    code = main([re.sub(r"(?<![A-Z])P(?=$|/)", lambda _: path, word) for word in line.split()])
    return code, [text for text in capsys.readouterr().err.splitlines() if not text.startswith("[1/3] ")]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("line", READING)
def test_a_path_that_cannot_be_read_is_refused_in_one_line(
    line: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = outcome(line, path, capsys)
    assert code in (1, 2)
    assert len(printed) == 1, printed
    assert "please report" not in printed[0]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("line", WRITING)
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_trained(
    line: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = outcome(line, path, capsys)
    assert code in (1, 2)
    assert "please report" not in printed[-1]
    assert not [line for line in printed if "Traceback" in line]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_log_is_extracted_although_another_named_path_cannot_be_read(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["extract", "train.log", path, "--output", "out"]) == 2
    assert len(list(Path("out").glob("*.json"))) == 1
    assert capsys.readouterr().err.startswith(path.replace("\0", "\ufffd")[:100])


@pytest.mark.parametrize("path", [path for path in PATHS.values() if "\0" not in path])
def test_a_variable_that_names_no_readable_log_is_named_in_the_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_LOG", path)
    with pytest.raises(InputError, match="LLAMA_LOG names it, but no file can be read there; correct or unset LLAMA_"):
        discover.find_logs(["llama"])


@pytest.mark.parametrize("path", [path for path in PATHS.values() if "\0" not in path])
def test_a_folder_of_primus_that_cannot_be_searched_has_no_logs(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_PATH", path)
    assert Path(path) not in discover.searched_folders()
    assert main(["primus"]) == 2


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_result_whose_log_has_an_impossible_path_is_verified(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(Path("h100.json").read_text())
    document["provenance"]["sources"] = [{"file": f"/{path}", "sha256": "0" * 64, "size_bytes": 5}]
    Path("results/h100.json").write_text(json.dumps(document))
    assert main(["verify", "results", "--all"]) in (0, 1)
    assert "is not here" in capsys.readouterr().out


def test_a_link_to_itself_hides_no_other_file_of_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.log").rename("training_llama.log")
    Path("latest.log").symlink_to("latest.log")
    assert discover.find_logs(["llama"], folders=[Path()])["llama"].path == Path("training_llama.log")
    assert main(["extract", "training_llama.log", "--output", "results/b.json"]) == 0
    Path("training_llama.log").rename("renamed.log")
    assert main(["verify", "results", "--all"]) == 0
    assert "(now renamed.log)" in capsys.readouterr().out


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_every_property_of_a_log_raises_only_input_errors(path: str) -> None:
    for read in (Log(Path(path)).blocks, lambda: Log(Path(path)).is_binary, lambda: Log(Path(path)).size_bytes):
        with pytest.raises(InputError):
            read()
