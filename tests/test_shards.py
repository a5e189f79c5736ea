"""`tprimat analyze --shard` and `--merge`: parts of a survey, made anywhere, give what one machine gives."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from drawn import examples
from each import in_each
from hypothesis import given, strategies
from test_analyze import ROOT, analyze, litgpt_log

from tensorprimat import logs
from tensorprimat.core.errors import UsageError
from tensorprimat.session import shards
from tensorprimat.storage import store

SHARED = ROOT.parent / "shared"
FACTS = ("--gpu", "H100", "--precision", "again=bf16", "--num-gpus", "8")


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A folder with logs of one benchmark, results, profiles, problems and other files, as the working directory."""
    openpyxl = pytest.importorskip("openpyxl")
    monkeypatch.chdir(tmp_path)
    for folder in ("amd-logs/llama/again", "nvi-logs/llama3_1_8b_fp8"):
        (tmp_path / folder).mkdir(parents=True)
    for name, seconds in {
        "amd-logs/llama/a.log": 0.5123,
        "amd-logs/llama/again/b.log": 0.5149,
        "nvi-logs/llama3_1_8b_fp8/c.log": 0.7,
        os.fsdecode(b"nvi-logs/caf\xe9.log"): 1 / 3,
    }.items():
        (tmp_path / name).write_text(litgpt_log(seconds))
    (tmp_path / "nvi-logs/copy.log").write_text(litgpt_log(0.5123))
    (tmp_path / "nvi-logs/notes.md").write_text("# what we did\n")
    (tmp_path / "nvi-logs/torn.log.gz").write_bytes(b"\x1f\x8b\x08torn")
    (tmp_path / "amd-logs/broken").symlink_to("nowhere")
    for name, idle in (("h100", 10 / 3), ("mi300x", 20.0)):
        book = openpyxl.Workbook()
        book.active.title = "gpu_timeline"
        for row in (("type", "time ms"), ("total_time", 100.0), ("idle_time", idle)):
            book.active.append(row)
        book.save(tmp_path / f"amd-logs/{name}_rank0.xlsx")
    store.save(logs.read(tmp_path / "amd-logs/llama/a.log"), tmp_path / "amd-logs/results", stamp="x")
    return tmp_path


def write_parts(capsys, number: int, *arguments: str, order=(), to: str = "parts") -> list[Path]:
    """Write all parts of a survey, each as a call of its own; return their paths."""
    for part in order or range(1, number + 1):
        code, out, err = analyze(capsys, *arguments, "--shard", f"{part}/{number}", "--output", to)
        assert (code, out, err) == (0, "", f"wrote {to}/part-{part}-of-{number}.jsonl\n")
    return [Path(to) / f"part-{part}-of-{number}.jsonl" for part in range(1, number + 1)]


def everything(capsys, *arguments: str, to: Path) -> list:
    """Return what a survey prints and writes in each of its forms; files in history are named by the moment."""
    found: list = [analyze(capsys, *arguments, *form) for form in ((), ("--csv",), ("--json",))]
    for ending in (".json", ".csv", ".md"):
        analyze(capsys, *arguments, "--output", f"{to}{ending}")
        found.append(Path(f"{to}{ending}").read_bytes())
    code, out, err = analyze(capsys, *arguments, "--save", "--output", str(to))
    files = {str(path): path.read_bytes() for path in sorted(to.rglob("*.json"))}
    plain = [re.sub(r"_\d{8}_\d{6}_\d{6}", "", text.replace(str(to), "")) for text in (err, *files)]
    return [*found, code, out, *plain, *files.values()]


@pytest.mark.usefixtures("old")
@examples(2)
@given(number=strategies.integers(1, 15), facts=strategies.booleans(), data=strategies.data())
def test_parts_in_any_number_and_order_give_the_bytes_of_one_machine(tmp_path_factory, capsys, number, facts, data):
    new = tmp_path_factory.mktemp("example")
    folders = ("amd-logs", "nvi-logs", *(FACTS if facts else ()))
    order = data.draw(strategies.permutations(range(1, number + 1)))
    parts = write_parts(capsys, number, *folders, "--save", order=order, to=str(new / "parts"))
    named = data.draw(strategies.sampled_from([[new / "parts"], parts, parts[::-1]]))
    merged = everything(capsys, "--merge", *map(str, named), to=new / "merged")
    assert merged == everything(capsys, *folders, to=new / "one")
    assert len(merged) > 12, "result files were compared"


