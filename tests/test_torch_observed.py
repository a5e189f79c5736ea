"""The result of the torch engine names the settings that ran, where they differ from the plan."""

from collections import Counter
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("transformers")

import torch
from test_torch_engine import spec_of
from torch.nn.attention import SDPBackend, sdpa_kernel

from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.engines.torch import engine as torch_engine
from tensorprimat.engines.torch import fp8, observations
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.module import TrainingModule
from tensorprimat.engines.torch.optimizer import adamw
from tensorprimat.models import presets
from tensorprimat.storage import store

pytestmark = [  # of torch, while it compiles
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
LAYERS = 4
KEEPS_ATTENTION = Recompute.plan(("queries", "up"), 0.35)
KEEPS_PRODUCTS = Recompute.plan(("attention",), 0.6)
PLAN = TrainingConfig(
    compile=False, attention_kernel="flash", recompute="none", fused_kernels="linear cross-entropy, AdamW"
)
COMPILED = PLAN.changed(compile=True, fused_kernels="SwiGLU, linear cross-entropy, AdamW")


@pytest.fixture(autouse=True)
def without_compiled_code():
    """Compiled code belongs to the class of a layer: other tests compile the same."""
    yield
    torch._dynamo.reset()


@pytest.fixture
def network():
    return LanguageModel(presets.find_preset("llama", "tiny"), sequence_length=16)


def operations_of(network, *, fused=True):
    """Return the operations of the second step."""
    optimizer, tokens = adamw(network, fused=fused), torch.arange(34).reshape(2, 17)
    operations = Counter()
    for recorded in (Counter(), operations):
        with observations.recording(recorded):
            network(tokens).backward()
            optimizer.step()
        optimizer.zero_grad()
    return operations


def compiled(network, backend="aot_eager"):
    for layer in network.decoder.layers:
        layer.compile(backend=backend, dynamic=False)
    return network


def ran(network, planned, **options):
    fields, told = observations.observed_settings(operations_of(network, **options), planned, layers=LAYERS)
    return fields, [(one.code, one.field, one.values) for one in told]


@pytest.mark.parametrize("recompute", ["none", "full", "every second layer", KEEPS_ATTENTION, KEEPS_PRODUCTS])
def test_a_run_as_planned_contradicts_nothing(network, recompute):
    if recompute != "none":
        network.recompute_activations(recompute)
    assert ran(network, PLAN.changed(recompute=recompute)) == ({}, [])


@pytest.mark.parametrize("recompute", ["full", "every second layer"])
def test_recomputation_is_counted_from_the_calls_of_attention(network, recompute):
    network.recompute_activations(recompute)
    assert ran(network, PLAN) == (
        {"recompute": recompute},
        [("other_recompute", "recompute", {"planned": "none", "ran": recompute})],
    )


def test_recomputation_that_did_not_happen_is_seen(network):
    assert ran(network, PLAN.changed(recompute="full"))[0] == {"recompute": "none"}


def test_an_attention_kernel_that_was_switched_off_is_seen(network):
    with sdpa_kernel(SDPBackend.MATH):
        assert ran(network, PLAN) == (
            {"attention_kernel": "math"},
            [("other_kernel", "attention_kernel", {"planned": "flash", "ran": "math"})],
        )


def test_an_optimizer_that_is_not_fused_is_seen(network):
    fields, (warning,) = ran(network, PLAN, fused=False)
    assert fields == {"fused_kernels": "linear cross-entropy"}
    assert warning == ("kernels_unfused", "fused_kernels", {"kernels": "AdamW"})


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("converts", [True, False])
def test_products_in_fp8_are_seen(network, recipe, converts):
    pytest.importorskip("torchao")
    network = network.to(torch.bfloat16)
    if converts:
        fp8.convert_layers(network.decoder.layers, recipe)
    found = ran(network, PLAN.changed(precision="fp8", compute_dtype="float8", fp8_recipe=recipe))
    if converts:
        assert found == ({}, [])
    else:
        assert found[0] == {"precision": "bf16", "compute_dtype": "bfloat16", "fp8_recipe": None}
        assert found[1] == [("fp8_unused", "precision", {})]


def test_compiled_layers_contradict_nothing(network):
    assert ran(compiled(network), COMPILED) == ({}, [])


def test_a_compiled_graph_with_plain_products_for_attention_is_seen(network):
    """Torch's cache of compiled graphs returns one that was traced while the flash kernel was switched off."""
    with sdpa_kernel(SDPBackend.MATH):
        operations = operations_of(compiled(network))
    assert observations.observed_settings(operations, COMPILED, layers=LAYERS)[0] == {"attention_kernel": "math"}


@torch._dynamo.config.patch(recompile_limit=1)
def test_layers_that_run_without_their_compiled_code_are_counted(network):
    for number, layer in enumerate(compiled(network).decoder.layers):
        layer.mlp.act_fn = torch.nn.SiLU() if number % 2 else torch.nn.ReLU()
    fields, (warning,) = ran(network, COMPILED)
    assert fields == {"compile": False, "fused_kernels": "linear cross-entropy, AdamW"}
    assert warning == ("layers_uncompiled", "compile", {"uncompiled": 2, "layers": 4})


def test_a_layer_in_several_graphs_is_seen(network, monkeypatch):
    kind = type(network.decoder.layers[0].mlp)
    whole = kind.forward

    def in_two_graphs(self, hidden):
        torch._dynamo.graph_break()
        return whole(self, hidden)

    monkeypatch.setattr(kind, "forward", in_two_graphs)
    fields, (warning,) = ran(compiled(network), COMPILED)
    assert fields == {}
    assert (warning[:2], warning[2]["layers"]) == (("graphs_broken", "compile"), 4)


def test_without_recorded_operations_no_setting_is_corrected():
    assert observations.observed_settings({}, COMPILED, layers=LAYERS) == ({}, [])


def test_nothing_is_recorded_while_another_profiler_is_active(network):
    with torch.autograd.profiler.profile(), observations.recording(operations := Counter()):
        network(torch.arange(34).reshape(2, 17))
    assert not operations


class _Record:
    def __init__(self, kind, name):
        self.kind, self.name = lambda: kind, lambda: name


def test_a_thread_that_was_within_an_operation_at_the_start_is_read_all_the_same():
    records = [_Record("pop", "before"), _Record("push", "mm"), _Record("push", "mm"), _Record("pop", "mm")]
    assert list(observations._begun([*records, _Record("push", "mm")])) == ["mm", "mm"]


@contextmanager
def never_compiling():
    torch.compiler.set_stance("force_eager")
    try:
        yield
    finally:
        torch.compiler.set_stance("default")


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch 2.6 has it")
def test_the_result_names_what_ran_and_warns(tmp_path):
    spec = spec_of(compile=True, steps=2, warmup_steps=2)
    module = TrainingModule(spec)
    callback = torch_engine.callback_of(spec, module, tmp_path / "result.json")
    with never_compiling():
        torch_engine.trainer_of(spec, [callback]).fit(module)
    result = store.load(tmp_path / "result.json")
    assert result.training_config.compile is False
    assert result.training_config.fused_kernels == "linear cross-entropy, AdamW"
    assert ("layers_uncompiled", {"uncompiled": 4, "layers": 4}) in [(one.code, one.values) for one in result.remarks]
