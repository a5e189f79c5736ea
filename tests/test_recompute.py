"""Plans of recomputation: what they keep, what they compute again, and that they change no result."""

import dataclasses
import functools
import re

import plausible
import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("transformers")

import torch
from architectures import tiny
from each import in_each, in_some
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorprimat.core.errors import OutOfMemoryError, RunError, UsageError
from tensorprimat.core.result import PerformanceMetrics
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.engines.launch import Ending
from tensorprimat.engines.torch import memory as torch_memory
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.optimizer import adamw
from tensorprimat.models import presets, recompute, training_memory
from tensorprimat.models.families import FAMILIES
from tensorprimat.session.runs import spec_with_less_memory

pytestmark = [  # of torch, while it compiles
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd"),
]


@pytest.fixture(autouse=True)
def without_compiled_code():
    """Compiled code belongs to the class of a layer: other tests compile the same."""
    yield
    torch._dynamo.reset()


def spec(**changes):
    return RunSpec(
        **{
            "model": "llama", "preset": "full", "engine": "torch", "steps": 5, "warmup_steps": 1, "micro_batch_size": 1,
            "global_batch_size": 4, "sequence_length": 8192, "precision": "bf16", "num_gpus": 1, "platform": "nvd",
            "compile": True, "falls_back": True, **changes,
        }
    )  # fmt: skip


@functools.cache
def graphs_of(plan, model, length=8192):
    """Return the products and attentions of the compiled forward and backward graph of a layer, and what it keeps.

    The model is a layer of llama or qwen, or of a tiny architecture.
    """
    found = {}
    if model in ("llama", "qwen"):
        preset = presets.find_preset(model)
        preset = dataclasses.replace(preset, shape=preset.shape.changed(num_layers=1))
    else:
        preset = tiny(model)
    torch._dynamo.reset()

    def counted(graph):
        calls = [f"{node.target} {node.args}" for node in graph.graph.nodes if node.op == "call_function"]
        products = sum(one.startswith(("aten.mm.", "aten.addmm.")) for one in calls)
        attentions = sum("aten._scaled_dot_product_" in one and "_backward" not in one for one in calls)
        return products, attentions

    def forward(graph, _):
        found.setdefault("forward", (*counted(graph), torch_memory._handed_over(graph)))
        return graph.forward

    def backward(graph, _):
        found.setdefault("backward", counted(graph))
        return graph.forward

    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition)
    with FakeTensorMode(allow_non_fake_inputs=True):  # the state of the generator is none
        torch.set_default_dtype(torch.bfloat16)
        try:
            network = LanguageModel(preset, sequence_length=length)
        finally:
            torch.set_default_dtype(torch.float32)
        del network.decoder.layers[1:]
        torch_memory._use_kernels(network)
        if plan != Recompute.NONE:
            network.recompute_activations(plan)
        network.decoder.layers[0].compile(backend=backend, dynamic=False)
        network.hidden(torch.zeros((1, length), dtype=torch.long)).sum().backward()
    return found


@in_each("model, position", [("llama", 1), ("llama", 12), ("llama", 25), ("llama", -1), ("qwen", 12)])
def test_a_compiled_layer_runs_and_keeps_what_its_plan_says(model, position):
    """The position is that of the plan in the list; the last one is `full`, which never repeats the product `down`."""
    told = spec(model=model)
    plan = training_memory.plans(told)[position]
    found = graphs_of(plan, model)
    again = Recompute(plan).operations
    products = 14 + len(set(again) - {Recompute.ATTENTION})
    assert found["backward"] == (products, 1 if Recompute.ATTENTION in again else 0)
    assert found["forward"][:2] == (7, 1)
    of_input = 2 * presets.find_preset(model).shape.hidden_size  # a placeholder of the graph
    counted = found["forward"][2] / 8192 + of_input
    assert training_memory._kept_of_layer(told.changed(recompute=plan)) == pytest.approx(counted, rel=0.001)


@in_some(
    5,
    "kind",
    [kind for kind, family in FAMILIES.items() if family.summed_products is not None] + ["phi3", "arcee", "starcoder2"],
)
def test_an_architecture_knows_which_products_backward_does_not_need(kind):
    """A norm after the MLP needs the last one; Cohere sums attention and MLP, and needs the last of neither."""
    found = graphs_of("full", kind, length=64)
    forward, backward = found["forward"][0], found["backward"][0]
    summed = tiny(kind).shape.summed_products
    assert backward == 3 * forward - len(("down",) if summed is None else summed)


PARTS = Recompute.plan(("queries", "output", "up"), 0.35)


