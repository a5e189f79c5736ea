"""Memory of training by arithmetic, against what autograd really keeps."""

import dataclasses
from itertools import product

import autograd_memory
import pytest
import torch
from each import in_each
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSettings, RunSpec
from tensorprimat.core.units import GB
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.engines.torch import attention as torch_attention
from tensorprimat.engines.torch import cross_entropy, fp8, linear
from tensorprimat.engines.torch import memory as torch_memory
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.machine.platform import Machine
from tensorprimat.models import presets, training_memory
from tensorprimat.models.memory_estimate import CONTEXT_BYTES

H100 = Machine(
    platform="nvd",
    gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=1, total_memory_gb=85.0),
    host="here",
)
LENGTH = 512
RECOMPUTED = ("none", "every second layer", "full")


def spec(**changes):
    return RunSpec(
        **{
            "model": "llama", "preset": "full", "engine": "torch", "steps": 5, "warmup_steps": 1, "micro_batch_size": 1,
            "global_batch_size": 16, "sequence_length": 8192, "precision": "bf16", "num_gpus": 1, "platform": "nvd",
            **changes,
        }
    )  # fmt: skip


def without_window(model, **changes):
    preset = presets.find_preset(model, "full")
    return dataclasses.replace(preset, shape=preset.shape.model_copy(update={"sliding_window": None, **changes}))


def network_of(monkeypatch, preset, *, length=LENGTH, recompute="none", fused_norm=True, stored=torch.bfloat16):
    """Return the real model of a preset, as the torch engine builds it; within FakeTensorMode."""
    monkeypatch.setattr(torch_attention, "mask_of", lambda *_, **__: None)  # on a GPU the window's blocks are small
    torch.set_default_dtype(stored)
    try:
        network = LanguageModel(preset, sequence_length=length)
    finally:
        torch.set_default_dtype(torch.float32)
    if fused_norm:
        torch_memory.fuse_norms(network)
    if recompute != "none":
        network.recompute_activations(recompute)
    return network.train()


def kept_by_autograd(monkeypatch, model, **changes):
    """Return the bytes of every tensor but the weights that autograd holds after forward of sixteen layers."""
    preset = without_window(model, num_layers=16)
    monkeypatch.setattr(training_memory, "model_of", lambda _: preset)
    with FakeTensorMode():
        network = network_of(monkeypatch, preset, **changes)
        with autograd_memory.kept_for_backward(network) as kept:
            network.hidden(torch.zeros((1, LENGTH), dtype=torch.long))
    return autograd_memory.total_bytes(kept)


@in_each("model, recompute", [*product(["llama"], RECOMPUTED), ("qwen", "none"), ("mistral", "none")])
def test_estimated_activations_equal_the_bytes_that_autograd_keeps(monkeypatch, model, recompute):
    counted = kept_by_autograd(monkeypatch, model, recompute=recompute)
    estimated = training_memory.estimate(spec(model=model, sequence_length=LENGTH, recompute=recompute))
    assert estimated.activations == pytest.approx(counted, rel=0.1)


def test_a_norm_of_several_kernels_keeps_more(monkeypatch):
    counted = kept_by_autograd(monkeypatch, "llama", fused_norm=False)
    unfused = spec(sequence_length=LENGTH, options={training_memory.UNFUSED_NORM: "yes"})
    assert training_memory.estimate(unfused).activations == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_plan_knows_whether_torch_fuses_the_norm(monkeypatch, compiled):
    wide = dataclasses.replace(H100, gpu_info=H100.gpu_info.model_copy(update={"total_memory_gb": 400.0}))
    needed = []
    for fused in (True, False):
        monkeypatch.setattr("tensorprimat.engines.prepare.environment.has_fused_norm", lambda _, fused=fused: fused)
        planned = prepare.spec_of("llama", settings(compile=compiled), engine=ENGINES["torch"], machine=wide)
        needed.append(prepare.memory_estimate(planned, "NVIDIA H100 80GB HBM3").activations)
    more = 8192 * 32 * (4 * 4 - 2 * 2) * 4096  # bytes of tokens × layers: four numbers of float32 for two of bf16
    assert needed[1] - needed[0] == (0 if compiled else more)


