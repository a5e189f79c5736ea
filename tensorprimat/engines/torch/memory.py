"""Memory of a configured model's activations, counted in its own layers with tensors that have a shape but no memory.

Architectures keep different tensors for backward: norms of queries and keys, experts and the tokens sent to them,
latent attention. Instead of a formula for each, a layer of each kind runs once, as torch.compile partitions it or as
autograd records it.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.registry import importable
from tensorprimat.engines.torch import attention as torch_attention
from tensorprimat.engines.torch import fp8
from tensorprimat.engines.torch import model as model_of_torch
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.module import COMPUTE_DTYPES
from tensorprimat.machine.environment import has_fused_norm
from tensorprimat.models import training_memory
from tensorprimat.models.custom import TrainedModel

LENGTH = 128
"""Tokens of the counted sequence. A layer keeps equally many bytes of each token; scores would grow with the length,
but no kernel keeps them."""
COUNTED_ATTENTION = "tensorprimat_counted_attention"
"""transformers' name of an attention that keeps what a GPU kernel keeps: its operands, its output and one sum per
query and head."""


def mean_kept_bytes_per_token(
    model: TrainedModel,
    *,
    precision: str,
    compiled: bool,
    fused_norm: bool = False,
    recipe: str | None = None,
    autocast: bool = False,
) -> float:
    """Return the bytes per token that a layer keeps for backward, as the mean of all layers.

    fused_norm: the GPU has one kernel for RMS norm. recipe: FP8 recipe; counted as bf16 where torchao is not installed.
    autocast: weights are in float32; their casts are not counted, because they do not grow with the tokens. Raises
    RuntimeError where torch cannot run or compile the model with tensors without memory.
    """
    kinds = model.decoder.layers
    length = min((LENGTH, *(kind.window for kind in kinds if kind.window)))
    compute = COMPUTE_DTYPES[precision]
    stored = torch.float32 if autocast else compute

    def counted(tokens: int) -> float:
        with torch.autocast("cpu", compute, enabled=autocast):
            return _kept_by_layers(model, tokens, dtype=stored, compiled=compiled, fused_norm=fused_norm, recipe=recipe)

    half = length // 2
    of_token = (counted(length) - counted(half)) / (length - half) if autocast else counted(length) / length
    layer_input = model.decoder.hidden_size * stored.itemsize
    return of_token + (layer_input if compiled else 0)


def counted_options(spec: RunSpec, model: TrainedModel) -> dict[str, str]:
    """Return the options of a spec that state what its layers keep for backward; {} if torch cannot count it."""
    try:
        kept = mean_kept_bytes_per_token(
            model, precision=spec.precision, compiled=spec.compile, fused_norm=has_fused_norm("cuda"),
            recipe=fp8.recipe_of(spec), autocast=training_memory.uses_autocast(spec),
        )  # fmt: skip
    except (RuntimeError, UsageError, ImportError):  # the start block says it; a later check refuses FP8
        return {}
    other = {} if can_plan_layers(model) else {training_memory.OTHER_LAYERS: "yes"}
    return {training_memory.COUNTED: str(round(kept)), **other}


def can_plan_layers(model: TrainedModel) -> bool:
    """Return True if single operations of the model's layers can be recomputed."""
    with torch.device("meta"):
        return model_of_torch.has_operations_of_plans(LanguageModel(model).decoder.layers)


def _kept_by_layers(
    model: TrainedModel, length: int, *, dtype: torch.dtype, compiled: bool, fused_norm: bool, recipe: str | None
) -> float:
    """Return the bytes that a layer keeps of one sequence, as the mean of all; a compiled layer without its input.

    dtype: type of the weights. The other arguments are those of `mean_kept_bytes_per_token`.
    """
    kinds = model.decoder.layers
    needed = 1 + max(kinds.index(kind) for kind in kinds)
    with warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("ignore")  # the model is not trained
        with model_of_torch.default_dtype(dtype):
            network = LanguageModel(model, sequence_length=length)
        _use_kernels(network)
        if fused_norm and not compiled:
            fuse_norms(network)
        network.decoder.layers = network.decoder.layers[:needed]
        if recipe and importable(fp8.TORCHAO):
            fp8.convert_layers(network.decoder.layers, recipe, emulate=True)
        counted = (_by_partition if compiled else _by_autograd)(network, length)
    of_kind = {kind: counted[index] for index, kind in reversed(list(enumerate(kinds[:needed])))}
    return sum(of_kind[kind] for kind in kinds) / len(kinds)