@in_each(("kind", "plan"), [("olmo2", PARTS), ("cohere", PARTS), ("arcee", "full"), ("phi", "full")])
def test_flops_of_a_plan_are_those_of_the_products_that_the_layers_repeat(kind, plan):
    found = graphs_of(plan, kind, length=64)
    products = found["backward"][0] - 2 * found["forward"][0]
    ones = {"hidden_size": 1, "ffn_hidden_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 1}
    shape = tiny(kind).shape.changed(**ones)  # in which a product has 2 FLOPs
    again = set(Recompute(plan).operations) - {Recompute.ATTENTION}
    assert recompute.recomputed_flops(shape, again, 64) == 2 * products


def losses_and_norms(plan=Recompute.NONE, *, compiled=False, preset="tiny", model="llama", steps=3):
    torch.manual_seed(0)
    chosen = presets.find_preset(model, preset) if isinstance(model, str) else model
    network = LanguageModel(chosen, sequence_length=32)
    if plan != Recompute.NONE:
        network.recompute_activations(plan)
    if compiled:
        network.compile_layers()
    optimizer = adamw(network, fused=True, compiled=compiled, learning_rate=3e-3)
    tokens = torch.arange(66).reshape(2, 33) * 7 % 500
    found = []
    for _ in range(steps):
        loss = network(tokens)
        loss.backward()
        found.append((loss.item(), optimizer.clip(1.0).item()))
        optimizer.step()
        optimizer.zero_grad()
    return torch.tensor(found)


@pytest.mark.parametrize("model", ["llama", "qwen"])
def test_every_plan_trains_exactly_as_without_recomputation(model):
    without = losses_and_norms(model=model)
    for plan in training_memory.plans(spec(preset="tiny", model=model, precision="fp32", sequence_length=32))[1::6]:
        torch.testing.assert_close(losses_and_norms(plan, model=model), without, rtol=0, atol=0)
    torch.testing.assert_close(losses_and_norms("every second layer", model=model), without, rtol=0, atol=0)


def test_a_layer_that_is_computed_again_drops_the_same_activations():
    model = tiny("seed_oss", attention_dropout=0.1, residual_dropout=0.1)
    torch.testing.assert_close(losses_and_norms("full", model=model), losses_and_norms(model=model), rtol=0, atol=0)


def test_compiled_layers_loss_and_optimizer_train_as_eager_ones():
    plan = Recompute.plan(("queries", "attention", "up"), 0.4)
    torch.testing.assert_close(losses_and_norms(plan, compiled=True), losses_and_norms(), rtol=1e-5, atol=1e-6)


@in_each("limit", [1e-3, 1e6])
@in_each("compiled", [False, True])
def test_clipping_while_updating_equals_clipping_before(limit, compiled):
    torch.manual_seed(1)
    plain, ours = torch.nn.Linear(48, 64), torch.nn.Linear(48, 64)
    ours.load_state_dict(plain.state_dict())
    groups = [{"params": [plain.weight]}, {"params": [plain.bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer = adamw(ours, fused=True, compiled=compiled, learning_rate=0.1)
    for _ in range(3):
        gradients = [torch.randn_like(one) for one in plain.parameters()]
        for model in (plain, ours):
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), limit)
        assert optimizer.clip(limit).item() == pytest.approx(norm.item())
        reference.step()
        optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_step_without_clip_uses_the_gradients_as_they_are():
    weight = torch.nn.Linear(4, 4, bias=False)
    optimizer = adamw(weight, fused=True)
    weight.weight.grad = torch.full((4, 4), 8.0)
    optimizer.clip(1.0)
    optimizer.step()
    assert optimizer.grad_scale is None


def test_a_plan_is_refused_for_layers_with_other_operations():
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    network.decoder.layers[0].mlp.more_proj = torch.nn.Linear(4, 4)
    with pytest.raises(UsageError, match="not for the layers of this model; use selective or full"):
        network.recompute_activations(Recompute.plan(("up",), 0.5))


def test_mxfp8_has_no_plan_because_its_products_are_not_those_of_torch():
    told = spec(precision="fp8", fp8_recipe="mxfp8")
    assert training_memory.plans(told) == ["none", "every second layer", "full"]


def test_a_share_chooses_the_fastest_plan_that_keeps_at_most_so_much():
    for share in range(6, 100):
        plan = training_memory.with_share(spec(), share / 100).recompute
        kept = 6 if plan == Recompute.ALL_LAYERS else int(re.match(r"\d+", plan)[0])
        assert kept <= share
        faster = training_memory.plans(spec())[: training_memory.plans(spec()).index(plan)]
        assert all(one == Recompute.NONE or int(re.match(r"\d+", one)[0]) > share for one in faster)
    assert training_memory.with_share(spec(), 1.0).recompute == Recompute.NONE


class Observer:
    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def ended(error=None, measured=0):
    result = plausible.bare(performance_metrics=PerformanceMetrics(measured_steps=measured))
    return Ending(result=result, error=OutOfMemoryError("out of memory") if error is None else error)


def test_a_plan_of_auto_that_runs_out_of_memory_gives_way_to_a_smaller_one():
    observer, told = Observer(), spec(recompute=training_memory.plans(spec())[5])
    smaller = spec_with_less_memory(told, ended(), observer)
    needed = [training_memory.estimate(one).total for one in (told, smaller)]
    assert needed[1] <= 0.97 * needed[0]
    assert smaller.notes == tuple(observer.warnings)
    (said,) = observer.warnings
    assert (said.code, said.field) == ("recompute_increased", "recompute")
    assert said.values == {"before": told.recompute, "after": smaller.recompute}


@in_each(
    ("changes", "ending"),
    [
        ({"falls_back": False}, ended()),
        ({"recompute": "full"}, ended()),
        ({}, ended(measured=1)),
        ({}, ended(error=RunError("another"))),
        ({}, dataclasses.replace(ended(), interrupted=True)),
    ],
)
def test_a_run_does_not_start_again_with_less_memory(changes, ending):
    assert spec_with_less_memory(spec(**changes), ending, Observer()) is None


def test_every_plan_is_read_from_its_own_words():
    for plan in training_memory.plans(spec())[1:]:
        again = Recompute(plan).operations
        assert plan == Recompute.ALL_LAYERS or f"{', '.join(again) or 'no product'} recomputed" in plan
    for text in ("none", "selective", "35 % of activations kept: everything recomputed"):
        assert Recompute(text).operations is None