@pytest.mark.filterwarnings("ignore")  # of torchao's imports
@pytest.mark.parametrize("kept", [False, True])
def test_a_compiled_layer_in_fp8_keeps_what_its_partitioned_graph_hands_to_backward(kept):
    """As torchao 0.18 or our own products run; one in MXFP8, 5 s to count, keeps each of attention's outputs twice."""
    pytest.importorskip("torchao")
    tiny = presets.find_preset("llama", "tiny")
    sizes = {"num_layers": 1, "hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    preset = dataclasses.replace(tiny, shape=tiny.shape.model_copy(update={**sizes, "ffn_hidden_size": 320}))
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        try:
            network = LanguageModel(preset, sequence_length=64)
        finally:
            torch.set_default_dtype(torch.float32)
        torch_memory._use_kernels(network)
        fp8.convert_layers(network.decoder.layers, "tensorwise", kept=kept, emulate=True)
        if kept:
            linear.keep_quantised(linear.linear_layers(network.decoder.layers), compiled=False)
        (handed,) = torch_memory._by_partition(network.train(), 64)
    formula = training_memory.kept_bytes_per_token(
        preset.shape, width=2, compiled=True, fused_norm=True, whole_scores=0, quantised=1, kept_fp8=kept
    )
    assert formula == pytest.approx(handed / 64 + 96 * 2, rel=0.02), "the layer's input is a placeholder"


def test_an_estimate_in_fp8_counts_the_converted_layers():
    """Llama's layers in gigabytes for 8192 tokens: 98,440 bytes of a token against 139,400, and 4,096 more in MXFP8."""
    needed = [training_memory.estimate(spec(compile=True, **one)).activations for one in FP8]
    for found, bytes_more in zip(needed[1:], (139_400 - 98_440, 139_400 - 102_536), strict=True):
        assert needed[0] - found == 32 * 8192 * bytes_more
    eager = [training_memory.estimate(spec(compile=False, **one)).activations for one in FP8]
    assert len(set(eager)) == 1, "torchao keeps the operands before they are quantised"


FP8 = ({}, {"precision": "fp8"}, {"precision": "fp8", "fp8_recipe": "mxfp8"})


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides its own warning, unless warnings are errors
@pytest.mark.parametrize("autocast", [False, True])
def test_a_compiled_layer_keeps_what_its_partitioned_graph_hands_to_backward(autocast):
    kept = []

    def forward(graph, _inputs):
        (results,) = next(node.args for node in graph.graph.nodes if node.op == "output")
        values = [node.meta["val"] for node in results[1:] if node.op != "placeholder"]
        kept.append({value.untyped_storage()._cdata: value.untyped_storage() for value in values})
        return graph.forward

    def backward(graph, _inputs):
        return graph.forward

    shape = presets.find_preset("llama", "tiny").shape.model_copy(update={"hidden_size": 96, "num_attention_heads": 6})
    preset = dataclasses.replace(presets.find_preset("llama", "tiny"), shape=shape)
    network = LanguageModel(preset, sequence_length=64).to(torch.float32 if autocast else torch.bfloat16)
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition)
    torch._dynamo.reset()
    network.decoder.layers[0].compile(backend=backend, dynamic=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        network(torch.randint(0, 1000, (2, 65)))
    torch._dynamo.reset()
    layer_input = 2 * 64 * 96 * (4 if autocast else 2)  # a placeholder of the graph
    counted = sum(storage.nbytes() for storage in kept[0].values()) + layer_input
    of_token = training_memory.kept_bytes_per_token(
        shape, width=2, compiled=True, fused_norm=False, whole_scores=0, autocast=autocast
    )
    weights = sum(weight.numel() for weight in network.decoder.layers[0].parameters() if weight.ndim > 1)
    casts = 2 * weights if autocast else 0
    assert 2 * 64 * of_token + casts == pytest.approx(counted, rel=0.1)


@in_each("model", ["llama", "qwen", "mistral"])
@in_each("tokens", [1024, 8192])
def test_the_loss_needs_the_estimated_workspace(monkeypatch, model, tokens):
    monkeypatch.setitem(cross_entropy.LOGITS_PER_CHUNK, "cpu", cross_entropy.LOGITS_PER_CHUNK["cuda"])
    shape = presets.find_preset(model, "full").shape
    with FakeTensorMode():
        head = torch.empty((shape.vocab_size, shape.hidden_size), dtype=torch.bfloat16, requires_grad=True)
        hidden = torch.empty((tokens, shape.hidden_size), dtype=torch.bfloat16, requires_grad=True)
        targets = torch.zeros(tokens, dtype=torch.long)
        with autograd_memory.PeakOfStorages(hidden, head, targets) as counted:
            cross_entropy.linear_cross_entropy(hidden, head, targets).backward()
    estimated = training_memory.estimate(spec(model=model, sequence_length=tokens)).workspace - CONTEXT_BYTES
    assert estimated == pytest.approx(counted.peak_bytes, rel=0.1)


@in_each("recompute", RECOMPUTED)
@in_each("precision", [{}, {"master_weights": "fp32"}, {"precision": "fp16"}])
def test_a_micro_batch_needs_the_estimated_activations_and_workspace(monkeypatch, recompute, precision):
    """Autocast, which casts float32 weights, keeps the casts until the step ends."""
    monkeypatch.setitem(cross_entropy.LOGITS_PER_CHUNK, "cpu", cross_entropy.LOGITS_PER_CHUNK["cuda"])
    preset = without_window("llama", num_layers=2)
    monkeypatch.setattr(training_memory, "model_of", lambda _: preset)
    with FakeTensorMode():
        stored = torch.float32 if precision else torch.bfloat16
        network = network_of(monkeypatch, preset, length=8192, recompute=recompute, stored=stored)
        tokens = torch.zeros((1, 8193), dtype=torch.long)
        gradients = [torch.empty_like(weight) for weight in network.parameters()]
        for weight, gradient in zip(network.parameters(), gradients, strict=True):
            weight.grad = gradient  # of the micro-batch before
        there = (tokens, *network.parameters(), *network.buffers(), *gradients)
        with autograd_memory.PeakOfStorages(*there) as counted, torch.autocast("cpu", enabled=bool(precision)):
            network(tokens).backward()
    needed = training_memory.estimate(spec(recompute=recompute, **precision))
    estimated = needed.activations + needed.workspace - CONTEXT_BYTES
    assert estimated == pytest.approx(counted.peak_bytes, rel=0.1)


@in_each("layers", [2, 6])
@in_each("recompute", RECOMPUTED)
def test_the_only_micro_batch_of_a_step_frees_activations_before_it_stores_gradients(monkeypatch, recompute, layers):
    monkeypatch.setitem(cross_entropy.LOGITS_PER_CHUNK, "cpu", cross_entropy.LOGITS_PER_CHUNK["cuda"])
    preset = without_window("llama", num_layers=layers)
    monkeypatch.setattr(training_memory, "model_of", lambda _: preset)
    with FakeTensorMode():
        network = network_of(monkeypatch, preset, length=8192, recompute=recompute)
        tokens = torch.zeros((1, 8193), dtype=torch.long)
        there = (tokens, *network.parameters(), *network.buffers())
        with autograd_memory.PeakOfStorages(*there) as counted:
            network(tokens).backward()
    needed = training_memory.estimate(spec(recompute=recompute, global_batch_size=1))
    estimated = needed.total - needed.weights - needed.optimizer - CONTEXT_BYTES
    assert 0.99 * counted.peak_bytes < estimated < 1.3 * counted.peak_bytes
    assert needed.in_turn > 0.1 * needed.total


def test_an_eight_billion_model_needs_more_than_one_h100_and_recomputation_makes_it_fit():
    compiled = spec(compile=True)
    assert training_memory.estimate(compiled).total / GB == pytest.approx(104, rel=0.03)
    assert training_memory.estimate(compiled.changed(recompute="full")).total / GB == pytest.approx(70, rel=0.03)
    plan = training_memory.smallest_that_fits(compiled, 85 * GB).recompute
    assert plan == "34 % of activations kept: queries, keys, output, gate recomputed"
    assert training_memory.smallest_that_fits(compiled, 143 * GB).recompute == "none"
    assert training_memory.smallest_that_fits(compiled, 48 * GB) is None


def test_the_default_recompute_leaves_room_for_errors_of_the_estimate_and_a_flag_does_not():
    plans = training_memory.plans(spec())
    needed = [training_memory.estimate(spec(recompute=plan)).total for plan in plans]
    assert needed == sorted(needed, reverse=True)
    for plan, bytes_needed, following in zip(plans, needed, [*plans[1:], plans[-1]], strict=True):
        assert training_memory.smallest_that_fits(spec(), bytes_needed / 0.93999999).recompute == plan
        assert training_memory.smallest_that_fits(spec(), bytes_needed / 0.94000001).recompute == following
        full = H100.gpu_info.model_copy(update={"total_memory_gb": bytes_needed / 0.99 / GB})
        prepare.check_memory(spec(recompute=plan), dataclasses.replace(H100, gpu_info=full))


def settings(**stated):
    return RunSettings(**{"steps": 20, "warmup_steps": 5, "seed": 1, **stated})


def test_one_h100_recomputes_by_default_and_refuses_a_flag_against_it():
    torch_engine = ENGINES["torch"]
    chosen = prepare.spec_of("llama", settings(), engine=torch_engine, machine=H100)
    assert chosen.falls_back
    assert chosen.recompute.startswith("34 % of activations kept")
    told = prepare.spec_of("llama", settings(recompute="none"), engine=torch_engine, machine=H100)
    with pytest.raises(UsageError, match=r"needs about 1\d\d GB .* use --activation-checkpointing 34%, or"):
        prepare.check_memory(told, H100)


@in_each(("gpus", "batch"), [(1, 16), (4, 64), (8, 128)])
def test_the_global_batch_grows_with_the_gpus(gpus, batch):
    node = dataclasses.replace(H100, gpu_info=H100.gpu_info.model_copy(update={"device_count": 8}))
    made = prepare.spec_of("llama", settings(num_gpus=gpus), engine=ENGINES["torch"], machine=node)
    assert made.global_batch_size == batch


def test_sharding_divides_the_state_but_not_the_activations():
    alone, eight = training_memory.estimate(spec()), training_memory.estimate(spec(num_gpus=8, global_batch_size=128))
    assert eight.weights == alone.weights / 8
    assert eight.optimizer == alone.optimizer / 8
    assert eight.activations == alone.activations


def test_a_compiled_layer_casts_its_weights_again_where_it_is_recomputed():
    alone = {"precision": "fp16", "compile": True}
    kept, again = [training_memory.estimate(spec(recompute=one, **alone)) for one in ("none", "full")]
    eager = training_memory.estimate(spec(recompute="full", precision="fp16"))
    casts = 2 * presets.find_preset("llama").decoder.layer_weights
    assert eager.activations - again.activations == pytest.approx(casts)
    assert kept.activations - again.activations > casts


def test_split_master_weights_are_gathered_as_bfloat16_and_keep_no_casts():
    split = {"num_gpus": 8, "global_batch_size": 128}
    pure, masters = [training_memory.estimate(spec(**split, master_weights=one)) for one in (None, "fp32")]
    assert (masters.activations, masters.workspace) == (pure.activations, pure.workspace)
    assert masters.weights == 2 * pure.weights


def test_float32_master_weights_double_the_state():
    assert (
        training_memory.estimate(spec(master_weights="fp32")).optimizer
        == 2 * training_memory.estimate(spec()).optimizer
    )


@in_each(
    ("stated", "engine", "message"),
    [
        ({"recompute": "some"}, "torch", "--activation-checkpointing some: must be none, selective, full or a share"),
        ({"recompute": "0%"}, "torch", "--activation-checkpointing 0%: must be none, selective, full or a share"),
        ({"recompute": "3%"}, "torch", "--activation-checkpointing 3%: .* full keeps least, 6 %; use full"),
        ({"recompute": "35%"}, "nemo", "--activation-checkpointing 35%: only the torch engine has it"),
        ({"recompute": "selective"}, "nemo", "--activation-checkpointing selective: only the torch engine has it"),
        ({"compile": True}, "nemo", "--compile: only the torch engine has it"),
        ({"attention_backend": "flash"}, "bridge", "--attention: only the torch engine has it"),
        ({"master_weights": "fp32"}, "nemo", "--master-weights: only the torch engine has it"),
    ],
)
def test_flags_of_the_torch_engine_are_refused_by_others(stated, engine, message):
    with pytest.raises(UsageError, match=message):
        prepare.spec_of("llama", settings(**stated), engine=ENGINES[engine], machine=H100)


OF_FLAG = {
    "--activation-checkpointing": lambda word: {"recompute": {"selective": "every second layer"}.get(word, word)},
    "--micro-batch-size": lambda word: {"micro_batch_size": int(word)},
    "--sequence-length": lambda word: {"sequence_length": int(word)},
    "--strategy": lambda word: {"strategy": word},
    "--num-gpus": lambda word: {"num_gpus": int(word), "strategy": "fsdp"},
    "--preset": lambda word: {"preset": word, "recompute": "none"},
}


@in_each("memory", [24, 48, 60, 72, 85, 100])
@in_each("micro", [1, 4])
@in_each("recompute", RECOMPUTED)
@in_each("devices", [1, 8])
def test_each_remedy_for_memory_makes_the_run_fit_as_it_is_written(memory, micro, recompute, devices):
    told = spec(micro_batch_size=micro, recompute=recompute, num_gpus=devices, strategy="ddp")
    if training_memory.estimate(told).total <= memory * GB:
        return
    stated = training_memory.remedies(told, memory * GB)
    assert stated
    for remedy in stated:
        words = remedy.removesuffix(" (other work)").replace(" (other work) with", "").replace(" with", "").split()
        changed = told
        for flag, word in zip(words[::2], words[1::2], strict=True):
            changes = OF_FLAG[flag](word)
            if word.endswith("%"):
                changes = {"recompute": training_memory.with_share(changed, int(word[:-1]) / 100).recompute}
            assert any(getattr(told, name) != value for name, value in changes.items()), f"{remedy} changes nothing"
            changed = changed.model_copy(update=changes)
        assert training_memory.estimate(changed).total <= memory * GB, remedy
