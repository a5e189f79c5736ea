"""The same flags state the same facts in every command that reads logs or results."""

import dataclasses
import inspect
import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import plausible
import pytest
from each import in_each
from test_run_command import write_log

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.fact_values import read_statements
from tensorprimat.core.result import GpuInfo, Model, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.facts import catalogue
from tensorprimat.machine.platform import Machine
from tensorprimat.session.sides import laid_over
from tensorprimat.storage import store
from tensorprimat.storage.store import Loaded

FACTS = (*("gpu", "num_gpus", "preset", "shape", "precision", "sequence_length", "global_batch_size", "model_name"),)
READERS = ("run", "extract", "compare", "enhance", "metrics", "analyze")
STATED = [
    *("--gpu", "MI300X", "--num-gpus", "8", "--shape", "llama3.1-8b", "--precision", "bf16"),
    *("--sequence-length", "8192", "--global-batch-size", "128"),
]


def bare(path, *, seconds=10.0, platform="amd", name="llama", **config):
    """Return a result file that states nothing but its step times."""
    result = plausible.bare(
        platform=platform,
        model=Model(name=name),
        training_config=TrainingConfig(**config),
        steps=Steps({"index": np.arange(1, 23), "seconds": np.full(22, seconds)}),
    )
    path.parent.mkdir(exist_ok=True)
    store.write(summarise(result), path)
    return path


def run(*arguments):
    return main(list(map(str, arguments)))


@in_each("command", READERS)
def test_every_command_that_reads_takes_every_fact_with_one_help_text(command):
    parameters = inspect.signature(import_module(f"tensorprimat.cli.{command}").command, eval_str=True).parameters
    assert set(FACTS) - set(parameters) == set()
    reference = inspect.signature(import_module("tensorprimat.cli.compare").command, eval_str=True).parameters
    for fact in ("gpu", "shape", "model_name"):
        assert reference[fact].annotation.__metadata__[0].help in parameters[fact].annotation.__metadata__[0].help


def mfu_of(document):
    return document["results"][0]["metrics"]["mfu"]


def test_metrics_shows_an_mfu_that_rests_on_stated_facts_with_their_flags(tmp_path, capsys):
    path = bare(tmp_path / "old.json")
    assert run("metrics", path, "--json") == 0
    assert mfu_of(json.loads(capsys.readouterr().out))["value"] is None
    assert run("metrics", path, "--json", *STATED) == 0
    mfu = mfu_of(json.loads(capsys.readouterr().out))
    assert mfu["value"] == pytest.approx(0.516, abs=0.01)
    assert "inferred or set by the user: model shape (--shape llama3.1-8b), GPU (--gpu)" in mfu["remark"]


def test_enhance_and_compare_show_the_same_mfu(tmp_path):
    path = bare(tmp_path / "old.json")
    assert run("enhance", path, "--output-dir", tmp_path / "out", "--no-plot", *STATED) == 0
    document = json.loads((tmp_path / "out" / "enhanced_metrics.json").read_text())
    assert mfu_of(document)["value"] == pytest.approx(0.516, abs=0.01)
    assert run("compare", path, "--output-dir", tmp_path / "out", "--no-plot", *STATED) == 0
    report = (tmp_path / "out" / "comparison_report.md").read_text()
    assert "51.6 %" in report
    assert "inferred or set by the user: model shape (--shape llama3.1-8b)" in report
    assert "tokens_per_second: unknown" not in report


def test_analyze_fills_results_and_does_not_ask_for_stated_facts(tmp_path, capsys):
    bare(tmp_path / "old" / "one.json")
    assert run("analyze", tmp_path / "old", "--json", *STATED) == 0
    (row,) = json.loads(capsys.readouterr().out)["files"]
    assert (row["gpu"], row["num_gpus"]) == ("MI300X", 8)
    assert row["tokens_per_second_per_gpu"] == pytest.approx(128 * 8192 / 10 / 8)
    assert not [warning for warning in row["warnings"] if "--" in warning]


def test_extract_reads_a_log_with_its_shape_stated(tmp_path):
    log = tmp_path / "train.log"
    write_log(log)
    assert (
        run("extract", log, "--output", tmp_path / "out", "--model-name", "llama", "--preset", "full", *STATED[:2]) == 0
    )
    result = store.load(next((tmp_path / "out").glob("*.json")))
    assert result.model.parameters == 8_030_261_248
    assert result.provenance.assumed["model.shape"] == "--preset full"
    assert result.gpu_info.total_memory_gb == pytest.approx(191.98 * 2**30 / 1e9)


# benchmark.py where logs are read

