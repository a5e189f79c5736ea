"""The model's shape from Megatron's settings: dense layers, mixtures of experts, latent attention, windows.

Names and meanings are those of megatron/core/transformer/transformer_config.py. A setting of SPECIAL changes the cost
in a way that no shape expresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from tensorprimat.core.records import first_fault
from tensorprimat.core.result import ModelShape
from tensorprimat.models import presets
from tensorprimat.models.shape_parts import Experts, LatentAttention

DENSE = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "num_key_value_heads",
    "group_query_attention", "kv_channels", "padded_vocab_size", "vocab_size", "swiglu", "quick_geglu",
    "gated_linear_unit", "add_qkv_bias", "untie_embeddings_and_output_weights", "share_embeddings_and_output_weights",
)  # fmt: skip
PARTS = (
    "num_experts", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
    "moe_layer_freq", "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
    "v_head_dim", "mtp_num_layers", "window_size", "window_attn_skip_freq",
)  # fmt: skip
SPECIAL = (
    "experimental_attention_variant", "linear_attention_freq", "attention_output_gate", "hybrid_override_pattern",
    "hybrid_layer_pattern", "is_hybrid_model", "heterogeneous_layers_config_path",
    "heterogeneous_layers_config_encoded_json", "moe_latent_size",
)  # fmt: skip
HINTS = (
    "moe", "_experts", "lora_rank", "head_dim", "latent_attention", "mtp_num", "window_", "attention_variant",
    "linear_attention", "attention_output", "hybrid_", "heterogeneous",
)  # fmt: skip
"""Parts of the names of PARTS and SPECIAL: each of them contains one."""
GATED = ("swiglu", "quick_geglu", "gated_linear_unit")
"""Switches of an MLP with three matrices."""
_DEFAULTS = {"moe_router_topk": "2", "moe_layer_freq": "1"}
LATENT_DEFAULTS = {
    "kv_lora_rank": "512", "q_lora_rank": "512", "qk_head_dim": "128", "qk_pos_emb_head_dim": "64", "v_head_dim": "128",
}  # fmt: skip
"""Defaults of TransformerConfig and MLATransformerConfig, which a summary of differences does not name."""
LATENT_SUMMARY = "(vs Mcore MLATransformerConfig)"
ONE_MLP = "[1]"
"""Megatron-DeepSpeed's num_experts of a dense model."""
FIRST_RECOMPUTE = "checkpoint_activations"
"""Switch for recomputation in Megatron-LM until 2021, with ungated MLPs of 4 × hidden size and tied embeddings."""
SINCE_2022 = (
    "swiglu", "untie_embeddings_and_output_weights", "recompute_granularity", "num_key_value_heads",
    "group_query_attention", "use_flash_attn",
)  # fmt: skip
"""Settings that later versions print, each of them."""
_UNSET = ("", "none", "null", "false", "0", "0.0")

_LIST = re.compile(r"[\[(]?(?:[01] ?, ?){0,999}[01] ?,? ?[\])]?")
_REPEATED = re.compile(r"\[([01])\]\s*\*\s*(\d{1,4})")
_WINDOW = re.compile(r"[\[(]?\s*(\d{1,9})\s*(?:,|$)")


class UnknownShapeError(Exception):
    """The settings belong to a model whose cost no shape expresses, or do not state all of it."""


