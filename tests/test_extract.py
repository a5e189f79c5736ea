"""`tprimat extract`: turn a log into a result file; flags, summaries, refusals and exit codes as a user meets them."""

import gzip
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import job_logs
import pytest

from tensorprimat import logs
from tensorprimat.cli import main
from tensorprimat.logs import paths
from tensorprimat.logs.format import UserFacts
from tensorprimat.session.extract import Extracted, joined_logs

ROOT = Path(__file__).resolve().parents[1]
ROW = (
    "[20260116 07:32:{1:02d}][rank-7/8][INFO ] [--------trainer.py:2560] : iteration {0:8d}/{2:8d} | "
    "consumed samples: {3:12d} | elapsed time per iteration (ms): {4:.1f}/9.9 | "
    "tokens/s/GPU inst/harmonic mean: 13107.2/1.0 | global batch size:   128 | lm loss: {5:.6E} | loss scale: 1.0 | "
    "hip mem usage/free/total/usage_ratio: 200.00GB/55.98GB/255.98GB/78.13%\n"
)


def log(count=20, *, milliseconds=10000.0):
    return "".join(
        ROW.format(i, i % 60, count, i * 128, milliseconds + i % 3, 11 - i / 10) for i in range(1, count + 1)
    )


@pytest.fixture
def primus(tmp_path):
    path = tmp_path / "primus.log"
    path.write_text("  seq_length ............... 8192\n" + log())
    return path


def extract(*arguments):
    return main(["extract", *map(str, arguments)], program="extract_primus_metrics.py")


