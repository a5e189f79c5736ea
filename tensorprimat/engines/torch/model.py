"""The language models of the torch engine: transformers' own classes with random weights, without any download."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tensorprimat.core.errors import UsageError
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.engines.torch import attention as torch_attention
from tensorprimat.engines.torch.cross_entropy import linear_cross_entropy
from tensorprimat.models import custom
from tensorprimat.models.custom import TrainedModel

_LOUD_AT_IMPORT = ("torchao", "torch.utils._pytree", "torch._higher_order_ops.wrap")
"""Loggers that warn of kernels for other GPUs and of deprecated calls when transformers imports torchao, and of
operations in place inside of a selective recomputation, which the layers do not have."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_scaled_mm")
"""Operations as which the product of a linear layer runs, the last one in FP8."""
_WITHOUT_SDPA = ("gemma2", "gpt_oss")
"""Architectures whose attention scores have a soft cap or sinks, which no SDPA kernel supports."""


def transformers_config(preset: TrainedModel, *, attention: str = "sdpa", sequence_length: int | None = None) -> Any:
    """Return the transformers configuration of a model. attention: sdpa, eager or flash."""
    for name in _LOUD_AT_IMPORT:
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # random weights: nothing to download
    from transformers import AutoConfig

    config = AutoConfig.for_model(**preset.config, use_cache=False)
    config.max_position_embeddings = max(preset.max_position_embeddings, sequence_length or 0)
    config._attn_implementation = attention_of(preset.decoder.kind, attention, torch.get_default_device().type)
    return config


def attention_of(kind: str, attention: str, device_type: str) -> str:
    """Return transformers' name of the attention that a model runs with.

    SDPA supports neither soft caps nor sinks: FlexAttention computes them on a GPU; on a CPU, or in a torch without
    FlexAttention, plain matrix products do.
    """
    if attention == "eager":
        return torch_attention.EAGER
    if attention == "flash":
        return torch_attention.register(torch_attention.PACKAGE_ATTENTION)
    if kind in _WITHOUT_SDPA:
        return torch_attention.FLEX_ATTENTION if torch_attention.uses_flex(device_type) else torch_attention.EAGER
    return torch_attention.register()


def check_classes(config: Mapping[str, Any]) -> None:
    """Build the model of a complete configuration, with one layer of each kind, on the meta device.

    Raises transformers' own exception where its classes do not know the value of an entry, and RuntimeError where they
    do not accept a registered attention, as some mixtures of experts before transformers 5.
    """
    few = dict(config)
    custom.shorten(few, config)
    too_old = RuntimeError("its attention cannot be replaced in this version; install a newer one")
    try:
        with torch.device("meta"):
            causal = causal_model(custom.configured("", few, "full"))
    except KeyError as error:
        if error.args != (torch_attention.CAUSAL_SDPA,):
            raise
        raise too_old from error
    if hasattr(causal.model, "_update_causal_mask"):  # a class that always builds its own mask
        raise too_old


def causal_model(preset: TrainedModel, *, attention: str = "sdpa", sequence_length: int | None = None) -> Any:
    """Return the transformers causal language model of a preset, with random weights."""
    config = transformers_config(preset, attention=attention, sequence_length=sequence_length)
    return _class_of(config)(config)


def _class_of(config: Any) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