@dataclass(frozen=True, kw_only=True)
class MegatronSettings:
    """The settings that a log states."""

    texts: Mapping[str, str]
    """Setting → its text."""
    omits_defaults: bool
    """True if the log lists only settings that differ from Megatron-Core's defaults."""
    omits_latent_defaults: bool
    """True if, in addition, latent attention is on and only its differences from the defaults are listed."""
    vocabulary: int | None
    """Tokens of the vocabulary before padding, if the log states them."""

    def value(self, name: str) -> str | None:
        """Return the text of a setting, or None."""
        return self.texts.get(name)

    def numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Return those of the settings that are whole numbers."""
        return {name: number for name in names if (number := self.whole(name)) is not None}

    def whole(self, name: str) -> int | None:
        """Return a setting as a whole number, or None."""
        value = self.texts.get(name)
        return int(value.replace("_", "")) if value and re.fullmatch(r"\d[\d_]{0,17}", value) else None

    def is_set(self, name: str) -> bool:
        """Return True if a switch is on."""
        return (self.value(name) or "").lower() == "true"

    def states(self, name: str) -> bool:
        """Return True if a setting has a value that is not off or none."""
        return (self.value(name) or "").strip("'\"").lower() not in _UNSET

    def part(self, name: str) -> str | None:
        """Return a setting of PARTS, or its default where the log leaves defaults out."""
        value = self.value(name)
        if value is not None or not self.omits_defaults:
            return value
        return (LATENT_DEFAULTS if self.omits_latent_defaults else {}).get(name, _DEFAULTS.get(name))


def shape_of_settings(settings: MegatronSettings) -> ModelShape | None:
    """Return the shape; None if a number of its dense layers is not stated. Raises UnknownShapeError."""
    whole = settings.whole
    layers, hidden, heads = (whole(key) for key in ("num_layers", "hidden_size", "num_attention_heads"))
    width, grouped = whole("ffn_hidden_size"), settings.value("group_query_attention")
    vocabulary = settings.vocabulary or whole("vocab_size")
    named = whole("num_query_groups")
    groups = named if (grouped or "").lower() == "true" or (settings.omits_defaults and named) else heads
    is_first = settings.value(FIRST_RECOMPUTE) is not None and not any(map(settings.value, SINCE_2022))
    if (
        grouped is None and not is_first
    ):  # Megatron-DeepSpeed has no such switch and prints the heads of keys and values instead
        groups = whole("num_key_value_heads")
    if is_first and hidden and settings.value("ffn_hidden_size") is None:
        width = 4 * hidden
    if special := next((name for name in SPECIAL if settings.states(name)), None):
        raise UnknownShapeError(f"{special} changes the cost of its layers")
    if not (layers and hidden and heads and width and groups and vocabulary):
        return None
    if not (settings.omits_defaults or is_first) and None in (
        settings.value("swiglu"),
        settings.value("untie_embeddings_and_output_weights"),
    ):
        return None  # every version that prints the arguments above prints these too: lines were lost
    window, windowed = _window(settings, layers)
    try:
        shape = ModelShape(
            num_layers=layers,
            hidden_size=hidden,
            ffn_hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            head_dim=whole("kv_channels") or hidden // heads,
            vocab_size=vocabulary,
            gated_mlp=any(map(settings.is_set, GATED)),
            attention_bias=settings.is_set("add_qkv_bias"),
            tied_embeddings=not settings.is_set("untie_embeddings_and_output_weights"),
            sliding_window=window,
            windowed_layers=windowed,
            multi_token_layers=whole("mtp_num_layers") or None,
            experts=_experts(settings, layers, width),
            latent_attention=_latent(settings),
        )
    except ValidationError as error:
        raise UnknownShapeError(f"its settings contradict each other ({first_fault(error)})") from error
    return _with_ties(settings, shape)


def shape_of_neox(texts: Mapping[str, str], vocabulary: int | None) -> ModelShape | None:
    """Return the shape that gpt-neox's arguments state: GPT's blocks, whose MLP is not gated and 4 hidden sizes wide.

    vocabulary: tokens before padding, if the log states them.
    """
    usual = {"activation": ("gelu", "relu"), "mlp_type": ("regular",), "moe_num_experts": ("1", "None")}
    if any(texts.get(name, values[0]) not in values for name, values in usual.items()):
        return None
    heads = texts.get("num_attention_heads", "")
    grouped = texts.get("num_kv_heads", "None")
    renamed = {
        "num_key_value_heads": heads if grouped == "None" else grouped,
        "untie_embeddings_and_output_weights": texts.get("no_weight_tying", "False"),
        "vocab_size": texts.get("padded_vocab_size", ""),
        "ffn_hidden_size": str(4 * int(hidden)) if (hidden := texts.get("hidden_size", "")).isdecimal() else "",
        "swiglu": "False",
    }
    kept = {name: texts[name] for name in ("num_layers", "hidden_size", "num_attention_heads") if name in texts}
    settings = MegatronSettings(
        texts=kept | renamed, omits_defaults=False, omits_latent_defaults=False, vocabulary=vocabulary
    )
    return shape_of_settings(settings)


def _with_ties(settings: MegatronSettings, shape: ModelShape) -> ModelShape:
    if not settings.omits_defaults:
        return shape
    if (shared := settings.value("share_embeddings_and_output_weights")) is not None:
        return shape.model_copy(update={"tied_embeddings": shared.lower() == "true"})
    either = [shape.model_copy(update={"tied_embeddings": tied}) for tied in (False, True)]
    return next((one for one in either if presets.identify(one)), either[0])  # the summary never names it


def _experts(settings: MegatronSettings, layers: int, width: int) -> Experts | None:
    count = settings.whole("num_experts") or settings.whole("num_moe_experts")
    if not count:
        stated = [name for name in ("num_experts", "num_moe_experts") if settings.states(name)]
        if any(settings.value(name) != ONE_MLP for name in stated):
            raise UnknownShapeError("the number of its experts is not a number")
        return None
    active = settings.part("moe_router_topk") or ""
    if not active.isdecimal():
        raise UnknownShapeError("moe_router_topk is not stated")
    shared = settings.value("moe_shared_expert_intermediate_size")
    if shared is None and not settings.omits_defaults:
        raise UnknownShapeError("moe_shared_expert_intermediate_size is not stated")
    return Experts(
        count=count,
        active=int(active),
        ffn_hidden_size=settings.whole("moe_ffn_hidden_size") or width,  # Megatron's default
        shared_ffn_hidden_size=settings.whole("moe_shared_expert_intermediate_size") or 0,
        layers=sum(_pattern("moe_layer_freq", settings.part("moe_layer_freq"), layers)),
    )


def _pattern(name: str, text: str | None, layers: int) -> list[int]:
    """Return 1 for each layer of a kind, else 0, by a frequency N (layers 0, N, 2 N …) or a list of these numbers."""
    text = (text or "").strip("'\" ")
    if text.isdecimal() and int(text):
        return [int(layer % int(text) == 0) for layer in range(layers)]
    found = [int(digit) for digit, times in _REPEATED.findall(text) for _ in range(int(times))]
    if not found and "*" not in text and _LIST.fullmatch(text):
        found = [int(digit) for digit in re.findall(r"[01]", text)]
    if len(found) != layers:
        raise UnknownShapeError(f"{name} is not stated for each of its {layers} layers")
    return found


def _window(settings: MegatronSettings, layers: int) -> tuple[int | None, int | None]:
    """Return the tokens that a windowed layer sees (None: no windows), and the number of such layers (None: all)."""
    if not settings.states("window_size"):
        return None, None
    match = _WINDOW.match(settings.value("window_size") or "")
    if match is None:
        raise UnknownShapeError("window_size is not a number of tokens")
    window, skipped = int(match[1]) + 1, settings.value("window_attn_skip_freq")  # the token itself is seen too
    if not settings.states("window_attn_skip_freq"):
        return window, None
    if (skipped or "").isdecimal():  # every N-th layer sees all
        return window, layers - layers // int(skipped or 1)
    return window, sum(_pattern("window_attn_skip_freq", skipped, layers))


def _latent(settings: MegatronSettings) -> LatentAttention | None:
    if not (settings.is_set("multi_latent_attention") or settings.omits_latent_defaults):
        return None
    numbers = {name: settings.part(name) or "" for name in LATENT_DEFAULTS}
    unknown = [name for name, text in numbers.items() if not text.isdecimal() and name != "q_lora_rank"]
    if unknown or not (numbers["q_lora_rank"].isdecimal() or numbers["q_lora_rank"].lower() in ("none", "null")):
        raise UnknownShapeError(f"{(*unknown, 'q_lora_rank')[0]} of its latent attention is not stated")
    return LatentAttention(
        query_rank=int(numbers["q_lora_rank"]) if numbers["q_lora_rank"].isdecimal() else None,
        key_value_rank=int(numbers["kv_lora_rank"]),
        plain_head_dim=int(numbers["qk_head_dim"]),
        rotated_head_dim=int(numbers["qk_pos_emb_head_dim"]),
        value_head_dim=int(numbers["v_head_dim"]),
    )
