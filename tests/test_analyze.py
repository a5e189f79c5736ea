"""`tprimat analyze`: every file of old folders is listed with its content, and no file stops the command."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from each import in_each

from tensorprimat import cli, logs
from tensorprimat.logs import paths
from tensorprimat.reports import survey
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]


def litgpt_log(seconds=0.5, name=""):
    arguments = (
        "{'devices': 4, 'train': TrainArgs(global_batch_size=16, micro_batch_size=4, max_seq_length=1024)"
        + (f", 'model_name': '{name}'" if name else "")
        + "}\n"
    )
    return arguments + "".join(
        f"Epoch 1 | iter {step} step {step} | loss train: {9 - step / 10:.3f}, val: n/a |"
        f" iter time: {seconds * 1000:.2f} ms (step) remaining time: 0:12:01\n"
        for step in range(1, 13)
    )


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A folder of old data with a bit of everything, as the working directory."""
    monkeypatch.chdir(tmp_path)
    for folder in ("amd-logs/llama", "nvi-logs/llama3_1_8b_pretrain_fp8"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "log.txt").write_text(litgpt_log())
    return tmp_path


def analyze(capsys, *arguments):
    code = cli.main(["analyze", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def listed(capsys, *arguments):
    _, out, _ = analyze(capsys, "--json", *arguments)
    return {row["file"]: row for row in json.loads(out)["files"]}


@pytest.mark.usefixtures("old")
def test_every_file_comes_with_format_steps_and_rate(capsys):
    code, out, _ = analyze(capsys)
    rows = [line.split() for line in out.splitlines() if "log.txt" in line]
    assert code == 0
    assert [(row[1], row[5], row[6]) for row in rows] == [("litgpt", "12", "8,192")] * 2


@pytest.mark.usefixtures("old")
def test_model_and_precision_of_the_path_are_used_and_marked(capsys):
    rows = listed(capsys)
    fp8 = rows["nvi-logs/llama3_1_8b_pretrain_fp8/log.txt"]
    assert (fp8["model"], fp8["precision"], fp8["from_path"]) == ("llama", "fp8", ["model.name", "precision"])
    assert rows["amd-logs/llama/log.txt"]["from_path"] == ["model.name"]
    _, out, _ = analyze(capsys)
    assert "llama*" in out
    assert "* named by the path, not by the file" in out


def test_facts_of_the_file_win_over_those_of_its_path(old, capsys):
    (old / "amd-logs/llama/log.txt").write_text(litgpt_log(name="pythia-160m"))
    row = listed(capsys)["amd-logs/llama/log.txt"]
    assert (row["model"], row["from_path"]) == ("pythia-160m", [])


@in_each(
    ("parts", "model", "precision"),
    [
        (("amd-logs", "llama", "log.txt"), "llama", None),
        (("nvi-logs", "Qwen2.5-7B-BF16", "run.log"), "qwen", "bf16"),
        (("old", "mistral_7b", "mxfp8", "x.log.gz"), "mistral", "fp8"),
        (("old", "llama2_70b.txt"), "llama2_70b", None),
        (("ollama", "prefp8x"), None, None),
        (("LLaMA-Factory", "saves", "sft", "trainer_log.jsonl"), None, None),
        (("360-llama_factory-grpo", "llama.cpp", "a.log"), None, None),
        (("LLaMA-Factory", "qwen2.5-7b-sft", "trainer_log.jsonl"), "qwen", None),
        (("logs", "qwen7b_baseline_500.log"), "qwen7b", None),
        (("logs", "qwen2_5vl_lora_100.out"), "qwen2_5vl", None),
        (("logs", "qwen2.5-32b_run_3"), "qwen2.5-32b", None),
        (("logs", "llama_2_8gpus"), "llama_2", None),
        (("Mistral-v0.2-Translator-bf16", "all_results.json"), "mistral", "bf16"),
        (("logs", "deepseek-r1-distill-llama-8b.log"), None, None),
    ],
)
def test_paths_name_models_and_precisions_only_in_whole_words(parts, model, precision):
    assert (paths.model_in_path(parts), paths.precision_in_path(parts)) == (model, precision)


def test_an_unreadable_file_is_listed_and_never_fatal(old, capsys):
    (old / "amd-logs/broken").symlink_to("nowhere")
    os.mkfifo(old / "amd-logs/fifo")
    (old / "amd-logs/torn.xlsx").write_bytes(b"PK\x03\x04torn")
    (old / "amd-logs/torn.json").write_text('{"platform": "nvd", "performance_metrics": {')
    (old / "amd-logs/torn.log.gz").write_bytes(b"\x1f\x8b\x08torn")
    rows = listed(capsys, "amd-logs")
    problems = {Path(name).name: row["problem"] for name, row in rows.items() if row["problem"]}
    assert set(problems) == {"broken", "fifo", "torn.xlsx", "torn.json", "torn.log.gz"}
    assert problems["broken"] == "a broken link"
    assert rows["amd-logs/llama/log.txt"]["total_steps"] == 12


def test_training_data_without_step_timing_is_listed_and_other_files_are_counted(old, capsys):
    mark = '{"time_ms": 1, "key": "run_start", "metadata": {}}'
    (old / "amd-logs/mlperf.txt").write_text(f":::MLLOG {mark}\n")
    (old / "amd-logs/notes.md").write_text("# what we did\n")
    (old / "amd-logs/picture.png").write_bytes(bytes(range(256)) * 10)
    (old / "amd-logs/empty").write_text("")
    code, out, _ = analyze(capsys, "amd-logs")
    assert code == 0
    assert "amd-logs/mlperf.txt: no step times" in out
    assert "3 other files hold no training data" in out


def test_a_training_that_crashed_before_its_first_step_is_listed_with_the_cause(old, capsys):
    (old / "amd-logs/crashed.log").write_text("building model\ntorch.OutOfMemoryError: HIP out of memory. Tried …\n")
    rows = listed(capsys, "amd-logs")
    assert rows["amd-logs/crashed.log"]["problem"] == "no step times found; the run ended early: out of memory"


def test_loops_of_links_end_and_a_folder_reached_twice_is_read_once(old, capsys):
    (old / "amd-logs/loop").symlink_to("../amd-logs")
    (old / "amd-logs/again").symlink_to("llama")
    (old / "amd-logs/self").symlink_to("self")
    rows = listed(capsys, "amd-logs")
    assert [name for name, row in rows.items() if row["format"]] == ["amd-logs/again/log.txt"]


def test_results_are_listed_as_results_and_their_history_is_not_entered(old, capsys):
    store.save(logs.read(old / "amd-logs/llama/log.txt"), old / "output", stamp="x")
    rows = listed(capsys, "output")
    assert [row["format"] for name, row in rows.items() if name.startswith("output")] == ["result"]


def test_save_writes_a_result_for_every_log_and_keeps_all_in_history(old, capsys):
    code, _, err = analyze(capsys, "amd-logs", "nvi-logs", "--save")
    saved = store.load(old / "output/benchmark_unknown_llama.json")
    assert code == 0
    assert saved.provenance.assumed["model.name"].startswith("path ")
    assert len(list((old / "output/history").glob("*.json"))) == 2
    assert err.count("wrote output/benchmark_unknown_llama") == 2
    before = sorted((old / "output/history").iterdir())
    analyze(capsys, "output", "--save")  # results are not logs: nothing new
    assert sorted((old / "output/history").iterdir()) == before


@pytest.mark.usefixtures("old")
def test_a_result_is_not_listed_next_to_the_log_that_it_is_from(capsys):
    analyze(capsys, "amd-logs", "nvi-logs", "--save")
    _, before, _ = analyze(capsys, "amd-logs", "nvi-logs", "--csv")
    _, after, err = analyze(capsys, "amd-logs", "nvi-logs", "output", "--csv")
    assert after == before
    assert "left out: 2 results of logs that are listed" in err
    _, alone, _ = analyze(capsys, "output", "--csv")
    assert len(alone.splitlines()) == 3


def test_save_pools_logs_of_one_benchmark_and_says_so_but_not_across_folders_of_two_vendors(old, capsys):
    """Equal settings and speed: the folders are all that distinguishes an AMD from an NVIDIA log here."""
    for name, seconds in (("amd-logs/again.txt", 0.51), ("nvi-logs/again.txt", 0.52)):
        (old / name).write_text(litgpt_log(seconds, name="pythia-14m"))
    (old / "amd-logs/third.txt").write_text(litgpt_log(0.53, name="pythia-14m"))
    code, _, err = analyze(capsys, "amd-logs/again.txt", "amd-logs/third.txt", "nvi-logs/again.txt", "--save")
    sources = [
        [source.file for source in store.load(path).provenance.sources] for path in old.glob("output/benchmark_*.json")
    ]
    assert code == 0
    assert sorted(sources) == [["again.txt"], ["again.txt", "third.txt"]]
    assert "amd-logs/again.txt and amd-logs/third.txt: equal settings and similar speed; saved as 2 runs" in err
    assert "nvi-logs/again.txt and" not in err


def test_csv_has_one_line_per_file_and_quotes_formulas(old, capsys):
    (old / "amd-logs/=HYPERLINK(1).log").write_text(litgpt_log(name="+cmd"))
    code, out, _ = analyze(capsys, "--csv", "amd-logs")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert list(rows[0]) == list(survey.SURVEY_COLUMNS)
    assert (
        len({row["file"] for row in rows}) == len(rows) == sum(path.is_file() for path in Path("amd-logs").rglob("*"))
    )
    assert float(rows[1]["tokens_per_second_per_gpu"]) == pytest.approx(8192)
    assert not any(cell.startswith(("=", "+")) for row in rows for cell in row.values())


def test_event_files_of_a_folder_are_one_row(old, capsys):
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    event, summary = pytest.importorskip("tensorboard.compat.proto.event_pb2"), pytest.importorskip(
        "tensorboard.compat.proto.summary_pb2"
    )  # fmt: skip
    folder = old / "nvi-logs/tb/version_0"
    for first in (1, 6):
        events = writer.EventFileWriter(str(folder))
        for step in range(first, first + 5):
            value = summary.Summary.Value(tag="iteration-time", simple_value=0.5)
            events.add_event(event.Event(step=step, wall_time=1e9 + step / 2, summary=summary.Summary(value=[value])))
        events.close()
    row = listed(capsys, "nvi-logs/tb")["nvi-logs/tb/version_0"]
    assert (row["format"], row["total_steps"]) == ("tensorboard", 10)


def test_two_profiles_are_shown_side_by_side(old, capsys):
    openpyxl = pytest.importorskip("openpyxl")
    for name, idle in (("h100", 10.0), ("mi300x", 20.0)):
        book = openpyxl.Workbook()
        book.active.title = "gpu_timeline"
        for row in (("type", "time ms"), ("total_time", 100.0), ("idle_time", idle)):
            book.active.append(row)
        book.save(old / f"amd-logs/{name}_rank0.xlsx")
    code, out, _ = analyze(capsys, "amd-logs")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("idle")]
    assert line.split()[-1] == "2.00x"
    _, out, _ = analyze(capsys, "amd-logs", "--json")
    assert {row["name"]: row["ratio"] for row in json.loads(out)["profile_comparison"]}["idle"] == 2.0


@pytest.mark.parametrize(("columns", "left_out"), [(64, "Warnings, Precision, Format, GPU, Model"), (200, None)])
def test_a_terminal_shows_the_columns_that_fit_and_breaks_no_path(old, capsys, monkeypatch, columns, left_out):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    named = "llama3_1_8b_pretrain_fp8/log.txt"
    (old / "data").mkdir()
    for folder in ("amd-logs", "nvi-logs"):
        (old / folder).rename(old / "data" / folder)
    _, out, _ = analyze(capsys, "data")
    first, heading, *rest = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out).splitlines()
    assert first == "Files in data"
    assert all(len(line) <= columns for line in (heading, *rest[:3]))
    assert any(line.startswith(f"nvi-logs/{named} ") for line in rest)
    assert ("Model" in heading) is (left_out is None)
    assert (f"A wider terminal and --csv also have: {left_out}." in " ".join(" ".join(rest).split())) is (
        left_out is not None
    )