@pytest.mark.skipif(not SHARED.is_dir(), reason="real logs are in ../shared, which is absent here")
def test_parts_of_real_logs_give_the_bytes_of_one_machine(tmp_path, capsys):
    small = ("maxtext", "messy", "modded_nanogpt", "nanochat", "torchtitan")
    folders = [str(SHARED / "excel"), *(str(SHARED / "logs" / name) for name in small)]
    write_parts(capsys, 3, *folders, "--save", to=str(tmp_path / "parts"))
    printed, files = [], []
    for arguments in (("--merge", str(tmp_path / "parts")), folders):
        to = tmp_path / str(len(printed))
        code, out, _ = analyze(capsys, *arguments, "--json", "--save", "--output", str(to))
        printed.append((code, {**json.loads(out), "saved": None}))
        files.append({path.name: path.read_bytes() for path in sorted(to.glob("*.json"))})
    assert printed[0] == printed[1]
    assert files[0] == files[1]
    assert len(files[0]) > 5


def test_a_part_needs_neither_the_other_parts_nor_the_logs_when_it_is_merged(old, capsys):
    alone = analyze(capsys, "amd-logs", "nvi-logs", "--json")
    write_parts(capsys, 2, "amd-logs", "nvi-logs")
    for folder in ("amd-logs", "nvi-logs"):
        shutil.rmtree(old / folder)
    assert analyze(capsys, "--merge", "parts", "--json") == alone


@pytest.mark.usefixtures("old")
def test_parts_within_the_folder_of_a_survey_are_no_items_of_it(capsys):
    before = analyze(capsys, "amd-logs", "nvi-logs")
    write_parts(capsys, 3, "amd-logs", "nvi-logs", to="nvi-logs")
    assert analyze(capsys, "--merge", "nvi-logs") == analyze(capsys, "amd-logs", "nvi-logs") == before


def test_a_killed_shard_leaves_no_part(old, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "_unrounded", interrupted)
    assert analyze(capsys, "amd-logs", "nvi-logs", "--shard", "1/1", "--output", "parts")[0] == 1
    assert [*(old / "parts").iterdir()] == []


def rewritten(path: Path, **header) -> None:
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((json.dumps({**json.loads(first), **header}).encode() + b"\n", *rest)))


