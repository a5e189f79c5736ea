"""Paths that the file system refuses: every command that takes one says so in one line, and exits with 1 or 2."""

import ctypes
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import plausible
import pytest
import test_mlperf_rounds as rounds
from each import in_each
from job_logs import JOBS, Job
from test_passes import spec

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.logs import discover
from tensorprimat.logs.text import Log
from tensorprimat.mlperf import library as mlperf_library
from tensorprimat.storage import store
from tensorprimat.storage.micro_result import MicroResult
from tensorprimat.system import atomic, regular

TOO_LONG = {
    "a name of 300 characters": "x" * 295 + ".json",
    "a path of 6,000 characters": "/".join(["folder" * 30] * 33),
}
PATHS = {
    **TOO_LONG,
    "a path below a file": "train.log/a.json",
    "a link to itself": "loop",
    "a path below a link to itself": "loop/a.json",
    "a link that leads nowhere": "nowhere",
}
TO_READ = {**PATHS, "a pipe": "pipe.json"}
TO_WRITE = {
    **PATHS,
    "a file in the place of a folder": "taken",
    "a path below a file, without an ending": "train.log/a",
    "a name of 300 characters in a new folder": "new/" + "x" * 300,
    "a path below a link that leads nowhere": "nowhere/a",
    "a path below a device": "/dev/null/a.json",
    "a file in a home folder that the shell left as ~": "~/a.json",
    "a folder in a home folder that the shell left as ~": "~/a",
}
READING = (
    *("extract P", "extract --follow P", "extract train.log --shape P", "compare --no-plot P"),
    *(
        "compare --no-plot P h100.json", "compare --no-plot a=P b=h100.json", "compare --no-plot a=h100.json b=P",
        "enhance P", "enhance h100.json P",
    ),
    *("compare --no-plot h100.json mi300x.json --shape P", "metrics P", "history P", "aggregate P", "verify P"),
    *("metrics h100.json --shape P", "verify results --logs P", "primus P", "passes --device cpu --data P"),
    *("gate --candidate P --baseline h100.json", "gate --candidate h100.json --baseline P"),
    *("aggregate cells --roofline r.png --results P", "mlperf import P --round v9.9 --output new.jsonl"),
    *("mlperf list --library P", "project --library P --benchmark llama31_8b --gpus 16", "project --from P --gpus 16"),
    *("run --model P", "convert --model llama --source P --output nemo --dry-run"),
)  # fmt: skip
"""Command lines that read the path P."""
WRITING = (
    *("extract none --output P", "extract none --follow --output P", "analyze none --save --output P"),
    *("compare none --no-plot --output-dir P", "enhance none --output-dir P", "history none --output-dir P"),
    *("aggregate none --output P", "aggregate none --csv P/a", "aggregate none --html P/a"),
    *("aggregate none --plot P/a", "aggregate none --roofline P/a", "mlperf import none --round v9.9 --output P/a"),
    *("mlperf compare B200 --library none --plot P/a", "demo --no-open --output-dir P"),
    *("run --model llama --output P", "run --model llama --dry-run --output P", "pretrain --dry-run --output P"),
    *("sweep --device cpu --output P", "sweep --device cpu --dry-run --output P", "warmup --device cpu --output P"),
    *("passes --device cpu --data none --output P", "preflight --quick --device cpu --output P"),
    *("convert --model llama --source none --output P", "convert --model llama --source none --dry-run --output P"),
)
"""Command lines that would write to the path P. They read `none`, which is missing: the output is checked first."""


