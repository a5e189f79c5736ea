"""`compare_results.py` and `tprimat compare`: their output and files, and errors for wrong input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import plausible
import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.session import sides
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]
WRITTEN = {
    "comparison_plot.png", "comparison_plot.svg", "comparison_loss.png", "comparison_loss.svg", "comparison_report.md",
    "comparison_report.html", "comparison.json", "comparison.csv",
}  # fmt: skip
WRITTEN_WITHOUT_PICTURES = {name for name in WRITTEN if not name.endswith((".png", ".svg"))}


@pytest.fixture
def results(tmp_path):
    """A folder with the results of two machines, three runs each."""
    folder = tmp_path / "results"
    store.save(plausible.result("h100", runs=3), folder, stamp="1")
    store.save(plausible.result("mi300x", runs=3, seconds=11.0, seed=1), folder, stamp="2")
    return folder


def compare(*arguments):
    return main(["compare", *map(str, arguments)], program="compare_results.py")


def files_of(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_comparing_again_in_the_same_folder_reads_no_report_as_a_result(results, capsys):
    assert compare(results, "--output-dir", results, "--no-plot") == 0
    first = json.loads((results / "comparison.json").read_text())
    assert compare(results, "--output-dir", results, "--no-plot") == 0
    second = json.loads((results / "comparison.json").read_text())
    assert second["sides"] == first["sides"]
    assert "left out" not in capsys.readouterr().err


def test_json_alone_is_on_stdout(results, tmp_path, capsys):
    assert compare(results, "--output-dir", tmp_path / "out", "--json", "--no-plot") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "faster"
    assert "Written to" in printed.err


def test_no_plot_writes_no_picture_and_refers_to_none(results, tmp_path):
    out = tmp_path / "out"
    assert compare(results, "--output-dir", out, "--no-plot") == 0
    assert files_of(out) == WRITTEN_WITHOUT_PICTURES
    assert "comparison_plot" not in (out / "comparison_report.md").read_text()


def test_without_matplotlib_everything_but_the_plot_is_written(results, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out"
    assert compare(results, "--output-dir", out) == 0
    assert files_of(out) == WRITTEN_WITHOUT_PICTURES
    assert "pip install matplotlib" in capsys.readouterr().err


def test_the_baseline_can_be_chosen_by_a_part_of_its_name(results, tmp_path, capsys):
    assert compare(results, "--output-dir", tmp_path / "out", "--no-plot", "--baseline", "mi300x") == 0
    assert "H100 is slower than MI300X" in " ".join(capsys.readouterr().out.split())


def test_an_assumed_scatter_allows_a_verdict_for_single_runs(tmp_path, capsys):
    folder = tmp_path / "results"
    store.save(plausible.result("h100"), folder, stamp="1")
    store.save(plausible.result("mi300x", seconds=9.0, seed=1), folder, stamp="2")
    assert compare(folder, "--output-dir", tmp_path / "out", "--no-plot") == 0
    assert "cannot confirm it" in " ".join(capsys.readouterr().out.split())
    assert compare(folder, "--output-dir", tmp_path / "out", "--no-plot", "--assume-run-cv", "2%") == 0
    assert "is faster than" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("flag", ["--warmup-steps", "--warmup"])
def test_declared_warm_up_leaves_out_that_many_steps(flag, results, tmp_path):
    assert compare(results, "--output-dir", tmp_path / "out", "--no-plot", flag, "20") == 0
    sides = json.loads((tmp_path / "out" / "comparison.json").read_text())["sides"]
    assert [side["measured_steps"] for side in sides] == [3 * 35, 3 * 35]


def test_published_results_are_shown_only_on_request(results, tmp_path, capsys):
    assert compare(results, "--output-dir", tmp_path / "out", "--no-plot") == 0
    assert "ublished" not in capsys.readouterr().out
    assert compare(results, "--output-dir", tmp_path / "out", "--no-plot", "--published") == 0
    assert "Published, not measured here" in capsys.readouterr().out


def test_a_file_of_the_first_version_is_reported(tmp_path, capsys):
    old = {
        "platform": "cuda",
        "gpu_info": {"device_name": "NVIDIA H100 80GB HBM3", "device_count": 8},
        "performance_metrics": {"avg_step_time_seconds": 9.8, "total_steps": 10},
    }
    path = tmp_path / "benchmark_cuda_20260105_143022.json"
    path.write_text(json.dumps(old))
    assert compare(path, "--model-name", "llama", "--output-dir", tmp_path / "out") == 0
    assert "9.800 s" in capsys.readouterr().out
    assert files_of(tmp_path / "out") == {name for name in WRITTEN if "loss" not in name}


@in_each(
    "rate",
    [
        {"samples_per_second": 10.0},
        {"samples_per_second_per_gpu": 1.25},
        {"steps_per_second": 10.0 / 128},
        {"avg_step_time_seconds": 12.8},
        {"tokens_per_second": 81920.0},
    ],
)
def test_a_mean_of_another_unit_is_brought_to_tokens_where_the_file_states_the_settings(rate, tmp_path):
    settings = {"sequence_length": 8192, "global_batch_size": 128, "num_gpus": 8}
    sides = (("h100", "NVIDIA H100", settings, {"tokens_per_second_per_gpu": 10240.0}),
             ("mi300x", "AMD Instinct MI300X", {**settings, "num_gpus": 8}, rate))  # fmt: skip
    for name, device, config, figures in sides:
        document = {
            "platform": "cuda" if name == "h100" else "rocm", "gpu_info": {"device_name": device},
            "model": {"name": "llama"}, "training_config": config, "performance_metrics": figures,
        }  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    assert compare(tmp_path / "h100.json", tmp_path / "mi300x.json", "--no-plot", "--output-dir", tmp_path / "out") == 0
    ratio = json.loads((tmp_path / "out" / "comparison.json").read_text())["ratio"]
    assert ratio["metric"] == "tokens_per_second_per_gpu"
    assert ratio["value"] == pytest.approx(1.0)


# Wrong input: one line, exit code 2


def _broken(name, content):
    def make(tmp_path):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return make


def _empty_folder(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@in_each(
    ("make", "says"),
    [
        (lambda tmp_path: tmp_path / "missing.json", "no such file"),
        (_broken("empty.json", b""), "empty"),
        (_broken("binary.json", b"\x89PNG\r\n\x1a\n\x00\xff"), "not text"),
        (_broken("broken.json", b'{"platform": '), "invalid JSON"),
        (_broken("other.json", b'{"name": "x"}'), "not a benchmark result"),
        (_broken("list.json", b"[1, 2]"), "not a benchmark result"),
        (_empty_folder, "no benchmark results"),
    ],
)
def test_wrong_input_is_reported_in_one_line_with_exit_code_2(make, says, tmp_path, capsys):
    assert compare(make(tmp_path), "--output-dir", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--by", "colour"], "--by colour"),
        (["--baseline", "TPU"], "--baseline TPU"),
        (["--assume-run-cv", "much"], "--assume-run-cv much"),
        (["--assume-run-cv", "2"], "is that 2%?"),
        (["--assume-run-cv", "-1%"], "--assume-run-cv -1%"),
        (["--assume-run-cv", "nan"], "--assume-run-cv nan"),
        (["--confidence", "95"], "is that 95%?"),
        (["--confidence", "950"], "write it as 2% or 0.02"),
        (["--confidence", "100%"], "--confidence 100%: must be at least 50 % and below 100 %"),
        (["--confidence", "150%"], "--confidence 150%: must be at least 50 % and below 100 %"),
        (["--confidence", "49.99999999%"], "--confidence 49.99999999%: must be at least"),
        (["--assume-run-cv", "250%"], "--assume-run-cv 250%: must be between 0 and 100 %"),
        (["--assume-host-cv", "1e2%"], "--assume-host-cv 1e2%: must be between 0 and 100 %"),
        (["--price", "H100=2.1234567,H100=2.1234568"], "--price H100: stated twice, 2.1234567 and 2.1234568"),
        (["--num-gpus", "amd=0"], "--num-gpus amd=0: must be 1 or more"),
        (["--num-gpus", "amd=1e3"], "--num-gpus amd=1e3: must be a whole number"),
        (["--warmup-steps", "-1"], "--warmup-steps -1: must be 0 or more"),
        (["--warmup", "many"], "--warmup many: must be a whole number"),
        (["--colour"], "--colour"),
    ],
)
def test_a_wrong_flag_is_named_and_exits_2(arguments, says, results, tmp_path, capsys):
    assert compare(results, "--output-dir", tmp_path / "out", "--no-plot", *arguments) == 2
    assert says in capsys.readouterr().err


def test_without_results_the_command_to_run_first_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compare() == 2
    assert "benchmark.py first" in capsys.readouterr().err


def test_a_broken_file_in_a_folder_is_named_and_skipped(results, tmp_path, capsys):
    (results / "broken\x1b[2J.json").write_text("{")
    assert compare(results, "--output-dir", tmp_path / "out", "--no-plot") == 0
    printed = capsys.readouterr().err
    assert "left out" in printed
    assert "\x1b" not in printed


def test_a_broken_file_among_very_many_is_named_too(results, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sides, "MANY_FILES", 2)  # two processes read them
    (results / "zzz.json").write_text('{"raw_step_times": ')
    (results / "aaa.json").write_text("[1, 2]")
    assert compare(results, "--output-dir", tmp_path / "out", "--no-plot") == 0
    printed = capsys.readouterr()
    assert "is faster than" in " ".join(printed.out.split())
    assert "zzz.json" in printed.err
    assert "aaa.json" not in printed.err


def test_an_interruption_while_writing_leaves_no_half_written_file(results, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert compare(results, "--output-dir", out, "--no-plot") == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    assert compare(results, "--output-dir", out, "--no-plot") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert "interrupted" in capsys.readouterr().err


# The script


def test_the_script_shows_a_summary_writes_every_report_and_imports_no_torch(results, tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", ROOT / "compare_results.py", results, "--output-dir", "out"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "out") == WRITTEN
    assert "MI300X is faster than H100" in " ".join(done.stdout.split())
    assert "comparison_report.html" in done.stderr
    assert "comparison_plot.png" in (tmp_path / "out" / "comparison_report.md").read_text()
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "matplotlib" in imported
    assert not {"torch", "lightning", "transformers", "pandas"} & imported


def test_the_functions_of_the_script_can_be_imported(results, tmp_path):
    import compare_results

    loaded = compare_results.load_benchmark_results(results)
    assert [item.result.platform for item in loaded] == ["nvd", "amd"]
    plot = compare_results.create_comparison_plot(loaded, tmp_path / "plot.png")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert compare_results.create_comparison_plot(loaded, tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(UsageError, match=r"plot\.xyz: must end in \.png, \.svg or \.pdf"):
        compare_results.create_comparison_plot(loaded, tmp_path / "plot.xyz")
    report = compare_results.generate_comparison_report(loaded, tmp_path / "report.md")
    assert report.read_text().startswith("# Training benchmark comparison")


def test_a_folder_that_holds_earlier_results_only_names_them(tmp_path, capsys):
    kept = tmp_path / "history"
    kept.mkdir()
    (kept / "benchmark_cpu_llama_1.json").write_text("{}")
    assert main(["compare", str(tmp_path)]) == 2
    assert f"no benchmark results in this folder; earlier ones are in {kept}" in capsys.readouterr().err
