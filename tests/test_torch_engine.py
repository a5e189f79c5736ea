"""The torch engine: the right models, a loss that is right and falls, and every way it can start and end."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("transformers")

import lightning.pytorch
import torch
from architectures import completed
from torch.nn import functional

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import failures, introspect
from tensorprimat.engines.torch import cross_entropy
from tensorprimat.engines.torch import engine as torch_engine
from tensorprimat.engines.torch import model as torch_model
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.machine.platform import Machine
from tensorprimat.models import presets, training_memory
from tensorprimat.storage import store

MODULE = "tensorprimat.engines.torch.engine"
CPU = Machine(platform="cpu", gpu_info=GpuInfo(), host="here")
EIGHT_H100 = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=8), host="here")


def spec_of(**changes):
    fields = {
        "model": "llama", "preset": "tiny", "engine": "torch", "steps": 4, "warmup_steps": 1, "micro_batch_size": 2,
        "global_batch_size": 4, "sequence_length": 32, "precision": "fp32", "num_gpus": 1,
    }  # fmt: skip
    return RunSpec(**{**fields, **changes})


class Run:
    """The engine in a process of its own."""

    def __init__(self, folder, spec, *, launcher=None, environment=None):
        self.spec_file, self.result_file = folder / "spec.json", folder / "result.json"
        self.spec_file.write_text(spec if isinstance(spec, str) else spec.model_dump_json())
        self.process = subprocess.Popen(
            [*(launcher or [sys.executable]), "-m", MODULE, "--spec", self.spec_file, "--result", self.result_file],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
            start_new_session=True,
        )  # fmt: skip

    def end(self, timeout=300):
        """Return (exit code, lines of stdout, lines of stderr)."""
        try:
            printed, complaints = self.process.communicate(timeout=timeout)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode, printed.splitlines(), complaints.splitlines()

    def wait_for_step(self):
        for line in self.process.stdout:
            if " Step " in line:
                return
        raise AssertionError(self.process.communicate()[1])

    @property
    def result(self):
        return store.load(self.result_file)

    @property
    def document(self):
        return json.loads(self.result_file.read_text())


@pytest.mark.parametrize(
    ("model", "preset", "parameters"),
    [
        ("llama", "full", 8_030_261_248),
        ("qwen", "full", 7_615_616_512),
        ("mistral", "full", 7_241_732_096),
        ("llama", "tiny", 1_901_696),
        ("qwen", "tiny", 2_443_136),
        ("mistral", "tiny", 1_115_264),
        ("course", "small", 128_625_408),
    ],
)
def test_models_have_the_published_shape_and_count(model, preset, parameters):
    required = presets.find_preset(model, preset)
    with torch.device("meta"):
        built = LanguageModel(required)
    assert sum(parameter.numel() for parameter in built.parameters()) == parameters
    found, warnings = introspect.describe_model(built, sharded=False)
    assert (found.shape, found.parameters, warnings) == (required.shape, parameters, [])


@pytest.mark.parametrize("model", ["llama", "qwen", "mistral"])
def test_the_loss_is_that_of_transformers(model):
    torch.manual_seed(1)
    network = LanguageModel(presets.find_preset(model, "tiny"))
    tokens = torch.randint(0, 1000, (2, 100))
    untouched = torch_model.causal_model(presets.find_preset(model, "tiny"), attention="eager")
    untouched.load_state_dict(network.causal.state_dict())
    reference = untouched(input_ids=tokens, labels=tokens, use_cache=False).loss
    reference.backward()
    loss = network(tokens)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=1e-5)
    for ours, theirs in zip(network.parameters(), untouched.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("logits_per_chunk", [2**30, 7 * 50, 1])
@pytest.mark.parametrize(("biased", "soft_cap"), [(False, None), (True, None), (False, 3.0), (True, 3.0)])
def test_cross_entropy_in_chunks_equals_cross_entropy(monkeypatch, logits_per_chunk, biased, soft_cap):
    monkeypatch.setitem(cross_entropy.LOGITS_PER_CHUNK, "cpu", logits_per_chunk)
    torch.manual_seed(1)
    hidden, weight = torch.randn(23, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    bias = torch.randn(50, requires_grad=True) if biased else None
    leaves = (hidden, weight) if bias is None else (hidden, weight, bias)
    targets = torch.randint(0, 50, (23,))
    logits = functional.linear(hidden, weight, bias)
    logits = soft_cap * torch.tanh(logits / soft_cap) if soft_cap else logits
    expected = torch.autograd.grad(functional.cross_entropy(logits, targets) / 3, leaves)
    loss = cross_entropy.linear_cross_entropy(hidden, weight, targets, bias=bias, soft_cap=soft_cap)
    found = torch.autograd.grad(loss / 3, leaves)
    for gradient, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_cross_entropy_of_logits_equals_that_of_torch(kind, tolerance):
    torch.manual_seed(1)
    logits, targets = torch.randn(23, 50).to(kind).requires_grad_(), torch.randint(0, 50, (23,))
    required = functional.cross_entropy(logits.float(), targets)
    (wanted_gradient,) = torch.autograd.grad(required / 3, logits)
    loss = cross_entropy.cross_entropy(logits, targets)
    (gradient,) = torch.autograd.grad(loss / 3, logits)
    torch.testing.assert_close(loss, required)
    assert gradient.dtype == kind
    torch.testing.assert_close(gradient, wanted_gradient, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("how", ["pure", "autocast"])
def test_cross_entropy_in_bfloat16_keeps_types_and_is_near(how):
    torch.manual_seed(1)
    kind = torch.bfloat16 if how == "pure" else torch.float32
    hidden, weight = torch.randn(64, 32).to(kind).requires_grad_(), torch.randn(128, 32).to(kind).requires_grad_()
    targets = torch.randint(0, 128, (64,))
    reference = functional.cross_entropy(hidden.float() @ weight.float().T, targets)
    required = torch.autograd.grad(reference, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        loss = cross_entropy.linear_cross_entropy(hidden, weight, targets)
    found = torch.autograd.grad(loss, (hidden, weight))
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=0.01)
    for gradient, near in zip(found, required, strict=True):
        assert gradient.dtype == kind
        torch.testing.assert_close(gradient.float(), near.float(), rtol=0.1, atol=2e-3)


def test_rotary_frequencies_survive_the_conversion_to_bfloat16():
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    before = next(part.inv_freq for part in network.modules() if hasattr(part, "inv_freq"))
    network.to(torch.bfloat16)
    network.restore_rotary()
    after = next(part.inv_freq for part in network.modules() if hasattr(part, "inv_freq"))
    assert after.dtype == torch.float32
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize(
    ("changes", "machine", "message"),
    [
        (
            {"tensor_model_parallel_size": 2, "num_gpus": 2},
            CPU,
            "--tensor-parallel-size 2: the torch engine supports data parallelism only",
        ),
        ({"precision": "fp8"}, CPU, "--precision fp8: not on a CPU; use fp32 or bf16"),
        ({"precision": "bf16", "fp8_recipe": "rowwise"}, CPU, "--fp8-recipe rowwise: only with --precision fp8"),
        ({"precision": "fp16"}, CPU, "--precision fp16: not on a CPU"),
        ({"precision": "tf32"}, CPU, "--precision tf32: not on a CPU"),
        ({"preset": "huge"}, CPU, "no preset 'huge' of llama"),
        ({"platform": "amd"}, EIGHT_H100, "the spec is for platform amd, but torch sees a CUDA machine"),
        (
            {"platform": "nvd", "num_gpus": 16, "global_batch_size": 32},
            EIGHT_H100,
            "--num-gpus 16: only 8 GPUs visible",
        ),
        ({"global_batch_size": 3}, CPU, "--global-batch-size 3 is not a multiple"),
        ({"strategy": "ddp"}, CPU, "--strategy ddp: one device needs no strategy; leave --strategy out"),
        ({"strategy": "fsdp", "platform": "nvd"}, EIGHT_H100, "--strategy fsdp: one device needs no strategy"),
    ],
)
def test_an_impossible_setting_is_refused_by_its_flag(changes, machine, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        torch_engine.check(spec_of(**changes), machine)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"master_weights": "fp32"}, "--master-weights fp32: autocast would multiply the experts .* leave it out$"),
        ({"master_weights": "fp32", "num_gpus": 2, "strategy": "ddp"}, "in float32; use --strategy fsdp$"),
        ({"precision": "fp16", "platform": "nvd"}, "^--precision fp16: .* use --precision bf16$"),
    ],
)
def test_experts_are_not_trained_under_autocast_which_leaves_their_products_in_float32(changes, message):
    mixtral = {"model": "mixtral", "preset": "full", "config": completed("mixtral"), "precision": "bf16"}
    spec = spec_of(**{**mixtral, **changes})
    with pytest.raises(UsageError, match=message):
        torch_engine.check(spec, EIGHT_H100)
    torch_engine.check(spec.changed(precision="bf16", strategy="fsdp", num_gpus=2, platform="cpu"), CPU)


def test_large_models_are_split_and_small_ones_replicated_whatever_the_memory():
    eight = {"platform": "nvd", "num_gpus": 8, "global_batch_size": 16}
    assert training_memory.strategy_of(spec_of()) == "single"
    assert training_memory.strategy_of(spec_of(**eight)) == "ddp"
    assert training_memory.strategy_of(spec_of(**eight, preset="full")) == "fsdp"
    assert training_memory.strategy_of(spec_of(**eight, preset="full", strategy="ddp")) == "ddp"


def test_remedies_for_memory_never_touch_the_global_batch():
    printed = failures.memory_remedies(spec_of(micro_batch_size=4))
    assert printed.startswith("--micro-batch-size 2, --sequence-length 16 (other work), --recompute")
    assert "global" not in printed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"platform": "nvd", "preset": "full"}, True), ({"platform": "nvd"}, False), ({"preset": "full"}, False),
        ({"platform": "amd", "preset": "full"}, False),
        ({"platform": "nvd", "preset": "full", "model": "mixtral", "config": {"model_type": "mixtral"}}, False),
    ],
    ids=str,
)  # fmt: skip
def test_an_engine_that_splits_layers_is_advised_only_where_it_could_train_the_model(changes, named):
    assert ("--tensor-parallel-size with --engine nemo" in failures.memory_remedies(spec_of(**changes))) == named


@pytest.mark.parametrize(("micro", "advised"), [(6, 3), (5, 1), (1, None)])
def test_the_advised_micro_batch_divides_the_batch_as_the_present_one_does(micro, advised):
    printed = failures.memory_remedies(spec_of(micro_batch_size=micro, global_batch_size=micro))
    assert re.findall(r"--micro-batch-size (\d+)", printed) == ([str(advised)] if advised else [])


def test_a_tiny_model_trains_and_learns(tmp_path):
    run = Run(tmp_path, spec_of(steps=20, warmup_steps=5, micro_batch_size=2, global_batch_size=4, sequence_length=64))
    code, printed, complaints = run.end()
    assert (code, complaints) == (0, [])
    result = run.result
    losses = result.steps.column("loss")
    assert losses[0] == pytest.approx(math.log(4096), abs=0.3)
    assert losses[-5:].mean() < math.log(4096) - 1.5  # uniform tokens would stay at ln V
    assert result.complete
    assert [step.index for step in result.steps] == list(range(1, 26))
    figures = result.performance_metrics
    assert figures.measured_steps + figures.warmup_steps_dropped == 25  # on a busy machine the warm-up can be longer
    assert result.performance_metrics.tokens_per_step == 4 * 64
    config = result.training_config
    assert (config.global_batch_size, config.gradient_accumulation_steps, config.sequence_length) == (4, 2, 64)
    assert (config.attention_backend, config.attention_kernel, config.compile) == ("sdpa", "flash", False)
    assert (config.recompute, config.fused_kernels) == ("none", "linear cross-entropy, AdamW")
    assert {"torch", "lightning", "transformers", "python"} <= set(config.versions)
    assert result.model.shape == presets.find_preset("llama", "tiny").shape
    assert result.provenance.engine == "torch"
    assert not [warning for warning in result.warnings if warning.startswith(("training_config", "timer", "model"))]
    assert sum(" Step " in line for line in printed) >= 10


@pytest.mark.filterwarnings("ignore")  # Lightning's and transformers' own; the process of the test above says nothing
def test_a_model_does_not_learn_from_uniform_tokens(tmp_path, monkeypatch):
    def uniform(stream, number, length):
        return np.random.default_rng(number).integers(0, stream.vocabulary_size, length)

    monkeypatch.setattr("tensorprimat.engines.torch.data.TokenStream.sequence", uniform)
    spec = spec_of(model="mistral", steps=15, micro_batch_size=4, sequence_length=64)
    torch_engine.train(spec, tmp_path / "result.json")
    losses = store.load(tmp_path / "result.json").steps.column("loss")
    assert losses[-5:].mean() > math.log(1024) - 0.1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("changes", "recorded"),
    [
        ({"precision": "bf16", "model": "qwen"}, ("bfloat16", "bfloat16", "bfloat16")),
        ({"precision": "bf16", "master_weights": "fp32"}, ("bfloat16", "float32", "float32")),
        ({"recompute": "full", "model": "mistral", "attention_backend": "eager"}, ("float32", "float32", "float32")),
    ],
)
def test_precision_and_recompute_take_effect_and_are_recorded(tmp_path, changes, recorded):
    torch_engine.train(spec_of(**changes), tmp_path / "result.json")
    config = store.load(tmp_path / "result.json").training_config
    assert (config.compute_dtype, config.parameter_dtype, config.optimizer_dtype) == recorded
    assert config.recompute == changes.get("recompute", "none")
    assert config.attention_backend == changes.get("attention_backend", "sdpa")


@pytest.mark.parametrize("ending", ["done", "failed"])
def test_a_training_ends_without_copying_weights_or_optimizer_state_to_the_host(monkeypatch, tmp_path, ending):
    copied = []
    module, strategy = lightning.pytorch.LightningModule, lightning.pytorch.strategies.strategy
    monkeypatch.setattr(module, "cpu", lambda _: copied.append("weights"))
    monkeypatch.setattr(strategy, "_optimizers_to_device", lambda found, _: copied.extend(o for o in found if o.state))
    if ending == "failed":
        steps_left = [2, 1, 0]
        monkeypatch.setattr(torch.optim.AdamW, "zero_grad", lambda *_, **__: 1 / steps_left.pop(0))
    with contextlib.suppress(ZeroDivisionError):
        torch_engine.train(spec_of(), tmp_path / "result.json")
    assert store.load(tmp_path / "result.json").complete == (ending == "done")
    assert copied == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_gpu_trains_and_its_memory_and_events_are_read(tmp_path, precision):
    platform = "amd" if torch.version.hip else "nvd"
    run = Run(tmp_path, spec_of(platform=platform, precision=precision, steps=30))
    code, _, complaints = run.end()
    assert (code, complaints) == (0, [])
    result = run.result
    assert result.provenance.timer == "device events"
    assert result.memory_metrics.peak_memory_allocated_gb > 0.001
    assert not [warning for warning in result.warnings if warning.startswith("timer")]


def test_a_port_in_use_is_reported(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29500")
    taken = RuntimeError("The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE")
    assert failures.end_reason(taken) == "the port 29500 is taken; set MASTER_PORT to a free one, or unset it"


def test_a_rank_that_lost_another_reports_it():
    lost = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically caused by a crash.")
    assert failures.end_reason(lost).startswith("the connection to another rank was lost; it crashed or was killed")