def each_line_and_each_path(lines: Sequence[str], paths: dict[str, str]) -> list[tuple[str, str]]:
    """Return every command line with one of the paths, and one command line with every path."""
    return [*zip(lines, cycle(paths.values()), strict=False), *((lines[0], path) for path in paths.values())]


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something for every command to read; no test changes it."""
    folder = tmp_path_factory.mktemp("seed")
    for name in ("h100", "mi300x"):
        (folder / f"{name}.json").write_text(store.to_json(plausible.result(name, runs=2)))
    (folder / "train.log").write_text("\n".join(JOBS["megatron"](Job())) + "\n")
    (folder / "taken").touch()
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("nothing")
    os.mkfifo(folder / "pipe.json")
    for name in ("results", "cells"):
        (folder / name).mkdir()
    shutil.copy(folder / "h100.json", folder / "results")
    values = spec().model_dump(exclude={"forward_only", "num_parameters"})
    cell = MicroResult(**values, trial_times_ms=(10.0, 12.0), mean_time_ms=11.0)
    (folder / "cells/bench_a.json").write_text(cell.model_dump_json())
    rounds.write(folder / "round", rounds.TEN)
    library = mlperf_library.bundled()
    (folder / "library.jsonl").write_text(mlperf_library.dump(replace(library, entries=library.entries[:3])))
    return folder


@pytest.fixture(autouse=True)
def folder(seed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run a test in the folder, and fail it if it adds or removes a file there or in a folder of it."""
    monkeypatch.chdir(seed)
    for name in ("PRIMUS_PATH", "LLAMA_LOG", "LLAMA_CONFIG", "TPRIMAT_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    before = tree(seed)
    yield seed
    assert tree(seed) == before


@pytest.fixture
def own(tmp_path: Path, seed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder that the test may change."""
    shutil.rmtree(tmp_path)
    shutil.copytree(seed, tmp_path, symlinks=True, ignore=shutil.ignore_patterns("pipe.json"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder: Path) -> list[str]:
    """Return the paths of all files and folders below a folder."""
    return sorted(os.path.join(root, name) for root, folders, files in os.walk(folder) for name in (*folders, *files))


def refused(line: str, path: str, capsys: pytest.CaptureFixture[str], run: Callable[[list[str]], int] = main) -> str:
    """Run a command line that must be refused; return the one line that it prints, without the command."""
    words = [re.sub(r"(?<![A-Z])P(?=$|/)", lambda _: path, word) for word in line.split()]
    with within(30):
        code = run(words)
    printed = capsys.readouterr()
    talk = [text for text in printed.err.splitlines() if not ("--data" in words and text.startswith("[1/3] "))]
    assert (code, printed.out, len(talk)) == (2, "", 1), talk
    assert "report it" not in talk[0]
    return talk[0].removeprefix(f"tprimat {words[0]}: ")


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Let a test fail that waits for the other end of a pipe."""

    def give_up(*_: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main_without_rights(words: list[str]) -> int:
    """Run a command in a thread without root's rights to read and write everything, which a thread has for itself.

    The thread has one core, so that the command forks no process: a fork of a process with other threads may never end.
    """

    def limited() -> int:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        if os.geteuid() == 0:
            header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3, this thread
            libc = ctypes.CDLL(None)
            assert libc.capget(header, sets) == 0
            for place in (0, 1):  # effective, and permitted, which os.access asks about
                sets[place] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capabilities(7)
            assert libc.capset(header, sets) == 0
        return main(words)

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(limited).result()


@in_each("line, path", each_line_and_each_path(READING, TO_READ))
def test_a_path_that_cannot_be_read_is_refused_in_one_line_that_names_it(
    line: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(line, path, capsys)
    assert re.match(rf"(--[a-z]+ )?{re.escape(path)}(/config\.json)?: \S", said), said


@in_each("line, path", each_line_and_each_path(WRITING, TO_WRITE))
def test_a_path_that_cannot_be_written_is_refused_before_any_work(
    line: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(line, path, capsys)
    flag, word = line.split()[-2:]
    assert said.startswith(f"{flag} {word.replace('P', path, 1)}: "), said
    assert re.search(r"; (choose another (name|folder)|name a |a NeMo checkpoint is a folder)", said), said


@in_each("path", PATHS.values())
def test_a_survey_is_refused_in_one_line_for_a_place_that_cannot_be_searched(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("analyze P", "analyze train.log P", "analyze P --save"):
        assert refused(line, path, capsys).startswith(f"{path}: ")


def test_a_survey_lists_a_pipe_with_the_reason_and_reads_the_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    with within(30):
        assert main(["analyze", "pipe.json", "train.log", "--json"]) == 0
    found = {one["file"]: one["problem"] for one in json.loads(capsys.readouterr().out)["files"]}
    assert found == {"pipe.json": "a pipe or a device, not a file", "train.log": None}


@in_each("line", [line for line in (*READING, *WRITING) if re.search(r"(?<![=P]) P$", line)])
def test_an_empty_path_is_not_the_current_folder(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, _, flag = line.removesuffix(" P").rpartition(" ")
    if flag == "--shape":
        assert refused(line, "", capsys) == "--shape is empty"
    else:
        name = flag if flag.startswith("--") and flag not in ("--follow", "--no-plot") else "an argument"
        assert refused(line, "", capsys) == f"{name}: the path is empty; name one (is a variable of the shell unset?)"
    if flag.startswith("--output"):
        assert main([*before.split(), f"{flag}="]) == 2
        assert f"{flag}: the path is empty" in capsys.readouterr().err


@in_each("line", ["extract P", "compare --no-plot P", "history P", "verify P", "sweep --output P/b"])
def test_a_line_break_in_a_name_does_not_break_the_line_of_an_error(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "train.log/a b" in refused(line, "train.log/a\nb", capsys)


@pytest.mark.parametrize("path", [*TO_READ.values(), "a\0b"])
@pytest.mark.usefixtures("own")
def test_a_log_is_extracted_although_another_named_path_cannot_be_read(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe.json")
    with within(30):
        assert main(["extract", "train.log", path, "--output", "out"]) == 2
    assert len(list(Path("out").glob("*.json"))) == 1
    assert capsys.readouterr().err.startswith(f"{path.replace(chr(0), chr(0xFFFD))}: "[:100])


@pytest.mark.usefixtures("own")
def test_other_files_are_read_although_one_lacks_the_permission(capsys: pytest.CaptureFixture[str]) -> None:
    run = main_without_rights
    shutil.copy("train.log", "locked.log")
    shutil.copytree("results", "locked")
    shutil.copytree("results", "results/locked")
    for name in ("locked.log", "locked", "results/locked"):
        os.chmod(name, 0)
    denied = "cannot be read: Permission denied"
    assert run(["extract", "train.log", "locked.log", "locked", "--output", "out"]) == 2
    assert capsys.readouterr().err.startswith(f"locked.log: {denied}\nlocked: {denied}\n")
    assert len(list(Path("out").glob("*.json"))) == 1
    assert run(["history", "h100.json", "mi300x.json", "locked.log", "--no-plot", "--output-dir", "out"]) == 0
    assert f"left out: locked.log: {denied}" in capsys.readouterr().err
    assert run(["analyze", "train.log", "locked.log", "--json"]) == 0
    problems = [one["problem"] for one in json.loads(capsys.readouterr().out)["files"]]
    assert problems == [None, "Permission denied"]
    assert run(["verify", "results"]) == 1
    assert f"differs results/locked: {denied}" in capsys.readouterr().out
    for line in ("compare P h100.json", "enhance P", "verify P", "aggregate P", "history P"):
        assert refused(line, "locked", capsys, run) == f"locked: {denied}"
    assert refused("gate --candidate P --baseline h100.json", "locked", capsys, run) == f"locked: {denied}"
    for name in ("locked", "results/locked"):
        os.chmod(name, 0o755)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("line", WRITING)
def test_a_folder_without_permission_to_write_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("closed").mkdir(0o555)
    run = main_without_rights
    if line.endswith(" P"):
        assert "closed: no permission to write; choose another folder" in refused(line, "closed", capsys, run)
    line = line.replace("P/a", "P")
    assert "closed/b: no permission to write in closed; choose another " in refused(line, "closed/b", capsys, run)
    assert tree(Path("closed")) == []


def test_a_full_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    assert main(["aggregate", "cells", "--csv", "/dev/full"]) == 1
    said = "/dev/full: No space left on device; make room there, or write to another disk"
    assert capsys.readouterr().err == f"tprimat aggregate: {said}\n"
    assert main(["aggregate", "cells", "--csv", "/dev/null"]) == 0


def test_a_file_may_have_the_longest_name_in_any_script(tmp_path: Path) -> None:
    for name in ("x" * 255, "漢" * 85, "é" * 127 + "x"):
        assert atomic.refused_file(tmp_path / name) is None
        atomic.write_atomically(tmp_path / name, name)
        assert (tmp_path / name).read_text() == name
        assert atomic.refused_file(tmp_path / f"{name}x") == "cannot be written (File name too long)"
    assert len(tree(tmp_path)) == 3


def test_a_dry_run_makes_no_folder() -> None:
    for output in ("new/deep", "new/a.json"):
        assert main(["run", "--model", "llama", "--engine", "torch", "--dry-run", "--output", output]) == 0
        assert main(["sweep", "--device", "cpu", "--dry-run", "--output", output]) == 0
    assert main(["convert", "--model", "llama", "--source", "hf://a/b", "--output", "new/a", "--dry-run"]) == 0


@pytest.mark.usefixtures("own")
def test_a_checkpoint_that_could_not_get_its_name_is_refused_before_the_conversion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "convert --model llama --source hf://a/b --output P"
    Path("link").symlink_to("results")
    assert refused(line, "results", capsys) == "--output results: exists; give --overwrite or another folder"
    assert refused(f"{line} --overwrite --dry-run", "train.log", capsys).startswith("--output train.log: a file, not a")
    assert "a link, which a checkpoint cannot replace" in refused(f"{line} --overwrite --dry-run", "link", capsys)
    assert "File name too long" in refused(f"{line} --dry-run", "x" * 250, capsys)  # of the folder before it is renamed


def test_a_name_that_is_not_utf_8_is_refused_where_the_description_of_a_run_contains_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = os.fsdecode(b"a\xffb")
    assert "the name is not UTF-8" in refused("run --model llama --output P", name, capsys)
    assert "the name is not UTF-8" in refused("sweep --device cpu --data P", name, capsys)


@pytest.mark.parametrize("path", TO_READ.values(), ids=TO_READ)
def test_a_variable_that_names_no_readable_log_is_named_in_the_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_LOG", path)
    with pytest.raises(InputError, match="LLAMA_LOG names it, but no file can be read there; correct or unset LLAMA_"):
        discover.find_logs(["llama"])


@pytest.mark.parametrize("path", TO_READ.values(), ids=TO_READ)
def test_a_folder_of_primus_that_cannot_be_searched_has_no_logs(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIMUS_PATH", path)
    assert Path(path) not in discover.searched_folders()
    assert main(["primus"]) == 2
    assert f"PRIMUS_PATH={path}: no such folder" in capsys.readouterr().err


@in_each("path", [*PATHS.values(), "a\0b"])
@pytest.mark.usefixtures("own")
def test_a_result_whose_log_has_an_impossible_path_is_verified(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(Path("h100.json").read_text())
    document["provenance"]["sources"] = [{"file": f"/{path}", "sha256": "0" * 64, "size_bytes": 5}]
    Path("results/h100.json").write_text(json.dumps(document))
    assert main(["verify", "results", "--all"]) == 0
    assert "is not here" in capsys.readouterr().out


@pytest.mark.usefixtures("own")
def test_a_link_to_itself_hides_no_other_file_of_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.log").rename("training_llama.log")
    Path("latest.log").symlink_to("latest.log")
    assert discover.find_logs(["llama"], folders=[Path()])["llama"].path == Path("training_llama.log")
    assert main(["extract", "training_llama.log", "--output", "results/b.json"]) == 0
    Path("training_llama.log").rename("renamed.log")
    assert main(["verify", "results", "--all"]) == 0
    assert "(now renamed.log)" in capsys.readouterr().out


@in_each("path", [*PATHS.values(), "a\0b"])
def test_every_property_of_a_log_raises_only_input_errors(path: str) -> None:
    log = Log(Path(path))
    for read in (lambda: next(log.numbered_blocks()), lambda: log.is_binary, lambda: log.size_bytes):
        with pytest.raises(InputError):
            read()
    assert regular.file_state(Path(path)) == ()
    assert regular.refused_listing(Path(path))
