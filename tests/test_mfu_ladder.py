"""Tests of perf/mfu_ladder.py: its commands for GPUs, its goals, and planted faults that its parts must find.

`make test-ladder` runs every part on a CPU.
"""

import contextlib
import importlib.util
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import scripts

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

from each import in_each  # noqa: E402

from perf import gpu_checks  # noqa: E402
from perf.parts import NotHereError  # noqa: E402
from tensorprimat.cli import main  # noqa: E402
from tensorprimat.core.result import GpuInfo  # noqa: E402
from tensorprimat.core.spec import RunSettings  # noqa: E402
from tensorprimat.engines import prepare  # noqa: E402
from tensorprimat.engines.callback import BenchmarkCallback  # noqa: E402
from tensorprimat.engines.registry import ENGINES  # noqa: E402
from tensorprimat.engines.torch import attention  # noqa: E402
from tensorprimat.engines.torch import config as torch_config  # noqa: E402
from tensorprimat.engines.torch.module import TrainingModule  # noqa: E402
from tensorprimat.machine import nvidia, platform  # noqa: E402
from tensorprimat.machine.platform import Machine  # noqa: E402
from tensorprimat.models import custom, presets  # noqa: E402

ladder = scripts.load("perf/mfu_ladder.py")


def lines(capsys):
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("owner", "hook"), [(TrainingModule, "training_step"), (BenchmarkCallback, "on_train_batch_end")]
)
def test_a_wait_in_the_engine_or_in_its_callback_is_found(monkeypatch, capsys, owner, hook):
    original = getattr(owner, hook)

    def waiting(*arguments):
        outcome = original(*arguments)
        losses = [one["loss"] for one in (outcome, *arguments) if isinstance(one, dict)]
        losses[0].item()
        return outcome

    monkeypatch.setattr(owner, hook, waiting)
    assert ladder.main(["--here", "--parts", "sync"]) == 1
    (found,) = lines(capsys)
    assert found.split()[:2] == ["FAIL", "sync"]
    assert "the host waits for the device: aten._local_scalar_dense.default" in found


def test_on_a_gpu_every_rung_trains_a_batch_that_fits_ten_minutes(monkeypatch):
    commands = []

    def noted(command, **_):
        commands.append(command)
        raise RuntimeError("noted")

    monkeypatch.setattr(ladder, "on_gpu", lambda: True)
    monkeypatch.setattr(ladder.subprocess, "run", noted)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for rung in (ladder.eager, ladder.compiled, ladder.ddp, ladder.fsdp):
        with pytest.raises(RuntimeError, match="noted"):
            rung()
    assert all(command[command.index("--num-gpus") + 1] == "2" for command in commands[2:]), "all GPUs there are"
    batches = [command[command.index("--global-batch-size") + 1] for command in commands]
    assert batches == ["4", "4", "8", "8"]
    settings = RunSettings(steps=8, warmup_steps=2, seed=1, num_gpus=1, global_batch_size=4)
    gpu = GpuInfo(device_name="NVIDIA H200", device_count=1, total_memory_gb=150.0)
    one = Machine(platform="nvd", gpu_info=gpu, host="here")
    spec = prepare.spec_of("llama", settings, engine=ENGINES["torch"], machine=one)
    assert spec.recompute == "none"
    flops = 10 * 4 * 8192 * 51_470_401_536
    rungs = flops / (0.35 * 989.4e12) + 3 * flops / (0.57 * 989.4e12) + flops / (0.35 * 1978.9e12)
    assert rungs + 5 * 60 < 600, "eager, compiled, masters, torchtitan and FP8: starts of a minute, and the steps"