@contextmanager
def _layers_on_meta(kind: Any) -> Iterator[None]:
    """Let transformers build the decoder layers of a model class on the meta device."""
    module = sys.modules[kind.__module__]
    originals = {layer: layer.__init__ for name in kind._no_split_modules if (layer := getattr(module, name, None))}

    def on_meta(build: Any) -> Any:
        def build_on_meta(*arguments: Any, **more: Any) -> None:
            with torch.device("meta"):
                build(*arguments, **more)

        return build_on_meta

    try:
        for layer, build in originals.items():
            layer.__init__ = on_meta(build)
        yield
    finally:
        for layer, build in originals.items():
            layer.__init__ = build


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default floating-point type inside the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class LanguageModel(nn.Module):  # type: ignore[misc]
    """A causal language model that returns its loss and never holds the logits of the whole batch."""

    def __init__(
        self,
        preset: TrainedModel,
        *,
        attention: str = "sdpa",
        sequence_length: int | None = None,
        layers_later: bool = False,
    ) -> None:
        """Build a preset. layers_later: let `shard` build the layers, so that no device ever holds the whole model."""
        super().__init__()
        config = transformers_config(preset, attention=attention, sequence_length=sequence_length)
        kind = _class_of(config)
        with _layers_on_meta(kind):
            self.causal = kind(config)
        self._reaches = _reaches(preset)
        self._compiles_loss = False
        _fuse_norms(self.causal)
        self._rotary = _rotary_of(self.causal)
        if not layers_later:
            for _ in self._built_layers():
                pass

    def _built_layers(self) -> Iterator[nn.Module]:
        """Yield each decoder layer; a layer on the meta device is built first, with random weights, on the default one.

        Weights are drawn layer by layer, so that they do not depend on the number of ranks.
        """
        layers = self.decoder.layers
        for index, layer in enumerate(layers):
            if any(parameter.is_meta for parameter in layer.parameters()):
                layers[index] = type(layer)(self.decoder.config, index)
                with torch.no_grad():
                    layers[index].apply(self.causal._initialize_weights)
                _fuse_norms(layers[index])
                self._rotary += _rotary_of(layers[index])
            yield layers[index]

    @property
    def decoder(self) -> Any:
        """Return the model without its head: embedding, layers and last norm."""
        return self.causal.model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting each token but the first; tokens: (sequences, length + 1)."""
        config, head = self.causal.config, self.causal.lm_head
        scale = (getattr(config, "logit_scale", None) or 1) / (getattr(config, "logits_scaling", None) or 1)
        hidden = self.hidden(tokens[:, :-1])
        return linear_cross_entropy(
            hidden if scale == 1 else hidden * scale,  # scales the logits (Command R, Granite)
            head.weight,
            tokens[:, 1:].flatten(),
            bias=head.bias,
            soft_cap=getattr(config, "final_logit_softcapping", None),
            compiled=self._compiles_loss,
        )

    def _mask(self, tokens: torch.Tensor) -> Any:
        """Return the model's attention mask, or a mask for each kind of layer.

        None with the package flash-attn, whose kernels take causality and window as arguments.
        """
        attention = self.causal.config._attn_implementation
        if attention == torch_attention.PACKAGE_ATTENTION:
            return None
        masks: dict[str | None, Any] = {
            kind: torch_attention.mask_of(
                window, tokens.shape[1], tokens.device, chunk=chunk, attention=attention,
                dtype=self.decoder.embed_tokens.weight.dtype,
            )
            for kind, (window, chunk) in self._reaches.items()
        }  # fmt: skip
        return masks.get(None, masks)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states, (sequences × length, hidden size); tokens: (sequences, length)."""
        states: torch.Tensor = self.decoder(
            input_ids=tokens, attention_mask=self._mask(tokens), use_cache=False
        ).last_hidden_state
        return states.flatten(0, 1)

    def restore_rotary(self) -> None:
        """Restore the rotary frequencies to float32, because in bfloat16 distant positions would be inexact."""
        for part, name, frequencies in self._rotary:
            setattr(part, name, frequencies.to(getattr(part, name).device))

    def recompute_activations(self, recompute: str) -> None:
        """Make backward compute activations of the layers again, as `RunSpec.recompute` states.

        The engine wraps the layers itself, inside of the compiled region, where the partitioner drops the last product.
        transformers does that from version 5.23 on only. Raises UsageError where a plan names operations that the
        layers of this model do not have.
        """
        plan = Recompute(recompute)
        if not plan.of_layers and not has_operations_of_plans(self.decoder.layers):
            raise UsageError(f"recompute: {plan}: not for the layers of this model; use selective or full")
        kept = None if plan.of_layers else frozenset(Recompute.OPERATIONS) - frozenset(plan.operations or ())
        drops = any("drop" in name and value for name, value in self.causal.config.to_dict().items())
        classes: dict[type, type] = {}  # one for all layers of a kind, which share one compiled graph
        for position, layer in enumerate(self.decoder.layers):
            if plan != Recompute.SECOND_LAYERS or position % 2 == 0:
                kind = type(layer)
                layer.__class__ = classes.setdefault(kind, classes.get(kind) or _recomputing(kind, kept, drops=drops))

    def compile_layers(self, *, cuda_graphs: bool = False) -> None:
        """Compile each decoder layer in place; the names of parameters stay.

        The layers share one compiled graph: 80 layers take as long to compile as one, and FSDP's hooks run between the
        layers, outside of it. cuda_graphs: record the kernels of each layer; only perf/mfu_ladder.py uses it, to
        measure the gain.
        """
        self._compiles_loss = True
        for layer in self.decoder.layers:
            layer.compile(dynamic=False, options={"triton.cudagraphs": True} if cuda_graphs else None)

    def shard(
        self,
        mesh: DeviceMesh,
        *,
        reshard: bool = True,
        gathered: torch.dtype | None = None,
        convert: Callable[[list[nn.Module]], object] | None = None,
    ) -> None:
        """Build the layers one by one and split each over the data-parallel ranks (FSDP2), with prefetch of one layer.

        reshard: free a layer's gathered weights after forward; False keeps them for backward. gathered: type to which
        weights are cast before they are gathered; the shards, and the sums of their gradients over the ranks, keep the
        type in which the weights are built. convert: function that changes layers before they are split.
        """
        try:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        except ImportError:  # torch 2.4 and 2.5 have it under its earlier name
            from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard

        built = torch.get_default_dtype()
        policy = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=built) if gathered else MixedPrecisionPolicy()
        for layer in self._built_layers():
            if convert is not None:
                convert([layer])
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        layers = list(self.decoder.layers)
        fully_shard(self, mesh=mesh, mp_policy=policy)
        for layer, following in pairwise(layers):
            if hasattr(layer, "set_modules_to_forward_prefetch"):  # from torch 2.5 on
                layer.set_modules_to_forward_prefetch([following])
                following.set_modules_to_backward_prefetch([layer])
        if mesh.device_type == "cuda":
            torch.cuda.empty_cache()  # memory of whole layers is free now, and must not count as reserved