NODE = Machine(
    platform="amd",
    gpu_info=GpuInfo(
        device_name="AMD Instinct MI300X", device_count=8, total_memory_gb=206.141, gpu_cores=19456,
        software_stack="rocm",
    ),
    host="node",
)  # fmt: skip


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node of eight MI300X with a Primus log in the working folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: NODE)
    for variable in ("LLAMA_LOG", "QWEN_LOG", "MISTRAL_LOG", "PRIMUS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    write_log(work / "training_llama.log")
    return work


def test_a_log_on_a_gpu_node_is_of_its_gpu_where_vendor_and_memory_agree(node, capsys):
    flags = ("--sequence-length", "8192", "--precision", "bf16", "--preset", "full")
    assert run("run", *flags) == 0
    shown = capsys.readouterr().out
    assert "8 × AMD Instinct MI300X (this machine's GPU: vendor and memory agree with the log)" in shown
    path = node / "output" / "benchmark_rocm_llama.json"
    result = store.load(path)
    assert result.provenance.assumed["device_name"].startswith("this machine's GPU")
    assert result.gpu_info.gpu_cores == 19456
    assert run("metrics", path, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)["results"][0]["metrics"]
    assert metrics["mfu"]["value"] == pytest.approx(0.525, abs=0.02)
    assert "this machine's GPU" in metrics["mfu"]["remark"]
    assert metrics["power_watts_per_gpu"]["value"] == 750
    assert metrics["price_usd_per_gpu_hour"]["value"]


@pytest.mark.parametrize("memory_gb", [288.0, None])
def test_a_log_whose_memory_does_not_agree_stays_of_an_unknown_gpu(node, monkeypatch, capsys, memory_gb):
    gpu = NODE.gpu_info.model_copy(update={"total_memory_gb": memory_gb})
    machine = dataclasses.replace(NODE, gpu_info=gpu)
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: machine)
    assert run("run") == 0
    shown = capsys.readouterr().out
    assert "8 × unknown AMD GPU (name it with --gpu)" in shown
    assert 'if the log is from this GPU, add --gpu "AMD Instinct MI300X"' in shown
    assert store.load(node / "output" / "benchmark_rocm_llama.json").gpu_info.device_name is None


def test_a_log_of_the_other_vendor_is_never_of_this_machines_gpu(node, monkeypatch):
    gpu = GpuInfo(device_name="NVIDIA H200", device_count=8, total_memory_gb=206.141)
    machine = Machine(platform="nvd", gpu_info=gpu, host="other")
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: machine)
    assert run("run", "--engine", "logs") == 0
    result = store.load(node / "output" / "benchmark_rocm_llama.json")
    assert (result.platform, result.gpu_info.device_name) == ("amd", None)


def test_gpu_names_the_device_of_a_log_without_an_executor(node):
    assert run("run", "--gpu", "MI325X", "--model", "llama", "--shape", "llama3.1-8b") == 0
    result = store.load(node / "output" / "benchmark_rocm_llama.json")
    assert result.gpu_info.device_name == "MI325X"
    assert result.provenance.assumed["device_name"] == "--gpu"
    assert any("256" in warning for warning in result.warnings if warning.startswith("gpu_info"))
    assert result.model.parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--engine", "torch", "--gpu", "H100"], "--gpu: states a fact about a log, and no log is read here"),
        (["--shape", "llama3.1-8b"], "--shape llama3.1-8b: applies to one model; give --model too"),
        (["--model", "llama", "--shape", "gpt"], "--shape gpt: "),
    ],
)
def test_a_fact_that_no_log_can_take_is_refused_before_anything_runs(node, monkeypatch, capsys, flags, says):
    machine = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU", total_memory_gb=16.0), host="laptop")
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: machine)
    assert run("run", *flags) == 2
    assert says in capsys.readouterr().err
    assert not (node / "output").exists()


def test_a_log_is_named_by_the_model_it_was_found_for_unless_it_names_another(node):
    assert run("run") == 0
    result = store.load(node / "output" / "benchmark_rocm_llama.json")
    assert result.provenance.assumed["model.name"] == "the search for a log of llama"


# Several sides


def two(tmp_path):
    return [
        Loaded(path=path, result=store.load(path))
        for path in (
            bare(tmp_path / "base" / "benchmark_cuda_llama.json", platform="nvd", num_gpus=4),
            bare(tmp_path / "new" / "benchmark_rocm_llama.json"),
        )
    ]


