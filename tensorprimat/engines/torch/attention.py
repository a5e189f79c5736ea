"""Causal attention for transformers' models without a mask tensor, and the kernel that computes it.

transformers builds a mask in every forward pass: in eager mode it compares positions on the host, which makes the GPU
wait once per micro-batch; under torch.compile it is a dense boolean tensor, which rules out the flash kernels and
repeats the key-value heads. Training on full sequences needs no mask: `causal_attention` is registered without a mask
function, so that transformers builds none, and calls SDPA with is_causal. Windows, chunks and other attentions need a
mask, which the model builds (`mask_of`) and passes to transformers.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from tensorprimat.core.result import ModelShape
from tensorprimat.models import presets

CAUSAL_SDPA = "tensorprimat_causal_sdpa"
"""Name of `causal_attention` in transformers."""
PACKAGE_ATTENTION = "tensorprimat_package_attention"
"""Name of `package_attention` in transformers."""
FLASH_2, FLASH_3 = "flash_attn", "flash_attn_interface"
"""Modules of FlashAttention 2 and 3."""
EAGER = "eager"
FLEX_ATTENTION = "flex_attention"
"""transformers' names of attention by plain matrix products and by FlexAttention."""
FLEX = "flex"
HAS_GROUPED_QUERIES = "enable_gqa" in (scaled_dot_product_attention.__doc__ or "")
"""False before torch 2.5, whose SDPA needs as many key-value heads as query heads."""
_KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""torch.nn.attention.SDPBackend by number."""


def register(name: str = CAUSAL_SDPA) -> str:
    """Register CAUSAL_SDPA or PACKAGE_ATTENTION with transformers and return the name."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, {CAUSAL_SDPA: causal_attention, PACKAGE_ATTENTION: package_attention}[name])
    return name


def causal_attention(
    module: Any,  # noqa: ARG001  # transformers passes the layer
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention output, (batch, length, heads, head size), and None for the weights.

    query: (batch, heads, length, head size); key, value: (batch, key-value heads, length, head size). attention_mask:
    the mask from `mask_of`; without one a query sees itself and every token before it.
    """
    if attention_mask is None and sliding_window is not None and sliding_window < query.shape[2]:
        raise RuntimeError("a model with a sliding window needs the mask of `mask_of`")
    key, value, grouped = _with_heads_of(query, key, value)
    if attention_mask is None or isinstance(attention_mask, torch.Tensor):
        causal = attention_mask is None
        output = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, is_causal=causal, scale=scaling, **grouped
        )
    else:
        output = _flex()(query, key, value, block_mask=attention_mask, scale=scaling, **grouped)
    return output.transpose(1, 2).contiguous(), None


def package_attention(
    module: Any,  # noqa: ARG001  # transformers passes the layer
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,  # noqa: ARG001  # the kernels take causality and window as numbers
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the output of FlashAttention's own package, with the shapes of `causal_attention`.

    transformers' own call of the package searches a batch of one sequence for packed documents in every layer, for
    which the host waits for the device.
    """
    package = flash_package()
    device = query.device.type
    if torch.is_autocast_enabled(device):  # rotary embedding in float32 widens queries and keys
        query, key, value = (one.to(torch.get_autocast_dtype(device)) for one in (query, key, value))
    width, value_width = query.shape[-1], value.shape[-1]
    if value_width < width:  # the kernels need one width: latent attention has two
        value = pad(value, (0, width - value_width))
    output = importlib.import_module(package or FLASH_2).flash_attn_func(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), softmax_scale=scaling, causal=True,
        window_size=(-1, -1) if sliding_window is None else (sliding_window - 1, 0),
        **({} if package == FLASH_3 else {"dropout_p": dropout}), **({} if softcap is None else {"softcap": softcap}),
    )  # fmt: skip
    output = output[0] if isinstance(output, tuple) else output  # early releases of version 3 add the log-sums
    return output[..., :value_width], None


def flash_package() -> str | None:
    """Return the module of FlashAttention that runs: version 3 on a Hopper GPU if it is there, else 2; None without."""
    is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    names = (FLASH_3, FLASH_2) if is_hopper else (FLASH_2,)
    return next((name for name in names if importlib.util.find_spec(name) is not None), None)


