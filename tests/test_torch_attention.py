"""Attention of the torch engine: no mask tensor, no wait for the device, the kernel by its name."""

import sys
import types
from importlib.machinery import ModuleSpec

import pytest
import torch
from architectures import completed, tiny
from each import in_each, in_some
from test_torch_engine import EIGHT_H100, spec_of
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import MODELS
from tensorprimat.engines.torch import attention as torch_attention
from tensorprimat.engines.torch import engine, fp8
from tensorprimat.engines.torch import model as torch_model
from tensorprimat.engines.torch.engine import NOT_IN_FLASH_ATTN
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.models import presets
from tensorprimat.models.families import FAMILIES

WAITS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item", "aten::nonzero"}
"""Operations whose outcome the host needs: on a GPU each of them waits for everything queued before it."""


class Operations(TorchDispatchMode):
    """Collector of the names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name().split(".")[0])
        return function(*args, **(kwargs or {}))


def flash_attn_func(query, key, value, dropout_p, softmax_scale, causal, window_size, softcap=0.0):
    """Compute attention as the package flash-attn documents it; tensors are (batch, length, heads, size)."""
    assert causal
    assert not dropout_p
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]
    length, behind = query.shape[1], window_size[0]
    key, value = (pair.repeat_interleave(query.shape[2] // key.shape[2], 2) for pair in (key, value))
    scores = torch.einsum("bqhs,bkhs->bhqk", query, key) * softmax_scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    seen = (distance >= 0) & ((distance <= behind) | (behind < 0))
    return torch.einsum("bhqk,bkhs->bqhs", scores.masked_fill(~seen, -torch.inf).softmax(-1), value)


@pytest.fixture
def flash_attn(monkeypatch):
    """Put a stand-in for the package flash-attn in place, which needs a GPU."""
    package = types.ModuleType("flash_attn")
    package.flash_attn_func, package.__spec__ = flash_attn_func, ModuleSpec("flash_attn", None)
    monkeypatch.setitem(sys.modules, "flash_attn", package)


@pytest.mark.usefixtures("flash_attn")
@in_some(4, "kind", ["qwen", "mistral", *(kind for kind in FAMILIES if kind not in NOT_IN_FLASH_ATTN)])
def test_flash_attn_computes_the_attention_of_every_architecture(kind):
    preset = presets.find_preset(kind, "tiny") if kind in MODELS else tiny(kind)
    losses = []
    for attention in ("flash", "eager"):
        torch.manual_seed(5)
        network = LanguageModel(preset, attention=attention, sequence_length=100)
        losses.append(network((torch.arange(101)[None] * 7) % 1000))  # longer than the window of 64
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("flash_attn")
@pytest.mark.parametrize(("capability", "module"), [((9, 0), "flash_attn_interface"), ((10, 0), "flash_attn")])
def test_version_3_of_flash_attn_runs_on_hopper_only(monkeypatch, capability, module):
    """Version 3, here with the log-sums of its early releases, takes no dropout."""

    def version_3(query, key, value, softmax_scale, causal, window_size, softcap=0.0):
        return flash_attn_func(query, key, value, 0.0, softmax_scale, causal, window_size, softcap), None

    package = types.ModuleType("flash_attn_interface")
    package.flash_attn_func, package.__spec__ = version_3, ModuleSpec("flash_attn_interface", None)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", package)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert torch_attention.flash_package() == module
    query = torch.randn(1, 4, 12, 8)
    expected, _ = torch_attention.causal_attention(None, query, query, query, scaling=0.3)
    found, _ = torch_attention.package_attention(None, query, query, query, scaling=0.3)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("flash_attn")
def test_flash_attn_gets_16_bits_under_autocast(monkeypatch):
    kinds = []

    def noting(query, key, value, **more):
        kinds.append({one.dtype for one in (query, key, value)})
        return flash_attn_func(query, key, value, **more)

    monkeypatch.setattr(sys.modules["flash_attn"], "flash_attn_func", noting)
    network = LanguageModel(presets.find_preset("llama", "tiny"), attention="flash", sequence_length=16)
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.arange(17)[None])
    assert kinds == [{torch.bfloat16}] * 4


@pytest.mark.usefixtures("flash_attn")
@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.thorough), "flash"])
@in_each("model", ["qwen", *FAMILIES])
def test_a_training_step_never_waits_for_the_device(model, attention):
    if attention == "flash" and model in NOT_IN_FLASH_ATTN:
        pytest.skip("refused")
    preset = presets.find_preset(model, "tiny") if model in MODELS else tiny(model)
    network = LanguageModel(preset, attention=attention, sequence_length=100)
    with Operations() as operations:
        network(torch.randint(0, 1000, (1, 101))).backward()  # longer than the window of 64
    assert len(operations.names) > 100
    assert not WAITS & set(operations.names)


@in_each("kind", ["gemma2", "gpt_oss", "llama4_text"])
def test_a_mask_of_each_kind_of_layer_is_built_once(kind):
    network = LanguageModel(tiny(kind))
    first, second = (network._mask(torch.zeros(2, 100, dtype=torch.long)) for _ in range(2))
    assert first.keys() == set(network.causal.config.layer_types)
    assert all(first[name] is second[name] for name in first)


def captured_attention(model, sequence_length, operation="scaled_dot_product_attention"):
    """Return the keyword arguments of an operation in the graph that torch.compile captures of the first layer."""
    found = []

    def backend(graph, _inputs):
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        found.extend(node.kwargs for node in calls if operation in str(node.target))
        return graph.forward

    network = LanguageModel(presets.find_preset(model, "tiny"), sequence_length=sequence_length)
    torch._dynamo.reset()
    for layer in network.decoder.layers:
        layer.compile(backend=backend, dynamic=False)
    network(torch.randint(0, 1000, (2, sequence_length + 1)))
    torch._dynamo.reset()  # compiled code belongs to the class: other tests compile these layers too
    return found


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides its own warning, unless warnings are errors
def test_a_compiled_layer_states_causality_and_grouped_heads_without_a_mask():
    found = captured_attention("llama", 64)
    assert len(found) == 1  # the layers share one graph
    assert found[0]["is_causal"] is True
    assert found[0]["enable_gqa"] is True
    assert found[0].get("attn_mask") is None


class _ScheduledError(Exception):
    """Error that ends a compilation when its kernels are known."""


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_compiling_makes_one_kernel_each_of_norms_rotary_embedding_and_swiglu(monkeypatch):
    """With the choice that torch's compiler makes for concatenations on a GPU (torch/_inductor/lowering.py, cat)."""
    scheduler = pytest.importorskip("torch._inductor.scheduler")
    kernels, plan = [], scheduler.Scheduler.__init__

    def noted(planned, *arguments, **more):
        plan(planned, *arguments, **more)
        for node in planned.nodes:
            if type(node).__name__.startswith(("Extern", "Nop")):
                continue
            parts = [part.node for part in node.get_nodes()]
            kernels.append({origin.name.rstrip("_0123456789") for part in parts for origin in part.get_origins()})
        raise _ScheduledError

    monkeypatch.setattr(scheduler.Scheduler, "__init__", noted)
    network = LanguageModel(presets.find_preset("llama", "tiny"), sequence_length=64).to(torch.bfloat16)
    torch._dynamo.reset()
    network.compile_layers()
    as_on_a_gpu = torch._inductor.config.patch(force_pointwise_cat=True, fx_graph_cache=False)
    afresh = torch._functorch.config.patch(enable_autograd_cache=False)
    with as_on_a_gpu, afresh, pytest.raises(torch._dynamo.exc.TorchDynamoException, match="_ScheduledError"):
        network(torch.randint(0, 1000, (2, 65)))
    torch._dynamo.reset()
    norms = [kernel for kernel in kernels if "rsqrt" in kernel]
    rotary = [kernel for kernel in kernels if "cat" in kernel]
    gates = [kernel for kernel in kernels if "exp" in kernel]
    others = [kernel for kernel in kernels if not {"rsqrt", "cat", "exp"} & kernel]
    assert (len(norms), len(rotary), len(gates)) == (2, 2, 1)
    assert all({"neg", "mul", "add"} <= kernel for kernel in rotary), "queries and keys, each turned in one kernel"
    assert {"div", "mul"} <= gates[0], "the activated gate is multiplied in the same kernel"
    assert [kernel >= {"add"} for kernel in others] == [True], "the sum with the layer's input"


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides its own warning, unless warnings are errors
def test_a_window_as_long_as_the_sequence_needs_no_mask():
    window = presets.find_preset("mistral", "tiny").shape.sliding_window
    assert captured_attention("mistral", window)[0].get("attn_mask") is None
    assert captured_attention("mistral", 2 * window)[0]["attn_mask"] is not None