@in_each("device", ["NVIDIA H200", "NVIDIA B200", "AMD Instinct MI300X"])
@in_each("count", [1, 8])
def test_benchmark_accepts_every_command_of_the_ladder_on_a_gpu(monkeypatch, capsys, tmp_path, device, count):
    """The real command line with a machine that only states its name: nothing of it can be misspelled."""
    commands = []
    gpu = GpuInfo(device_name=device, device_count=count, total_memory_gb=180.0)
    here = Machine(platform="amd" if "AMD" in device else "nvd", gpu_info=gpu, host="here")

    def noted(command, **_):
        commands.append(command)
        raise RuntimeError("noted")

    monkeypatch.setattr(ladder, "on_gpu", lambda: True)
    monkeypatch.setattr(ladder.subprocess, "run", noted)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device)
    monkeypatch.setattr("tensorprimat.engines.torch.fp8.has_units", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())  # torchao
    monkeypatch.setattr("tensorprimat.engines.torch.fp8.importable", lambda _: True)
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda **_: here)
    monkeypatch.setattr(ladder, "learns_in_fp8", list)
    monkeypatch.setattr(ladder, "_rung", lambda *flags, rung=ladder._rung, **whole: _quiet(rung, *flags, **whole))
    monkeypatch.setattr(ladder, "_losses", lambda *flags, run=ladder._losses: [len(_quiet(run, *flags))])
    for rung in (ladder.eager, ladder.compiled, ladder.masters, ladder.fp8, ladder.ddp, ladder.fsdp):
        with contextlib.suppress(ladder.NotHereError, RuntimeError):
            rung()
    assert any("fp8" in command for command in commands)
    for command in commands:
        arguments = [*command[2:], "--dry-run"]
        arguments[arguments.index("--output") + 1] = str(tmp_path)
        assert main(["run", *arguments]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("loss", "fails"), [(8.0001, False), (8.01, True)])
def test_several_devices_must_train_as_one_does(monkeypatch, loss, fails):
    monkeypatch.setattr(ladder, "_rung", lambda *_: "the rate")
    monkeypatch.setattr(ladder, "_losses", lambda *flags: [9.0, loss if "--strategy" in flags else 8.0])
    with pytest.raises(RuntimeError, match="the losses differ") if fails else contextlib.nullcontext():
        assert ladder.ddp() == "the rate, losses of the tiny model within 0.0001 of those on one"


def test_uncompiled_layers_recompute_nothing_on_a_gpu_of_80_gb(monkeypatch):
    """Recomputed layers are a quarter of the work that MFU does not count."""
    gpu = GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=1, total_memory_gb=85.0)
    here = Machine(platform="nvd", gpu_info=gpu, host="here")
    planned = []

    def noted(command, **_):
        name, config = torch_config.read_model_config(command[command.index("--model") + 1])
        for changes in ({"compile": False}, {"compile": True}):
            wanted = RunSettings(steps=8, warmup_steps=2, seed=1, global_batch_size=4, config=config, **changes)
            planned.append(prepare.spec_of(name, wanted, engine=ENGINES["torch"], machine=here))
        raise RuntimeError("noted")

    monkeypatch.setattr(ladder, "on_gpu", lambda: True)
    monkeypatch.setattr(platform, "detect_platform", lambda: here)
    monkeypatch.setattr(ladder.subprocess, "run", noted)
    with pytest.raises(RuntimeError, match="noted"):
        ladder.eager()
    assert [(one.recompute, one.model, one.sequence_length) for one in planned] == 2 * [
        ("none", "llama-16-layers", 8192)
    ]
    assert custom.model_of(planned[0]).parameters == 4_540_469_248