def _use_kernels(network: LanguageModel) -> None:
    """Make the model use COUNTED_ATTENTION, which keeps no scores, on every machine."""
    from transformers import AttentionInterface

    AttentionInterface.register(COUNTED_ATTENTION, _attention)
    network.causal.config._attn_implementation = COUNTED_ATTENTION


class _NormOfOneKernel(torch.autograd.Function):  # type: ignore[misc]
    """An RMS norm that keeps what torch's kernel keeps on a GPU: its input and one inverse deviation of each token."""

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Keep the tensors and return an uninitialised tensor like the input."""
        context.save_for_backward(hidden, weight, hidden.new_empty((*hidden.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(context: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return uninitialised gradients."""
        hidden, weight, _deviations = context.saved_tensors
        return torch.empty_like(hidden), torch.empty_like(weight)


def fuse_norms(network: nn.Module) -> None:
    """Make torch's RMS norms keep what its GPU kernel keeps, on every machine."""
    for norm in network.modules():
        if isinstance(norm, nn.RMSNorm):
            norm.forward = functools.partial(lambda weight, hidden: _NormOfOneKernel.apply(hidden, weight), norm.weight)


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    """Return causal attention; values narrower than keys (latent attention) are padded for the kernel and cut again."""
    width = value.shape[-1]
    padded = nn.functional.pad(value, (0, query.shape[-1] - width)) if width < query.shape[-1] else value
    output, _weights = torch_attention.causal_attention(module, query, key, padded)
    return output[..., :width], None


class _Counted(nn.Module):  # type: ignore[misc]
    """A wrapper of a layer that appends an entry to a list before the layer runs, for its bytes, and one after it."""

    def __init__(self, layer: nn.Module, entries: list[float]) -> None:
        super().__init__()
        self.layer, self._entries = layer, entries

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # the decoder asks a layer for its kind
            return getattr(self.layer, name)

    def forward(self, *arguments: Any, **more: Any) -> Any:
        self._entries.append(0.0)
        states = self.layer(*arguments, **more)
        self._entries.append(0.0)
        return states


def _counting(network: LanguageModel) -> list[float]:
    """Wrap every layer of the decoder; return the list whose entries 0, 2, 4 … are the layers' bytes."""
    entries: list[float] = []
    network.decoder.layers = nn.ModuleList(_Counted(layer, entries) for layer in network.decoder.layers)
    return entries


def _by_autograd(network: LanguageModel, length: int) -> list[float]:
    """Return the bytes that autograd keeps for each layer."""
    counted = _counting(network)
    weights = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # a storage that is held cannot lose its address to another one

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if counted and storage._cdata not in weights and storage._cdata not in kept:
            kept[storage._cdata] = storage
            counted[-1] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network.hidden(torch.zeros((1, length), dtype=torch.long))
    return counted[::2]


def _by_partition(network: LanguageModel, length: int) -> list[float]:
    """Return the bytes that each layer's compiled graphs save for backward, without their inputs."""
    from functorch.compile import min_cut_rematerialization_partition  # type: ignore[import-untyped]
    from torch._dynamo.backends.common import aot_autograd

    counted = _counting(network)

    def forward(graph: Any, _inputs: Any) -> Any:
        handed = _handed_over(graph)

        def run(*arguments: Any) -> Any:
            counted[-1] += handed
            return graph.forward(*arguments)

        return run

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, _inputs: graph.forward,
        partition_fn=min_cut_rematerialization_partition,
    )
    torch._dynamo.reset()
    for layer in network.decoder.layers:
        layer.layer.compile(backend=backend, dynamic=False)
    network.hidden(torch.zeros((1, length), dtype=torch.long))
    torch._dynamo.reset()  # torch caches compiled code per class, and training compiles the same classes
    return counted[::2]


def _handed_over(graph: Any) -> float:
    """Return the bytes that a forward graph saves for backward, without its inputs and views of them."""
    (results,) = next(node.args for node in graph.graph.nodes if node.op == "output")
    values = [node.meta.get("val") for node in results[1:] if isinstance(node, torch.fx.Node)]
    inputs = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
    known = {value.untyped_storage()._cdata for value in inputs if isinstance(value, torch.Tensor)}
    storages = [value.untyped_storage() for value in values if isinstance(value, torch.Tensor)]
    return float(sum({s._cdata: s.nbytes() for s in storages if s._cdata not in known}.values()))