def test_a_fact_for_all_fills_every_side_that_lacks_it_and_keeps_the_others(tmp_path):
    first, second = (item.result for item in laid_over(two(tmp_path), read_statements({"num_gpus": ["8"]})))
    assert (first.training_config.num_gpus, second.training_config.num_gpus) == (4, 8)
    assert ("fact_not_used", "--num-gpus", 8) in [
        (one.code, one.values.get("flag"), one.values.get("stated")) for one in first.remarks
    ]


@in_each("side", ["base", "benchmark_cuda_llama", "benchmark_cuda_llama.json", "nvidia", "CUDA", "nvd"])
def test_a_fact_for_one_side_reaches_that_side_alone(tmp_path, side):
    first, second = (item.result for item in laid_over(two(tmp_path), read_statements({"gpu": [f"{side}=H100"]})))
    assert (first.gpu_info.device_name, second.gpu_info.device_name) == ("H100 SXM", None)


def test_a_side_that_the_user_named_is_found_by_that_name(tmp_path):
    old, new = bare(tmp_path / "a.json"), bare(tmp_path / "b.json")
    flags = ["--gpu", "before=H100", "--gpu", "after=MI300X", "--output", tmp_path / "o.md"]
    assert run("compare", f"before={old}", f"after={new}", *flags) == 0
    report = (tmp_path / "o.md").read_text()
    assert "H100" in report
    assert "MI300X" in report


def test_a_fact_for_one_side_overrides_that_of_its_file(tmp_path):
    first, second = (item.result for item in laid_over(two(tmp_path), read_statements({"num_gpus": ["base=8", "16"]})))
    assert (first.training_config.num_gpus, second.training_config.num_gpus) == (8, 16)
    told = {"flag": "--num-gpus", "stated": 8, "known": 4}
    assert ("fact_overridden", "num_gpus", told) in [(one.code, one.field, one.values) for one in first.remarks]


def test_an_unknown_side_is_refused_with_the_names_of_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match=r"--gpu tpu=v5: nothing that was read is called 'tpu'; there are .*base.*new"):
        laid_over(two(tmp_path), read_statements({"gpu": ["tpu=v5"]}))


def test_a_shape_by_numbers_is_for_all_and_one_with_a_side_for_that_side():
    numbers, for_side, known = read_statements({"shape": ["mine=384/1536/6/6", "base=own=384/1536/6/6", "amd=llama"]})
    assert (numbers.side, numbers.value.name) == (None, "mine")
    assert (for_side.side, for_side.value.name) == ("base", "own")
    assert (known.side, known.value.name) == ("amd", "Llama-3.1-8B")


def test_the_name_of_a_side_means_that_side_whatever_the_folder_of_another_is_called(tmp_path):
    first, second = (replace(item, side=side) for item, side in zip(two(tmp_path), ("new", "base"), strict=True))
    found = laid_over([first, second], read_statements({"num_gpus": ["new=8", "base=16"]}))
    assert [item.result.training_config.num_gpus for item in found] == [8, 16]


@pytest.fixture
def shown(tmp_path, capsys):
    """Run enhance and return GPUs and price of every side by its label."""

    def run_enhance(*arguments):
        code = run("enhance", *arguments, "--no-plot", "--json", "--output-dir", tmp_path / "report")
        printed = capsys.readouterr()
        assert code == 0, printed.err
        sides = json.loads(printed.out)["results"]
        return {side["label"]: (side["num_gpus"], side["price_usd_per_gpu_hour"]) for side in sides}

    return run_enhance