def damaged(path: Path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.usefixtures("old")
@in_each(
    ("damage", "says"),
    [
        (lambda parts: parts[1].unlink(), "parts: part 2 of 4 is missing; write it with --shard 2/4"),
        (lambda parts: [parts[place].unlink() for place in (0, 2, 3)], "part 1, 3, 4 of 4 is missing"),
        (lambda parts: shutil.copy(parts[0], "parts/part-9-of-9.jsonl"), "9-of-9.jsonl: part 1 of 4, as is parts/"),
        (lambda parts: rewritten(parts[2], parts=5), "part-3-of-4.jsonl: not of the survey of parts/part-1-of-4.jsonl: "
         "another number of parts"),
        (lambda parts: rewritten(parts[2], listing="0"), "other files, or other sizes of files; leave one out"),
        (lambda parts: rewritten(parts[2], stated=[["gpu", None, "H100"]]), "other stated facts"),
        (lambda parts: rewritten(parts[2], save=True), "only one was written with --save"),
        (lambda parts: [rewritten(part, version="0.0.9") for part in parts], "4.jsonl: written by version 0.0.9"),
        (lambda parts: rewritten(parts[0], tensorprimat_part=2), "not a part that analyze --shard of this version"),
        (lambda parts: damaged(parts[1], lambda text: text.replace(b'"version"', b'"versiom"', 1)), "not a part that"),
        (lambda parts: damaged(parts[1], lambda text: text.replace(b'"amd-logs"', b'"nvi-logs"', 1)), "cut or altered"),
        (lambda parts: damaged(parts[1], lambda text: text[:-1]), "part-2-of-4.jsonl: cut or altered"),
        (lambda parts: damaged(parts[1], lambda text: text[: len(text) // 2]), "part-2-of-4.jsonl: cut or altered"),
        (lambda parts: damaged(parts[1], lambda text: text[:20]), "part-2-of-4.jsonl: not a part"),
        (lambda parts: damaged(parts[1], lambda _: b""), "part-2-of-4.jsonl: not a part"),
        (lambda parts: damaged(parts[1], lambda _: b"\xff[" * 9), "part-2-of-4.jsonl: not a part"),
        (lambda parts: damaged(parts[1], lambda text: text.replace(b"null", b"1234", 1)), "2-of-4.jsonl: cut or al"),
        (lambda parts: damaged(parts[1], lambda text: text + text.splitlines()[-1] + b"\n"), "2-of-4.jsonl: cut or"),
        (lambda parts: [part.unlink() for part in parts], "parts: no part of a survey is here"),
        (lambda parts: (parts[0].unlink(), os.mkfifo(parts[0])), "1-of-4.jsonl: is a pipe or a device"),
    ],
)  # fmt: skip
def test_parts_that_are_not_those_of_one_survey_are_refused_in_one_line(capsys, damage, says):
    shutil.rmtree("parts", ignore_errors=True)
    damage(write_parts(capsys, 4, "amd-logs", "nvi-logs"))
    code, out, err = analyze(capsys, "--merge", "parts")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_part_that_was_written_after_a_file_had_grown_is_refused(old, capsys):
    write_parts(capsys, 2, "amd-logs", "nvi-logs", order=[1])
    with (old / "nvi-logs/notes.md").open("a") as file:
        file.write("more\n")
    write_parts(capsys, 2, "amd-logs", "nvi-logs", order=[2])
    code, _, err = analyze(capsys, "--merge", "parts")
    assert (code, "other files, or other sizes of files" in err) == (2, True)


@pytest.mark.usefixtures("old")
@in_each(
    ("arguments", "says"),
    [
        (("amd-logs", "--shard", "0/4"), "--shard 0/4: must be I/N, with I from 1 to N, such as 3/8"),
        (("amd-logs", "--shard", "5/4"), "--shard 5/4: must be I/N"),
        (("amd-logs", "--shard", "1/2/3"), "--shard 1/2/3: must be I/N"),
        (("amd-logs", "--shard", "-1/4"), "--shard -1/4: must be I/N"),
        (("amd-logs", "--shard", "1/99999999999"), "--shard 1/99999999999: must be I/N"),
        (("amd-logs", "--shard", "slurm"), "--shard slurm: this is no task of a job array; use sbatch --array=1-N"),
        (("amd-logs", "--shard", "1/2", "--json"), "--shard and --json: choose one"),
        (("amd-logs", "--shard", "1/2", "--merge"), "--shard and --merge: choose one"),
        (("amd-logs", "--shard", "1/2", "--output", "x.csv"), "--output x.csv: --shard writes a part; name a folder"),
        (("amd-logs", "--shard", "1/2", "--output", "/proc/none"), "--output /proc/none"),
        (("nowhere", "--shard", "1/2"), "nowhere: no such folder"),
        (("--merge",), "--merge: name the parts, or their folder"),
        (("--merge", "nowhere"), "nowhere: no such file"),
        (("--merge", "parts", "--gpu", "H100"), "--gpu H100: not with --merge"),
        (("--merge", "parts", "--save"), "--save: the parts contain no steps; write them with --shard I/N --save"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_in_one_line(capsys, arguments, says):
    write_parts(capsys, 1, "amd-logs")
    code, out, err = analyze(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.usefixtures("old")
def test_a_fact_for_a_side_that_no_part_read_is_refused_when_they_are_merged(capsys):
    write_parts(capsys, 2, "amd-logs", "nvi-logs", "--gpu", "nobody=H100")
    code, _, err = analyze(capsys, "--merge", "parts")
    assert code == 2
    assert "--gpu nobody=H100: nothing that was read is called 'nobody'" in err


def test_folders_without_training_data_end_with_the_same_complaint(old, capsys):
    (old / "empty").mkdir()
    write_parts(capsys, 2, "empty")
    assert analyze(capsys, "--merge", "parts") == analyze(capsys, "empty")


@in_each(
    ("array", "shard"),
    [
        ({"ID": "1", "MIN": "1", "STEP": "1", "COUNT": "4"}, (1, 4)),
        ({"ID": "3", "MIN": "0", "STEP": "1", "COUNT": "4"}, (4, 4)),
        ({"ID": "9", "MIN": "5", "STEP": "2", "COUNT": "3"}, (3, 3)),
        ({"ID": "7", "MIN": "1", "STEP": "1", "COUNT": "3"}, None),  # --array=1,3,7
        ({"ID": "2", "MIN": "1", "STEP": "2", "COUNT": "3"}, None),
    ],
)
def test_a_task_of_a_slurm_array_knows_its_part(array, shard):
    environment = {f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}
    if shard is None:
        with pytest.raises(UsageError, match=r"--shard slurm \(task \d of 3\): must be I/N"):
            shards.typed_shard("slurm", environment)
    else:
        assert shards.typed_shard("slurm", environment) == shard