def _with_heads_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, bool]]:
    """Return keys, values and SDPA's option for grouped queries; a torch without it gets one copy per query head."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return key, value, {}
    if HAS_GROUPED_QUERIES:
        return key, value, {"enable_gqa": True}
    return key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), {}


def uses_flex(device_type: str) -> bool:
    """Return True if FlexAttention computes a sliding window: on a GPU, where SDPA has no kernel for windows.

    torch 2.4 has no FlexAttention, so SDPA gets a dense mask.
    """
    return device_type == "cuda" and importlib.util.find_spec("torch.nn.attention.flex_attention") is not None


def mask_of(
    window: int | None,
    length: int,
    device: torch.device,
    *,
    chunk: int | None = None,
    attention: str = CAUSAL_SDPA,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Return the mask of a kind of layer for an attention, which is named as in transformers. Masks are cached.

    A query sees itself and the tokens before it: at most `window` tokens, or those of its chunk of the sequence.
    `causal_attention` needs a mask for a window or chunk only: FlexAttention's BlockMask on a GPU, elsewhere a boolean
    tensor, (1, 1, length, length), True where a query sees a key. FLEX_ATTENTION always takes a BlockMask, and EAGER a
    tensor of `dtype` that is added to the scores. Other attentions get None.
    """
    window = None if window is None or window >= length else window
    chunk = None if chunk is None or chunk >= length else chunk
    if attention == EAGER:
        return _added_mask(length, window, device, chunk, dtype)
    if attention == FLEX_ATTENTION:
        return _block_mask(length, window, device, chunk)
    if attention != CAUSAL_SDPA or (window is None and chunk is None):
        return None
    return (_block_mask if uses_flex(device.type) else _dense_mask)(length, window, device, chunk)


def _sees(query: torch.Tensor, key: torch.Tensor, window: int | None, chunk: int | None) -> torch.Tensor:
    """Return True where the query at a position sees the key at a position."""
    seen = query >= key
    if window is not None:
        seen = seen & (query - key < window)
    return seen if chunk is None else seen & (query // chunk == key // chunk)


@cache
def _dense_mask(length: int, window: int | None, device: torch.device, chunk: int | None = None) -> torch.Tensor:
    position = torch.arange(length, device=device)
    return _sees(position[:, None], position[None, :], window, chunk)[None, None]


@cache
def _added_mask(
    length: int, window: int | None, device: torch.device, chunk: int | None, dtype: torch.dtype
) -> torch.Tensor:
    hidden = ~_dense_mask(length, window, device, chunk)
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


@cache
def _block_mask(length: int, window: int | None, device: torch.device, chunk: int | None = None) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return _sees(query, key, window, chunk)

    return create_block_mask(sees, B=None, H=None, Q_LEN=length, KV_LEN=length, device=device)


def _flex() -> Any:
    """Return FlexAttention, compiled unless the layer around it is: uncompiled it holds every score in memory."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if torch.compiler.is_compiling() else _compiled_flex()


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def kernel(
    shape: ModelShape, *, batch: int, sequence_length: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return the kernel that torch chooses for this attention: flash, efficient, cudnn, math or flex; None if unknown.

    A model with windows in some of its layers may have two: "flex and flash".
    """
    windows = [shape.sliding_window, None] if shape.windowed_layers else [shape.sliding_window]
    masks = [mask_of(window, sequence_length, device) for window in windows]
    names = dict.fromkeys(_chosen(shape, mask, batch, sequence_length, dtype, device) for mask in masks)
    return None if None in names else " and ".join(map(str, names))


def _chosen(
    shape: ModelShape, mask: Any, batch: int, sequence_length: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return the kernel that torch's dispatcher chooses for tensors of one forward pass; None if unknown."""
    if mask is not None and uses_flex(device.type):
        return FLEX
    choose = getattr(torch, "_fused_sdp_choice", None)
    if choose is None:
        return None
    heads = shape.num_attention_heads
    pairs = heads if shape.latent_attention else shape.num_key_value_heads
    query_width, value_width = presets.attention_widths(shape)

    def empty(heads: int, width: int) -> torch.Tensor:
        return torch.empty((batch, heads, sequence_length, width), dtype=dtype, device=device, requires_grad=True)

    query, key, value = (
        empty(heads, query_width // heads), empty(pairs, query_width // heads), empty(pairs, value_width // heads)
    )  # fmt: skip
    key, value, grouped = _with_heads_of(query, key, value)
    return _KERNELS.get(int(choose(query, key, value, mask, 0.0, mask is None, **grouped)))