def test_a_terminal_of_80_columns_keeps_the_names_of_the_rows_of_two_profiles(old, capsys, monkeypatch):
    openpyxl = pytest.importorskip("openpyxl")
    for name in ("h100_qwen_rank0", "mi300x_qwen_rank0"):
        book = openpyxl.Workbook()
        book.active.title = "gpu_timeline"
        for row in (("type", "time ms"), ("total_time", 100.0), ("exposed_comm_time", 25.0)):
            book.active.append(row)
        book.save(old / f"amd-logs/{name}.xlsx")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, out, _ = analyze(capsys, str(old / "amd-logs"))
    lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out).splitlines()
    [heading] = [line for line in lines if line.startswith("Part ")]
    assert "h100_qwen_rank0.xlsx" in heading
    assert any(line.startswith("exposed communication ") for line in lines)


def test_thousands_of_files_are_all_listed(old, capsys):
    for folder in range(20):
        (old / f"many/{folder}").mkdir(parents=True)
        for number in range(50):
            (old / f"many/{folder}/{number}.txt").write_text(litgpt_log() if number == 7 else f"note {number}\n")
    _, out, _ = analyze(capsys, "many", "--json")
    document = json.loads(out)
    assert (len(document["files"]), document["other_files"]) == (20, 980)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "nowhere: no such folder"),
        (("--json", "--csv"), "--json and --csv: choose one"),
        (("--save", "--output", "/proc/none"), "--output /proc/none"),
        (("empty",), "no training data in empty: 0 files without any, 0 that could not be used"),
    ],
)
def test_wrong_input_is_reported_in_one_line_with_exit_code_2(old, capsys, arguments, says):
    (old / "empty").mkdir()
    code, _, err = analyze(capsys, *arguments)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_missing_default_folders_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, err = analyze(capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert "none of amd-logs, nvi-logs, benchmark_results, output is here" in err


def test_the_analyze_script_runs_the_analyze_command(old):
    shown = subprocess.run(
        [sys.executable, ROOT / "analyze_existing_logs.py", "amd-logs"],
        cwd=old,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    assert "litgpt" in shown.stdout


def test_checkpoints_and_arrays_next_to_logs_are_counted_and_not_listed(old, capsys):
    for name, members in (
        ("optimizer.pt", ("optimizer/data.pkl", "optimizer/data/0")),
        ("rows.npz", ("a.npy", "b.npy")),
    ):
        with zipfile.ZipFile(old / "amd-logs" / name, "w") as archive:
            for member in members:
                archive.writestr(member, bytes(range(256)))
    code, printed, complaint = analyze(capsys, "amd-logs")
    assert code == 0
    assert "optimizer.pt" not in printed + complaint
    assert "rows.npz" not in printed + complaint
