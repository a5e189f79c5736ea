"""Complete configurations of every architecture, by the defaults of transformers' classes, and models of presets."""

import copy
import json
from functools import cache

import pytest

from tensorprimat.engines.torch import config as torch_config

NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},  # the class has no default
    "seed_oss": {"attention_dropout": 0.0, "residual_dropout": 0.0},  # random by default
}


def completed(kind, **entries):
    return copy.deepcopy(_completed(kind, json.dumps(entries)))


def tiny(kind, **entries):
    return copy.deepcopy(_tiny(kind, json.dumps(entries)))


@cache
def _completed(kind, entries):
    return torch_config.completed_config(kind, kind, {**NEEDED.get(kind, {}), **json.loads(entries)})


@cache
def _tiny(kind, entries):
    return torch_config.model_of_config(kind, completed(kind, **json.loads(entries)), "tiny")


def network_of(preset, **entries):
    """Return the model class of transformers with the shape of a preset, on the meta device."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    family, shape = {"qwen": "Qwen2", "mistral": "Mistral"}.get(preset.model, "Llama"), preset.shape
    config = getattr(transformers, f"{family}Config")(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        tie_word_embeddings=False,
        **entries,
    )
    with torch.device("meta"):
        return getattr(transformers, f"{family}ForCausalLM")(config)
