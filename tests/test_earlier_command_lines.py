"""Command lines of the earlier toolkits are understood: old names, underscores, files in the place of folders."""

import csv
import inspect
import json
import re
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path

import plausible
import pytest
from each import in_each
from test_run_command import write_log

from tensorprimat.cli import COMMANDS, earlier, main, options
from tensorprimat.core.result import GpuInfo
from tensorprimat.machine.platform import Machine
from tensorprimat.storage import store

SMALL = [
    *("--d_model", "32", "--d_ff", "64", "--num_layers", "1", "--num_heads", "2", "--vocab", "64"),
    *("--context_length", "8", "--batch_size", "1", "--device", "cpu", "--num_trials", "2", "--num_warmups", "1"),
]


REQUIRED = {
    "aggregate": ["cells"],
    "mlperf": ["list"],
    "convert": ["--model", "llama", "--source", "x"],
    "pretrain": ["--model", "llama"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return main(list(map(str, arguments)))


def parsed(command, *arguments):
    """Return the parameters that a command line gives a command, which is not run."""
    name = earlier.meant_by(earlier.command_of(command) or command, arguments)
    module = import_module(f"tensorprimat.cli.{name}")
    seen = {}

    def take(**values):
        seen.update(values)
        return 0

    take.__signature__ = inspect.signature(module.command, eval_str=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "command", take)
        assert main([command, *arguments]) == 0
    return seen


# Names of options


@in_each("command", list(COMMANDS))
def test_every_long_option_is_understood_with_underscores(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    options = set(re.findall(r"^ +(--[a-z]+(?:-[a-z]+)+)", text.partition("Options:")[2], re.M))
    for option in sorted(options):
        main([command, "--" + option[2:].replace("-", "_") + "=", "--help"])
        printed = capsys.readouterr()
        assert "No such option" not in printed.err, option


@in_each(
    ("command", "old", "field", "value"),
    [
        ("passes", ["--num_steps", "3"], "steps_per_trial", 3),
        ("passes", ["--num_warmups=7"], "warmup_steps", 7),
        ("passes", ["--num_trials", "4"], "trials", 4),
        ("passes", ["--vocab", "99"], "vocab_size", 99),
        ("passes", ["--vocab_size", "99"], "vocab_size", 99),
        ("passes", ["--d_model", "64"], "d_model", 64),
        ("passes", ["--data_path", "tokens.npy"], "data", Path("tokens.npy")),
        ("passes", ["--forward_only"], "pass_name", "forward"),
        ("passes", ["--pass-type", "forward"], "pass_name", "forward"),
        ("passes", ["--results-dir", "mine"], "output", Path("mine")),
        ("passes", ["--output-dir", "mine"], "output", Path("mine")),
        ("passes", ["--model_size", "small"], "model_size", "small"),
        ("benchmark", ["--model-size", "small", "--forward_only"], "pass_name", "forward"),
        ("benchmark", ["--model", "llama"], "model", "llama"),
        ("passes", ["--model-sizes", "small", "medium", "large", "--seed", "1"], "model_size", "small,medium,large"),
        ("sweep", ["--context_length", "128", "256", "--compile"], "context_length", "128,256"),
        ("sweep", ["--context-lengths", "128,256"], "context_length", "128,256"),
        ("sweep", ["--results-dir", "mine"], "output", Path("mine")),
        ("warmup", ["--measure-steps", "12"], "measure_steps", 12),
        ("warmup", ["--measure_steps", "12"], "measure_steps", 12),
        ("run", ["--output-dir", "mine"], "output", Path("mine")),
        ("run", ["--warmup_steps", "2"], "warmup_steps", 2),
        ("extract", ["--log_file", "x.log"], "log_file", ["x.log"]),
        ("extract", ["--output-dir", "mine"], "output", Path("mine")),
        ("compare", ["--output", "mine"], "output_dir", Path("mine")),
        ("compare", ["--output_dir", "mine"], "output_dir", Path("mine")),
        ("compare", ["--results-dir", "mine"], "results", ["mine"]),
        ("compare", ["--results-dir=mine", "--no_plot"], "results", ["mine"]),
        ("enhance", ["--results_dir", "mine"], "results", ["mine"]),
        ("enhance", ["--output", "mine"], "output_dir", Path("mine")),
        ("history", ["--output", "mine"], "output_dir", Path("mine")),
        ("aggregate", ["--results-dir", "mine"], "folder", Path("mine")),
        ("aggregate", ["mine", "--output-dir", "tables"], "output", Path("tables")),
    ],
)
def test_an_old_option_means_its_current_name(command, old, field, value):
    assert parsed(command, *old)[field] == value


def test_a_slash_at_the_end_makes_every_output_a_folder():
    taken = {}
    for command in COMMANDS:
        names = inspect.signature(import_module(f"tensorprimat.cli.{command}").command, eval_str=True).parameters
        if output := {"output", "output_dir"} & set(names):
            flag = f"--{min(output).replace('_', '-')}"
            for value in ("name.json/", "name.json"):
                place = parsed(command, *REQUIRED.get(command, ()), flag, value)[min(output)]
                taken.setdefault(options.named_file(flag, place) is None, set()).add((command, value))
    assert {value for _, value in taken[True]} == {"name.json/"}
    assert {value for _, value in taken[False]} == {"name.json"}
    assert len(taken[True]) >= 12


def test_old_names_are_not_in_the_manual(capsys):
    main(["passes", "--help"])
    shown = capsys.readouterr().out
    for old in ("--num-steps", "--num_trials", "--forward-only", "--results-dir", "--pass-type", "--model-sizes"):
        assert old not in shown


def test_values_after_a_double_dash_stay_as_they_are():
    assert earlier.arguments_of("compare", ["--no_plot", "--", "--results-dir"]) == ["--no_plot", "--", "--results-dir"]


def test_an_option_that_never_existed_is_refused(capsys):
    assert run("passes", "--num_stepz", "3") == 2
    assert "No such option: --num-stepz" in capsys.readouterr().err


# Names of commands


def test_the_overview_finds_old_studies_under_the_commands_that_replaced_them(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in (
        ("benchmark_separate", "passes"),
        ("warmup_comparison", "warmup"),
        ("benchmark_large_models", "sweep"),
        ("extract_primus_metrics", "extract"),
    ):
        place = next(number for number, line in enumerate(lines) if name in line)
        assert lines[place - 1].split()[0] == command


@in_each("name", [name for names in earlier.EARLIER_COMMANDS.values() for name in names])
def test_every_old_name_runs_its_command(name, capsys):
    assert main([name, "--help"]) == 0
    assert main([f"{name}.py", "--help"]) == 0
    assert f"Usage: tprimat {name}" in capsys.readouterr().out


def test_an_old_script_of_one_model_keeps_its_model():
    assert parsed("pretrain")["model"] == "llama"
    assert parsed("pretrain_qwen")["model"] == "qwen"


# The studies themselves


def test_a_command_line_of_the_separate_pass_study_runs_and_saves_where_its_guide_states(folder):
    assert run("benchmark_separate", *SMALL, "--forward_only") == 0
    saved = folder / "results" / "profiling_benchmarking_separate.csv"
    (row,) = csv.DictReader(saved.read_text().splitlines())
    assert (row["d_model"], row["pass"], row["num_trials"]) == ("32", "forward", "2")
    first = saved.read_bytes()
    assert run("benchmark_separate", *SMALL, "--forward_only") == 0
    (kept,) = (folder / "results" / "history").iterdir()
    assert kept.read_bytes() == first


@pytest.mark.parametrize("ending", ["json", "csv", "md"])
def test_an_output_with_a_file_ending_is_that_file(folder, ending):
    file = folder / "new" / f"mine.{ending}"
    assert run("passes", *SMALL, "--forward_only", "--output", file) == 0
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    text = file.read_text()
    if ending == "json":
        assert json.loads(text)[0]["d_model"] == 32
    else:
        assert "forward" in text


# --output elsewhere


@pytest.fixture
def results(folder):
    place = folder / "benchmark_results"
    store.save(plausible.result("h100"), place, stamp="1")
    store.save(plausible.result("mi300x"), place, stamp="1")
    return place


@pytest.mark.usefixtures("results")
def test_compare_finds_the_folder_of_earlier_tools(folder):
    assert run("compare", "--no-plot", "--output", "report") == 0
    assert (folder / "report" / "comparison.json").is_file()
    assert run("enhance", "--no-plot", "--output", "report") == 0
    assert (folder / "report" / "enhanced_metrics.json").is_file()


@pytest.mark.parametrize(
    ("command", "name", "holds"),
    [
        ("compare", "report.md", b"# Training benchmark comparison"),
        ("compare", "figures.csv", b"tokens_per_second_per_gpu"),
        ("compare", "figures.json", b'"sides"'),
        ("enhance", "money.md", b"# Efficiency, cost"),
        ("enhance", "money.json", b'"enhanced_metrics"'),
        ("enhance", "money.csv", b"cost_usd_per_trillion_tokens"),
        ("enhance", "money.html", b"<!doctype html>"),
        ("enhance", "money.png", b"\x89PNG"),
        ("analyze", "found.json", b'"files"'),
        ("analyze", "found.csv", b"tokens_per_second"),
        ("analyze", "found.md", b"| llama |"),
        ("history", "h.csv", b"tokens_per_second_per_gpu"),
        ("history", "h.svg", b"<svg"),
    ],
)
def test_a_report_can_be_one_file(results, folder, command, name, holds):
    target = folder / "report" / name
    assert run(command, results, "--output-dir" if name.endswith(".csv") else "--output", target) == 0
    assert holds in target.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == [name]


@pytest.mark.usefixtures("short_preflight")
def test_preflight_writes_the_file_that_is_named(folder):
    assert run("preflight", "--quick", "--device", "cpu", "--keep-noisy", "--output", "machine.json") == 0
    assert json.loads((folder / "machine.json").read_text())["schema_version"]
    assert [path.name for path in folder.iterdir()] == ["machine.json"]


@pytest.mark.parametrize(
    "line",
    [
        "history {results} --output h.json",
        "preflight --output p.csv",
        "pretrain --output r.json",
        "convert --model llama --source hf://a/b --output c.json",
    ],
)
def test_a_file_that_a_command_does_not_write_is_refused_in_one_line(results, folder, capsys, line):
    assert run(*line.format(results=results).split()) == 2
    printed = capsys.readouterr().err.strip()
    assert "this option writes no ." in printed
    assert len(printed.splitlines()) == 1
    assert [path.name for path in folder.iterdir()] == ["benchmark_results"]


@pytest.mark.parametrize("ending", ["json", "csv", "md"])
def test_extract_writes_the_file_that_is_named(folder, ending):
    write_log(folder / "training_llama.log")
    target = folder / f"one.{ending}"
    assert run("extract", "training_llama.log", "--output", target) == 0
    assert "llama" in target.read_text()
    assert not (folder / "output").exists()


def test_benchmark_writes_the_file_that_is_named(folder, monkeypatch, capsys):
    laptop = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU", total_memory_gb=16.0), host="laptop")
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: laptop)
    monkeypatch.setattr(sys, "argv", ["benchmark.py"])
    for variable in ("LLAMA_LOG", "QWEN_LOG", "MISTRAL_LOG", "PRIMUS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    write_log(folder / "training_llama.log")
    assert run("run", "--model", "llama", "--output", "results.json") == 0
    assert store.load(folder / "results.json").model.name == "llama"
    assert list((folder / "output" / "history").glob("*.json"))
    assert run("run", "--output", "results.json") == 2
    assert "one file for 3 results" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "enhance", "extract", "analyze", "run", "passes"])
def test_a_folder_that_is_called_like_a_file_is_refused(results, folder, command, capsys):
    (folder / "taken.json").mkdir()
    arguments = [results] if command in ("compare", "enhance", "extract", "analyze") else []
    assert run(command, *arguments, "--output", "taken.json", *(["--model", "llama"] if command == "run" else [])) == 2
    assert "taken.json: a folder, not a file; choose another name" in capsys.readouterr().err


# The page for people

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "earlier-scripts.md").read_text()
COMMAND_LINES = sorted(
    line
    for pair in set(re.findall(r"^(tprimat .+)$|`(tprimat [a-z]+(?: [^`]*)?)`", PAGE, re.M))
    for line in pair
    if line
)
NEEDS_A_GPU_OR_NEMO = ("tprimat pretrain", "tprimat processes")
QUICK = ("--device", "cpu", "--context-length", "8", "--batch-size", "1", "--trials", "2")


PLACES = {
    "passes": ["results/profiling_benchmarking_separate.csv"],
    "sweep": ["output/sweep/sweep.csv"],
    "warmup": ["output/warmup/warmup.csv"],
}
"""Files that the page names for a command."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with old results, logs and cells at the places where the page's command lines look."""
    folder = tmp_path_factory.mktemp("prepared")
    for name, platform in (("benchmark_rocm_llama.json", "rocm"), ("benchmark_cuda_llama.json", "cuda")):
        old = {
            "platform": platform,
            "gpu_info": {"device_count": 8},
            "training_config": {"global_batch_size": 128, "seq_length": 8192, "num_gpus": 8},
            "performance_metrics": {"avg_step_time_seconds": 9.8, "total_steps": 10},
        }
        for place in ("benchmark_results", "output"):
            (folder / place).mkdir(exist_ok=True)
            (folder / place / name).write_text(json.dumps(old))
    write_log(folder / "training_llama.log")
    for place in ("amd-logs", "nvi-logs"):
        (folder / place).mkdir()
        write_log(folder / place / "training_llama.log")
    sizes = ["--d-model", "32", "--d-ff", "64", "--num-layers", "1", "--num-heads", "2", "--vocab-size", "64"]
    assert run("passes", *sizes, *QUICK, "--pass", "forward", "--output", folder / "output" / "sweep") == 0
    return folder


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_line_of_the_page_runs(folder, prepared, line):
    words = shlex.split(line)[1:]
    if line.startswith(NEEDS_A_GPU_OR_NEMO) or words == ["primus"]:
        assert run(words[0], "--help") == 0
        return
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    if words[0] in ("passes", "warmup", "sweep"):  # the sizes take minutes on a CPU: the same line of a tiny model
        assert parsed(*words, *QUICK)["device"] == "cpu"
        if "--model-size" in words:
            words[words.index("--model-size") + 1] = "llama-tiny"
        else:
            words += ["--model-size", "llama-tiny"]
        words += [*QUICK, *(["--counts", "1", "--trials", "1"] if words[0] == "warmup" else [])]
        if words[0] == "sweep":  # --fit trains in processes of its own: estimated only
            words += ["--dry-run"] if "--fit" in words else ["--in-process"]
    assert run(*words) == 0
    for place in PLACES.get(words[0], ()) if "--dry-run" not in words else ():
        assert (folder / place).is_file(), place


def test_every_old_option_of_the_page_is_parsed():
    """The first column of the options, against each command of the third."""
    table = PAGE.partition("## Options")[2].partition("##")[0]
    rows = re.findall(r"^\| (`--.*?) \| .* \| (.*?) \|$", table, re.M)
    assert len(rows) >= 14
    for earlier_column, commands in rows:
        for option in re.findall(r"`--([\w-]+)", earlier_column):
            for command in commands.split(", ") if commands != "every command with results" else ["run", "compare"]:
                known = {name.replace("_", "-") for name in parameters_of(command)} | {"pass"}
                name = option.replace("_", "-")
                todays = earlier.option_of(command, name)
                special = name in earlier.SWITCHES.get(command, {}) or name in earlier.POSITIONAL.get(command, ())
                assert special or todays in known or earlier.EVERYWHERE.get(todays) in known, (command, option)


def parameters_of(command):
    return inspect.signature(import_module(f"tensorprimat.cli.{command}").command).parameters


def test_every_script_of_the_table_of_names_is_on_the_page():
    for names in earlier.EARLIER_COMMANDS.values():
        for name in names:
            assert name.removesuffix(".py") in PAGE or name == "aggregate_results", name