def has_operations_of_plans(layers: Iterable[nn.Module]) -> bool:
    """Return True if every layer has the matrix products of a plan, and no other ones."""
    expected = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
    return all(
        [name.rpartition(".")[2] for name, part in layer.named_modules() if isinstance(part, nn.Linear)] == expected
        and sum(weight.ndim > 1 for weight in layer.parameters()) == len(expected)
        for layer in layers
    )


def _recomputing(kind: type[nn.Module], kept: frozenset[str] | None, *, drops: bool) -> type[nn.Module]:
    """Return a layer's class whose backward computes the layer again, except for the operations whose results it keeps.

    kept: names in OPERATIONS; None keeps the layer's input only, without looking at operations. drops: the layer has
    dropout, whose random numbers have to be the same again.
    """
    selective = {} if kept is None else {"context_fn": partial(_contexts, kept)}

    def forward(self: nn.Module, *arguments: Any, **more: Any) -> Any:
        def run(*inputs: Any) -> Any:
            return kind.forward(self, *inputs, **more)

        return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=drops, **selective)

    return type(kind.__name__, (kind,), {"forward": forward})


def _contexts(kept: frozenset[str]) -> Any:
    """Return torch's two contexts of selective recomputation for one call of a layer."""
    calls: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = operation.name()
        if name in _PRODUCTS:
            ran = Recompute.PRODUCTS[calls[context.is_recompute] % len(Recompute.PRODUCTS)]
            calls[context.is_recompute] += 1
        elif "attention" in name or "flash_attn" in name:
            ran = Recompute.ATTENTION
        else:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if ran in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _reaches(preset: TrainedModel) -> dict[str | None, tuple[int | None, int | None]]:
    """Return window and chunk, in tokens, by kind of layer; a model without named kinds has the one kind None."""
    layers = preset.decoder.layers
    kinds = preset.config.get("layer_types") or [None] * len(layers)
    return {kind: (layer.window, layer.chunk) for kind, layer in zip(kinds, layers, strict=True)}


def _rotary_of(model: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Return (module, buffer name, float32 tensor) of each buffer of rotary frequencies in a model."""
    return [
        (part, name, buffer.float())
        for part in model.modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name.endswith("inv_freq") and not buffer.is_meta  # Gemma 3 has one for each kind of layer
    ]


def _fuse_norms(model: nn.Module) -> None:
    """Replace transformers' RMS norm, five kernels, by torch's (see `has_fused_norm`); weights keep their names."""
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            # Gemma's norm, which adds 1 to its weight, has no variance_epsilon.
            if type(norm).__name__.endswith("RMSNorm") and hasattr(norm, "variance_epsilon"):
                setattr(parent, name, nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon))