def test_the_label_that_a_report_shows_means_its_side_in_every_option(tmp_path, shown):
    """It is made from device, batch and accumulation, and the facts that are stated with it make another label."""
    for batch in (64, 128):
        bare(tmp_path / f"{batch}.json", global_batch_size=batch, gradient_accumulation_steps=batch // 16)
    labels = list(shown(tmp_path))
    assert labels == ["AMD (batch 128, accumulation 8)", "AMD (batch 64, accumulation 4)"]
    gpus = [word for label, number in zip(labels, "24", strict=True) for word in ("--num-gpus", f"{label}={number}")]
    stated = shown(tmp_path, *gpus)
    assert [number for number, _ in stated.values()] == [2, 4]
    prices = ",".join(f"{label}={usd}" for label, usd in zip(stated, (1.5, 2.5), strict=True))
    assert list(shown(tmp_path, *gpus, "--price", prices).values()) == [(2, 1.5), (4, 2.5)]


def test_the_label_that_another_stated_fact_makes_means_its_side(tmp_path, shown):
    bare(tmp_path / "a.json")
    bare(tmp_path / "b.json", platform="nvd")
    stated = shown(
        tmp_path, "--gpu", "a=MI300X", "--gpu", "b=H100", "--num-gpus", "H100 SXM=4", "--num-gpus", "MI300X=2"
    )
    assert {label: number for label, (number, _) in stated.items()} == {"H100 SXM": 4, "MI300X": 2}


def test_sides_whose_names_differ_in_case_or_contain_a_sign_of_equality_have_their_own_facts(tmp_path, capsys):
    names = ("Run", "run", "lr=3")
    folders = [bare(tmp_path / name / "x.json").parent for name in names]
    stated = [
        word
        for number, name in enumerate(names, 1)
        for flag in ("--num-gpus", "--price")
        for word in (flag, f"{name}={number}")
    ]
    assert run("compare", *folders, *stated, "--no-plot", "--json", "--output-dir", tmp_path / "report") == 0
    sides = json.loads(capsys.readouterr().out)["sides"]
    assert [(side["label"], side["training_config"]["num_gpus"]) for side in sides] == [
        ("Run", 1),
        ("run", 2),
        ("lr=3", 3),
    ]


def test_two_values_for_one_result_by_two_of_its_names_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--num-gpus nvd=16: contradicts --num-gpus base=8"):
        laid_over(two(tmp_path), read_statements({"num_gpus": ["base=8", "nvd=16"]}))
    first, _ = laid_over(two(tmp_path), read_statements({"num_gpus": ["base=8", "nvd=8"]}))
    assert first.result.training_config.num_gpus == 8


@in_each("command", ["compare", "enhance", "metrics", "analyze", "extract"])
@in_each(
    ("flags", "says"),
    [
        (["--num-gpus", "0"], "--num-gpus 0: must be 1 or more"),
        (["--num-gpus", "many"], "--num-gpus many: must be a whole number"),
        (["--sequence-length", "9" * 30], "is impossibly large"),
        (["--precision", "fp7"], "--precision fp7: must be one of"),
        (["--shape", "gpt"], "--shape gpt: "),
        (["--model-name", " "], "--model-name is empty"),
        (["--gpu", "A100", "--gpu", "H100"], "--gpu H100: stated twice; name a side: --gpu SIDE=H100"),
        (["--gpu", "a=A100", "--gpu", "a=H100"], "--gpu a=H100: stated twice for a; leave one out"),
        (["--gpu", "tpu=v5"], "nothing that was read is called 'tpu'"),
    ],
)
def test_a_wrong_fact_is_refused_in_one_line_that_names_the_flag(tmp_path, capsys, command, flags, says):
    path = bare(tmp_path / "old.json")
    output = {"compare": ["--output-dir", tmp_path / "o"], "enhance": ["--output-dir", tmp_path / "o"]}
    assert run(command, path, *output.get(command, []), *flags) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert len(printed.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


# Prices


@in_each("device", ["Unit 7", "H100", "A100", "Unit 7, rev=B"])
def test_the_price_key_that_a_remedy_names_is_accepted(tmp_path, capsys, device):
    path = bare(tmp_path / "old.json", sequence_length=128, global_batch_size=4, num_gpus=8)
    result = store.load(path)
    store.write(result.model_copy(update={"gpu_info": GpuInfo(device_name=device)}), path)
    assert run("metrics", path, "--json") == 0
    price = json.loads(capsys.readouterr().out)["results"][0]["metrics"]["price_usd_per_gpu_hour"]
    if price["value"] is None:
        flag, typed = price["reason"].partition("; give ")[2].replace('"', "").split(" ", 1)
        assert run("metrics", path, "--json", flag, typed.replace("USD", "2.5")) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["results"][0]["metrics"]["price_usd_per_gpu_hour"]["value"] == 2.5
        assert not any("--price" in warning for warning in document.get("warnings", []))


@in_each(("flag", "typed"), [("--gpu", "MI300X"), ("--price", "2.5"), ("--price", "unknown GPU=2.5")])
def test_the_price_of_an_unknown_gpu_needs_its_name_or_one_price(tmp_path, capsys, flag, typed):
    path = bare(tmp_path / "old.json", sequence_length=128, global_batch_size=4, num_gpus=8)
    assert run("metrics", path, "--json") == 0
    price = json.loads(capsys.readouterr().out)["results"][0]["metrics"]["price_usd_per_gpu_hour"]
    says = "no price is known, because the GPU is unknown; name it with --gpu, or give --price USD"
    assert (price["value"], price["reason"]) == (None, says)
    assert run("metrics", path, "--json", flag, typed) == 0
    price = json.loads(capsys.readouterr().out)["results"][0]["metrics"]["price_usd_per_gpu_hour"]
    listed = next(one.usd_per_gpu_hour for one in catalogue.prices() if one.gpu == "MI300X")
    assert price["value"] == (2.5 if flag == "--price" else listed)