def test_a_primus_log_becomes_a_result_file(primus, tmp_path, capsys):
    assert extract("--log-file", primus, "--model-name", "llama", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr()
    path = tmp_path / "out" / "benchmark_rocm_llama.json"
    assert printed.out.strip() == str(path)
    assert "13,105" in printed.err
    document = json.loads(path.read_text())
    assert document["platform"] == "amd"
    assert document["training_config"]["num_gpus"] == 8
    assert document["training_config"]["sequence_length"] == 8192
    assert document["performance_metrics"]["tokens_per_second_per_gpu"] == pytest.approx(13105.9, abs=1)
    assert document["memory_metrics"]["peak_memory_device_used_gb"] == pytest.approx(214.748)
    assert document["step_metrics"]["line"][0] == 2
    assert document["timestamp"].startswith("2026-01-16T07:32:01")
    assert len(list((tmp_path / "out" / "history").iterdir())) == 1


def test_a_log_without_a_gpu_asks_for_it_and_the_catalogue_knows_the_cores_of_the_stated_one(primus, tmp_path, capsys):
    assert extract(primus, "--json", "--output", tmp_path) == 0
    printed = capsys.readouterr()
    assert "8 × unknown device (AMD); MFU and cost need --gpu NAME\n" in printed.err
    assert json.loads(printed.out)["gpu_info"]["gpu_cores"] is None
    assert extract(primus, "--json", "--output", tmp_path, "--gpu", "MI300X") == 0
    printed = capsys.readouterr()
    assert "8 × MI300X (AMD)\n" in printed.err
    assert json.loads(printed.out)["gpu_info"]["gpu_cores"] == 19456


def test_json_alone_writes_no_file(primus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert extract(primus, "--json") == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 3
    assert sorted(tmp_path.rglob("*")) == before


def test_standard_input_is_a_log_too(primus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(primus.read_bytes())))
    assert extract("-", "--json", "--output", tmp_path / "out") == 0
    (source,) = json.loads(capsys.readouterr().out)["provenance"]["sources"]
    assert source["file"] == "standard input"


def test_logs_of_one_benchmark_are_its_runs(tmp_path, capsys):
    for number in (1, 2, 3):
        (tmp_path / f"run{number}.log").write_text(log(milliseconds=10000 + 7 * number).replace(" 07:", f" 1{number}:"))
    assert extract(tmp_path / "run*.log", "--model-name", "llama", "--json", "--output", tmp_path / "out") == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert [run["index"] for run in document["runs"]] == [0, 1, 2]
    assert document["performance_metrics"]["total_steps"] == 60
    assert [source["file"] for source in document["provenance"]["sources"]] == ["run1.log", "run2.log", "run3.log"]


def test_a_result_of_the_first_version_without_steps_is_read_again(tmp_path, capsys):
    old = tmp_path / "benchmark_cuda_llama.json"
    gpu = {"device_name": "NVIDIA H100 80GB HBM3"}
    means = {"avg_step_time_seconds": 9.8, "total_steps": 10}
    old.write_text(json.dumps({"platform": "cuda", "gpu_info": gpu, "performance_metrics": means}))
    assert extract(old, "--output", tmp_path / "out") == 0
    shown = capsys.readouterr().err
    assert "format result, 0 rows" in shown
    assert "step time      9.800 s, mean over the whole run\n" in shown
    assert "None" not in shown


def test_two_benchmarks_never_share_a_file(tmp_path, capsys):
    for batch in (128, 256):
        (tmp_path / f"batch{batch}.log").write_text(log().replace("batch size:   128", f"batch size:   {batch}"))
    assert extract(tmp_path / "batch*.log", "--model-name", "llama", "--output", tmp_path / "out") == 0
    first, second = capsys.readouterr().out.split()
    assert Path(first).name == "benchmark_rocm_llama.json"
    assert json.loads(Path(first).read_text())["training_config"]["global_batch_size"] == 128
    assert json.loads(Path(second).read_text())["training_config"]["global_batch_size"] == 256
    assert len(list((tmp_path / "out" / "history").iterdir())) == 2
    assert extract(tmp_path / "batch*.log", "--output", tmp_path / "one.json") == 2
    assert "one file for 2 results; name a folder" in capsys.readouterr().err
    assert not (tmp_path / "one.json").exists()


def test_the_name_of_a_file_has_the_fact_that_differs_from_the_plain_one(tmp_path, capsys):
    (tmp_path / "a.log").write_text(log())
    (tmp_path / "b.log").write_text(log().replace(" 07:", " 09:"))
    for name, flags in (("a.log", ["--gpu", "MI300X"]), ("b.log", ["--gpu", "MI325X", "--precision", "fp8"])):
        assert extract(tmp_path / name, *flags, "--model-name", "llama", "--output", tmp_path / "out") == 0
    names = [Path(path).name for path in capsys.readouterr().out.split()]
    assert names == ["benchmark_rocm_llama.json", "benchmark_rocm_llama_MI325X_fp8.json"]


def test_the_same_log_again_takes_the_place_of_its_earlier_result(tmp_path, capsys):
    (tmp_path / "a.log").write_text(log())
    for text, flags in ((log(), []), (log(), ["--precision", "fp8"]), (log(30).replace("/      30", "/      20"), [])):
        (tmp_path / "a.log").write_text(text)
        assert extract(tmp_path / "a.log", *flags, "--model-name", "llama", "--output", tmp_path / "out") == 0
    assert len(set(capsys.readouterr().out.split())) == 1
    (kept,) = (tmp_path / "out").glob("*.json")
    assert json.loads(kept.read_text())["performance_metrics"]["total_steps"] == 30


def test_logs_of_equal_settings_and_clearly_different_speed_stay_two_results(tmp_path, capsys):
    (tmp_path / "one.log").write_text(log(milliseconds=9700))
    (tmp_path / "two.log").write_text(log(milliseconds=7690).replace(" 07:", " 09:"))
    assert extract(tmp_path / "one.log", tmp_path / "two.log", "--gpu", "H100", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr()
    assert len(set(printed.out.split())) == 2
    assert "equal settings, but 9.701 s a step against 7.691 s; kept as two results" in printed.err
    assert "name each with --gpu" not in printed.err, "the device is stated already"
    assert extract(tmp_path / "one.log", tmp_path / "two.log", "--output", tmp_path / "unnamed") == 0
    assert "name each with --gpu" in capsys.readouterr().err


def test_logs_that_name_different_devices_stay_two_results_at_equal_speed(tmp_path):
    for number, gpu in enumerate(("H100", "H200")):
        text = log(milliseconds=9700 + number).replace(" 07:", f" 1{number}:")
        (tmp_path / f"{gpu}.log").write_text(f"  device_name ............... {gpu}\n" + text)
    read = [
        Extracted(logs=(gpu,), result=logs.read(tmp_path / f"{gpu}.log", facts=UserFacts(gpu=gpu)))
        for gpu in ("H100", "H200")
    ]
    results, _ = joined_logs(read)
    assert [extracted.result.gpu_info.device_name for extracted in results] == ["H100", "H200"]


def test_logs_with_rates_alone_are_two_runs_where_nothing_shows_that_they_are_one(tmp_path, capsys):
    row = "step: {0}  loss:  {1}  memory: 1.0GiB(1.0%)  tps: {2}  tflops: 9.5  mfu: 1.0%\n"
    for name, loss, rate in (("a", 5, 7003), ("b", 6, 5000)):
        (tmp_path / f"{name}.log").write_text(
            "".join(row.format(i, loss - i / 100, f"{rate + i % 3:,}") for i in range(1, 15))
        )
    assert extract(tmp_path / "a.log", tmp_path / "b.log", "--json", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr()
    assert "the same run" not in printed.err
    assert [len(document["runs"]) for document in json.loads(printed.out)] == [1, 1]


def test_logs_of_several_ranks_are_one_run(tmp_path, capsys):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.log").write_text(log().replace("trainer.py", f"tr{rank}iner.py"))
    assert extract(folder, "--json", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)[0]["runs"]) == 1
    assert "the same run" in printed.err


def test_one_bad_log_among_good_ones_costs_the_exit_code_only(primus, tmp_path, capsys):
    noise = tmp_path / "noise.log"
    noise.write_text("nothing\n")
    assert extract(primus, noise, "--output", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert "noise.log: no step times" in printed.err
    assert Path(printed.out.strip()).is_file()


def test_a_crashed_run_is_kept_in_history_only(primus, tmp_path, capsys):
    primus.write_text(log(count=30)[:-1] + "\nTraceback (most recent call last):\n  File\nRuntimeError: boom\n")
    primus.write_text(primus.read_text().replace("/      30", "/     100"))
    assert extract(primus, "--model-name", "llama", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr()
    assert Path(printed.out.strip()).parent.name == "history"
    assert "crashed" in printed.err
    assert not (tmp_path / "out" / "benchmark_rocm_llama.json").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "no log named"),
        (("absent.log",), "No such file"),
        (("*.nothing",), "no file fits"),
        (("{log}", "--num-gpus", "0"), "--num-gpus 0"),
        (("{log}", "--global-batch-size", "-4"), "--global-batch-size -4"),
        (("{log}", "--num-gpus", "9" * 30), "impossibly large"),
        (("{log}", "--precision", "int3"), "--precision int3"),
        (("{log}", "--format", "excelsior"), "no such format"),
        (("{log}", "--explain", "speed"), "no such figure"),
        (("{log}", "--explain", "reported.speed"), "--explain reported.speed: no such figure"),
        (("{log}", "--num-gpus", "many"), "--num-gpus"),
        (("-", "--follow"), "--follow"),
    ],
)
def test_wrong_input_is_reported_in_one_line_with_exit_code_2(primus, capsys, arguments, reason):
    assert extract(*(argument.format(log=primus) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_formats_lists_the_table(capsys):
    assert extract("--formats") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "][:3] == ["megatron", "nemo", "torchtitan"]
    assert "elapsed time per iteration" in lines[1]


def test_the_error_of_a_log_is_shown_before_the_next_one_is_read(tmp_path):
    broken = tmp_path / "notes.txt"
    broken.write_text("nothing to see here\n")
    running = subprocess.Popen(
        [sys.executable, ROOT / "extract_primus_metrics.py", broken, "-", "--output", tmp_path / "out"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    is_told, _, _ = select.select([running.stderr], [], [], 30)  # standard input is still open
    _, told = running.communicate(log(), timeout=60)
    assert is_told
    assert str(broken) in told.splitlines()[0]
    assert running.returncode == 2, told


def test_follow_shows_growth_and_writes_the_result_in_the_end(tmp_path):
    path = tmp_path / "growing.log"
    path.write_text(log(count=5))
    running = subprocess.Popen(
        [sys.executable, ROOT / "extract_primus_metrics.py", path, "--follow", "--output", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    seen = ""
    deadline = time.monotonic() + 60
    while "step 5 |" not in seen and time.monotonic() < deadline:
        seen += running.stderr.readline()
    with path.open("a") as file:
        file.write("".join(log(count=9).splitlines(keepends=True)[5:]))
    while "step 9 |" not in seen and time.monotonic() < deadline:
        seen += running.stderr.readline()
    os.kill(running.pid, signal.SIGINT)
    out, rest = running.communicate(timeout=60)
    assert "step 9 |" in seen
    assert (running.returncode, "Traceback" in rest) == (0, False), rest
    assert Path(out.strip()).is_file()


def test_follow_waits_for_a_log_that_is_empty_cut_short_or_gone(tmp_path, monkeypatch, capsys):
    path = tmp_path / "growing.log"
    path.touch()

    def interrupt():
        raise KeyboardInterrupt

    between_looks = iter(
        (
            lambda: path.write_text(log(count=9)),
            lambda: path.write_text(log(count=4)),
            lambda: path.rename(tmp_path / "growing.log.1"),
            lambda: path.write_text(log(count=7)),
            interrupt,
        )
    )
    monkeypatch.setattr("tensorprimat.session.extract.time.sleep", lambda _: next(between_looks)())
    assert extract(path, "--follow", "--output", tmp_path / "out") == 0
    printed = [line.split(" | ")[0] for line in capsys.readouterr().err.splitlines()[1:6]]
    assert printed[:2] == ["no measured step yet: the log is empty", "step 9"]
    assert printed[2:] == ["step 4", f"{path} is gone; waiting for it", "step 7"]


def test_logs_that_seem_to_be_pieces_of_one_are_reported(tmp_path, capsys):
    rows = log(count=30).splitlines(keepends=True)
    for name, piece in (("train.log.1", rows[:15]), ("train.log", rows[15:])):
        (tmp_path / name).write_text("".join(piece))
    assert extract(tmp_path / "train.log", tmp_path / "train.log.1", "--output", tmp_path / "out") == 0
    assert f"cat {tmp_path / 'train.log.1'} {tmp_path / 'train.log'} | tprimat extract -" in capsys.readouterr().err


def test_the_path_names_model_precision_and_platform_where_the_log_does_not(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "nvi-logs" / "qwen25_7b_test_fp8"
    folder.mkdir(parents=True)
    row = (
        "Training epoch 0, iteration {}/99 | global_step: {} | reduced_train_loss: 6.4 | train_step_timing in s: 0.5\n"
    )
    (folder / "log.txt").write_text("".join(row.format(number, number) for number in range(9)))
    monkeypatch.chdir(tmp_path)
    assert main(["extract", "--log-file", "nvi-logs/qwen25_7b_test_fp8/log.txt"]) == 0
    assert capsys.readouterr().out.strip() == "output/benchmark_cuda_qwen.json"
    result = json.loads((tmp_path / "output" / "benchmark_cuda_qwen.json").read_text())
    assert (result["platform"], result["training_config"]["precision"]) == ("nvd", "fp8")
    assumed = result["provenance"]["assumed"]
    assert {assumed[name] for name in ("model.name", "precision", "platform")} == {
        "path nvi-logs/qwen25_7b_test_fp8/log.txt"
    }


def test_folders_far_above_a_log_give_no_facts():
    assert paths.parts_of("/home/nvidia/llama/x.log") == ("x.log",)
    assert paths.parts_of("/data/amd-logs/x.log") == ("amd-logs", "x.log")
    assert paths.platform_in_path(("mi300x_against_h100", "x.log")) is None


def test_a_copied_or_compressed_log_is_not_reported_as_another_ranks(primus, tmp_path, capsys):
    copy, packed = tmp_path / "copy.log", tmp_path / "packed.log.gz"
    copy.write_bytes(primus.read_bytes())
    packed.write_bytes(gzip.compress(primus.read_bytes()))
    assert extract("--output", tmp_path / "out", primus, copy, packed) == 0
    printed = capsys.readouterr().err
    assert f"{copy}: the same run as {primus}, a copy of the file; not counted again" in printed
    assert f"{packed}: the same run as {primus}, a copy of it or another rank's log; not counted again" in printed


def test_a_folder_of_folders_is_read_as_other_commands_read_it_and_refused_without_files(primus, tmp_path, capsys):
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    assert extract(tmp_path / "runs") == 2
    message = "neither it nor its folders (a) hold a file; search it with tprimat analyze"
    assert message in capsys.readouterr().err
    primus.rename(run / "primus.log")
    assert extract(tmp_path / "runs", "--json", "--output", tmp_path / "out") == 0
    [source] = json.loads(capsys.readouterr().out)["provenance"]["sources"]
    assert source["file"] == "primus.log"


def test_a_log_whose_rate_its_gpu_cannot_reach_is_an_error_above_its_figures(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("\n".join(job_logs.megatron(job_logs.Job())))
    assert main(["extract", str(log), "--gpu", "A10G", "--output-dir", str(tmp_path / "o")]) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert str(log) in first
    assert second.startswith("  error: A10G: the framework reports 400 TFLOP/s per GPU, above the dense bf16 peak")