def test_a_compiled_layer_with_a_window_calls_flex_attention_once(monkeypatch):
    monkeypatch.setattr(torch_attention, "uses_flex", lambda _device: True)
    with torch.no_grad():  # on a CPU FlexAttention has no backward pass
        assert len(captured_attention("mistral", 128, "flex_attention")) == 1
        assert captured_attention("mistral", 128) == []


@pytest.mark.parametrize("length", [32, 128])
def test_windowed_attention_is_that_of_transformers(length):
    preset = presets.find_preset("mistral", "tiny")
    torch.manual_seed(3)
    ours = LanguageModel(preset, sequence_length=length)
    theirs = torch_model.causal_model(preset, attention="eager", sequence_length=length)
    theirs.load_state_dict(ours.causal.state_dict())
    tokens = torch.randint(0, 1000, (2, length))
    expected = theirs.model(input_ids=tokens).last_hidden_state.flatten(0, 1)
    torch.testing.assert_close(ours.hidden(tokens), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_same_window(monkeypatch):
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(torch_attention, "_compiled_flex", lambda: flex_attention)
    torch.manual_seed(4)
    query, pair = torch.randn(1, 4, 128, 16), torch.randn(2, 1, 2, 128, 16)
    mask = torch_attention.mask_of(48, 128, torch.device("cpu"))
    expected, _ = torch_attention.causal_attention(None, query, pair[0], pair[1], mask)
    monkeypatch.setattr(torch_attention, "uses_flex", lambda _device: True)
    blocks = torch_attention.mask_of(48, 128, torch.device("cpu"))
    found, _ = torch_attention.causal_attention(None, query, pair[0], pair[1], blocks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_numbers_of_attention_kernels_agree_with_torch():
    by_number = {
        SDPBackend.MATH.value: "math",
        SDPBackend.FLASH_ATTENTION.value: "flash",
        SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
        SDPBackend.CUDNN_ATTENTION.value: "cudnn",
    }
    assert by_number == torch_attention._KERNELS


@pytest.mark.parametrize("allowed", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_the_recorded_kernel_is_the_one_that_torch_chooses(allowed):
    shape = presets.find_preset("llama", "tiny").shape
    with torch.nn.attention.sdpa_kernel(allowed):
        chosen = torch_attention.kernel(
            shape, batch=1, sequence_length=64, dtype=torch.float32, device=torch.device("cpu")
        )
    assert chosen == {SDPBackend.MATH: "math", SDPBackend.FLASH_ATTENTION: "flash"}[allowed]


@in_each(
    ("model", "precision", "complaint"),
    [
        ("llama", "fp32", "--attention flash: not with --precision fp32; it needs bf16, fp16 or fp8"),
        ("gpt_oss", "bf16", "--attention flash: gpt_oss has attention sinks, which the package flash-attn lacks"),
        ("llama4_text", "bf16", "--attention flash: llama4_text has attention in chunks, which the package"),
    ],
)
def test_flash_attn_is_refused_for_attention_that_it_lacks(monkeypatch, model, precision, complaint):
    monkeypatch.setattr(fp8, "check_units", lambda *_: None)
    own = {} if model in MODELS else {"config": completed(model), "preset": "full"}
    planned = spec_of(model=model, precision=precision, platform="nvd", attention_backend="flash", **own)
    with pytest.raises(UsageError, match=f"^{complaint}"):
        engine.check(planned, EIGHT_H100)