def test_fp8_is_skipped_on_a_gpu_without_units_for_it(monkeypatch, capsys):
    monkeypatch.setattr(ladder, "on_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    properties = SimpleNamespace(major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(ladder, "learns_in_fp8", lambda _: 1 / 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())  # torchao
    assert ladder.main(["--here", "--parts", "fp8"]) == 0
    (line,) = lines(capsys)
    assert line.split()[:2] == ["SKIP", "fp8"]
    assert line.endswith("NVIDIA A100-SXM4-80GB has no matrix units for FP8")


@in_each("wrong", range(3))
def test_a_wrong_gradient_of_queries_keys_or_values_is_found(monkeypatch, wrong):
    """As on a GPU, with the dense mask in the place of FlexAttention, whose one gradient is doubled."""
    right, calls = attention.causal_attention, []

    def doubled(module, *inputs):
        calls.append(inputs)
        changed = list(inputs)
        if len(calls) == 1:
            changed[wrong] = 2 * inputs[wrong] - inputs[wrong].detach()
        return right(module, *changed)

    monkeypatch.setattr(gpu_checks, "on_gpu", lambda: True)
    monkeypatch.setattr(presets, "find_preset", lambda model, _, find=presets.find_preset: find(model, "tiny"))
    monkeypatch.setattr(attention, "_block_mask", attention._dense_mask)
    assert "differs from a dense mask by 0.00%" in gpu_checks.windowed(torch.device("cpu"))
    monkeypatch.setattr(attention, "causal_attention", doubled)
    with pytest.raises(RuntimeError, match=r"FlexAttention differs from a dense mask by 100\.00%"):
        gpu_checks.windowed(torch.device("cpu"))


@pytest.mark.parametrize("part", ["devices", "sampler"])
def test_telemetry_is_skipped_where_no_library_shows_a_device(monkeypatch, part):
    """As on a ROCm image whose Python has no amdsmi, while torch sees its GPUs."""
    node = Machine(platform="amd", gpu_info=GpuInfo(device_count=8), host="here", gpu_ids=("5f8bc1d4e7a2a9b0",))
    monkeypatch.setattr(platform, "detect_platform", lambda: node)
    monkeypatch.setattr(gpu_checks, "on_gpu", lambda: True)
    monkeypatch.setattr("tensorprimat.machine.telemetry.open_devices", lambda _: [])
    with pytest.raises(NotHereError, match="no telemetry"):
        getattr(gpu_checks, part)()


def _quiet(rung, *flags, **whole):
    with contextlib.suppress(RuntimeError):
        rung(*flags, **whole)
    return "noted"


def test_the_part_of_traces_explains_them_and_fails_where_a_layer_repeats_other_products(monkeypatch, tmp_path):
    recorded = {name: f"h200_{name}" for name in ("bf16_a", "bf16_b", "bf16_recomputed", "fp8", "fp8_recomputed")}

    def recording(command, **_):
        folder = Path(command[2])
        folder.mkdir(parents=True, exist_ok=True)
        for name in command[4].split(","):
            source = Path(__file__).parent / "traces" / f"{recorded[name]}.trace.json.gz"
            shutil.copy(source, folder / f"{name}.trace.json.gz")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(ladder, "on_gpu", lambda: True)
    monkeypatch.setattr("tensorprimat.engines.torch.fp8.has_units", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())  # torchao
    monkeypatch.setattr(ladder.subprocess, "run", recording)
    monkeypatch.setattr(ladder, "ROOT", tmp_path)
    printed = ladder.traces()
    assert "bf16_a → bf16_b: The steps of A and B show no difference" in printed
    assert "bf16_a → fp8: B is 15 ms faster a step: products 26.7 ms" in printed
    recorded["bf16_recomputed"] = "h200_bf16_b"
    with pytest.raises(RuntimeError, match="0 products of a recomputed layer repeated"):
        ladder.traces()


@in_each(("verdict", "codes"), [("PASS", (0, 0)), ("SKIP", (0, 1)), ("FAIL", (1, 1))])
def test_a_skipped_part_fails_where_every_part_must_run(monkeypatch, verdict, codes):
    monkeypatch.setattr(ladder, "supervise", lambda _, groups, **__: {name: verdict for one in groups for name in one})
    assert (ladder.main(["--parts", "sync"]), ladder.main(["--parts", "sync", "--no-skips"])) == codes


def test_the_stand_in_for_nvml_has_every_name_in_use_and_only_names_of_the_library():
    real = pytest.importorskip("pynvml")
    stand_in = runpy.run_path(str(scripts.ROOT / "tests" / "nvml_stand_in" / "pynvml.py"))
    names = {name for name in stand_in if name.lower().startswith("nvml")}
    used = re.findall(r"\b(?:nvmlDevice|nvmlSystem|NVML[A-Z_])\w+", Path(nvidia.__file__).read_text())
    assert set(used) <= names <= set(dir(real))
