"""A dry run with --gpu plans the training of another machine, without that machine and without its packages."""

import itertools
import json
import re
import sys

import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import GpuInfo
from tensorprimat.machine.platform import Machine

LAPTOP = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU", total_memory_gb=16.0), host="laptop")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark.py"])
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: LAPTOP)
    for variable in ("LLAMA_LOG", "QWEN_LOG", "MISTRAL_LOG", "PRIMUS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def plan(*flags):
    return main(["run", "--model", "llama", "--dry-run", *flags], program="benchmark.py")


def test_the_plan_is_that_of_the_named_gpus(folder, capsys):
    assert plan("--gpu", "H100-SXM", "--num-gpus", "8") == 0
    printed = capsys.readouterr().out
    assert "the torch engine (Lightning) trains on H100-SXM; not installed here: the NeMo engine" in printed
    assert "WOULD TRAIN - llama on CUDA" in printed
    assert "8 × H100-SXM, 84.6 GB each, CUDA" in printed
    assert "micro batch 1 × 16 accumulated × 8 GPUs" in printed
    assert "about 63.9 GB on each GPU" in printed
    assert "Estimated time: 10 min" in printed
    assert not list(folder.iterdir())


@in_each(
    ("flags", "traffic"),
    [
        (
            ["H100-SXM", "--num-gpus", "8"],
            "450 GB to each GPU in a step, at least 1 s at 450 GB/s; computing the step takes",
        ),
        (["MI300X", "--num-gpus", "4"], "385 GB to each GPU in a step, at least 2 s at 192 GB/s"),  # 3 links of 64 GB/s
        (["L40S", "--num-gpus", "8"], "645 GB to each GPU in a step\n"),  # no link but PCIe
        (["H100-SXM", "--num-gpus", "1"], None),
        (["H100-SXM", "--num-gpus", "8", "--engine", "nemo"], None),
    ],
)
def test_the_traffic_between_gpus_is_estimated_where_they_have_any(flags, traffic, capsys):
    assert plan("--gpu", *flags) == 0
    found = capsys.readouterr().out.partition("Network    ")[2]
    assert found.startswith(traffic) if traffic else not found


def test_a_model_that_does_not_fit_is_refused_with_the_flag_that_makes_it_fit(capsys):
    keep = ("--gpu", "H100-SXM", "--num-gpus", "1", "--activation-checkpointing")
    assert plan(*keep, "none") == 2
    assert "and one has 84.6 GB; to make it fit use --activation-checkpointing 32%" in capsys.readouterr().err
    assert plan(*keep, "32%") == 0


@in_each("gpu", ["A100-PCIe-40GB", "RTX-4090"])
@in_each(
    "flags",
    [
        ["--num-gpus", "1"], ["--num-gpus", "2", "--strategy", "ddp"], ["--num-gpus", "2", "--micro-batch-size", "4"],
        ["--num-gpus", "2", "--master-weights", "fp32"], ["--num-gpus", "8", "--engine", "nemo"],
    ],
)  # fmt: skip
def test_every_remedy_of_a_refusal_makes_the_model_fit(gpu, flags, capsys):
    assert plan("--gpu", gpu, *flags) == 2
    named = capsys.readouterr().err.partition("to make it fit use ")[2]
    for remedy in named.split(", or ") if named else ():
        words = [*flags, *remedy.replace("(other work)", "").replace(" with ", " ").split()]
        changed = dict(zip(words[::2], words[1::2], strict=True))  # a remedy replaces a flag
        assert plan("--gpu", gpu, *itertools.chain(*changed.items())) == 0, (remedy, capsys.readouterr().err)


KEEP_ALL = ["--num-gpus", "8", "--activation-checkpointing", "none"]


@in_each(
    ("gpu", "micro", "flags", "advised"),
    [
        ("H100-SXM", 4, KEEP_ALL, 1),  # 2 needs 89 GB
        ("H100-SXM", 5, [*KEEP_ALL, "--global-batch-size", "40"], 1),  # 2 does not divide the batch
        ("B300", 8, ["--num-gpus", "1", "--engine", "nemo", "--precision", "bf16"], 2),  # 4 needs 305 GB
    ],
)
def test_a_micro_batch_is_reduced_to_the_largest_that_fits(gpu, micro, flags, advised, capsys):
    flags = ["--gpu", gpu, *flags, "--micro-batch-size"]
    assert plan(*flags, f"{micro}") == 2
    complaint = capsys.readouterr().err
    assert f"or --micro-batch-size {advised}\n" in complaint
    assert plan(*flags, f"{advised}") == 0


def test_an_engine_that_is_not_installed_here_can_be_planned(capsys):
    assert plan("--gpu", "B200", "--num-gpus", "8", "--engine", "nemo", "--precision", "fp8") == 0
    printed = capsys.readouterr().out
    assert "the NeMo engine trains on B200" in printed
    assert "every check but those of packages passed" in printed


def test_the_json_of_a_plan_is_the_configuration_of_the_training(capsys):
    assert plan("--gpu", "MI300X", "--num-gpus", "4", "--json") == 0
    (spec,) = json.loads(capsys.readouterr().out)
    assert (spec["platform"], spec["num_gpus"], spec["global_batch_size"], spec["engine"]) == ("amd", 4, 64, "torch")


def test_a_log_that_lies_here_is_read_instead_of_the_plan_only_on_request(folder, capsys):
    row = " iteration {0}/ 9 | elapsed time per iteration (ms): 900.0 | global batch size: 8 | lm loss: 1.0E+01 |\n"
    (folder / "training_llama.log").write_text("".join(row.format(number) for number in range(1, 10)))
    for engine in ("auto", "logs"):
        assert plan("--gpu", "MI300X", "--num-gpus", "8", "--engine", engine) == 0
        printed = capsys.readouterr().out
        assert ("WOULD TRAIN" in printed, "Log of llama" in printed) == (
            (True, False) if engine == "auto" else (False, True)
        )


@in_each(
    ("flags", "message"),
    [
        (["--gpu", "H100-SXM"], "--gpu H100-SXM: give --num-gpus too"),
        (["--gpu", "H300", "--num-gpus", "8"], "--gpu H300: not in the catalogue"),
        (
            ["--gpu", "MI300X", "--num-gpus", "8", "--engine", "primus"],
            "--engine primus: --dry-run with --gpu plans for",
        ),
        (["--gpu", "A100", "--num-gpus", "8", "--precision", "fp8"], "has no FP8 matrix units; use --precision bf16"),
        (["--gpu", "H100-SXM", "--num-gpus", "1", "--ab", "--steps 3", "--ab", "--steps 4"], "--ab: not with"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_one_line(flags, message, capsys):
    assert plan(*flags) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_default_batch_gives_every_process_of_a_tiny_model_a_micro_batch(capsys):
    assert plan("--num-gpus", "8") == 0
    assert "16 sequences of 128 tokens: micro batch 2 × 1 accumulated × 8 processes" in capsys.readouterr().out
    assert plan("--num-gpus", "2") == 0
    assert "8 sequences of 128 tokens: micro batch 2 × 2 accumulated × 2 processes" in capsys.readouterr().out


@in_each(
    ("name", "memory_gb"),
    [("H100-SXM", 85.0), ("H200-SXM", 150.7), ("B200", 191.5), ("MI300X", 206.1), ("A100-SXM-80GB", 85.0)],
)
def test_the_memory_of_a_planned_gpu_is_what_its_driver_reports(name, memory_gb, capsys):
    """Drivers count 2**30 bytes where the vendors' names count gigabytes."""
    assert plan("--gpu", name, "--num-gpus", "8", "--engine", "torch") == 0
    (shown,) = re.findall(rf"8 × {name}, ([\d.]+) GB each", capsys.readouterr().out)
    assert float(shown) == pytest.approx(memory_gb, rel=0.016)
    assert float(shown) <= memory_gb


@in_each(
    ("name", "device"), [("A100", "A100 SXM 40GB, 42.3 GB"), ("H100", "H100 SXM, 84.6 GB"), ("B200", "B200, 190 GB")]
)
def test_a_name_of_several_gpus_means_the_first_with_the_least_memory(name, device, capsys):
    assert plan("--gpu", name, "--num-gpus", "8", "--engine", "torch") == 0
    assert f"8 × {device}" in capsys.readouterr().out


def test_nemo_on_a_node_named_by_its_gpu_alone_gets_the_published_settings(capsys):
    assert plan("--gpu", "H100", "--num-gpus", "8", "--engine", "nemo") == 0
    printed = capsys.readouterr().out
    assert re.search(r"Precision +fp8\n", printed)
    assert re.search(r"Parallel +CP 2, DP 4\n", printed)


@pytest.mark.parametrize(("gpu", "precision"), [("V100-SXM2-32GB", "fp16"), ("A100-SXM-80GB", "bf16")])
def test_a_gpu_without_units_for_bfloat16_trains_in_fp16_by_default(gpu, precision, capsys):
    assert plan("--gpu", gpu, "--num-gpus", "8") == 0
    assert re.search(rf"Precision +{precision}\n", capsys.readouterr().out)


@in_each(("gpu", "noted"), [("H100-NVL", True), ("A100-SXM-80GB", True), ("H100-SXM", False)])
def test_nemo_without_published_settings_for_the_gpu_says_so(gpu, noted, capsys):
    assert plan("--gpu", gpu, "--num-gpus", "8", "--engine", "nemo", "--context-parallel-size", "2") == 0
    printed = capsys.readouterr().out
    told = Notice("settings_unpublished", "", lacking=f"methodology agreed has no entry for llama on {gpu}")
    assert (told in printed) == noted
