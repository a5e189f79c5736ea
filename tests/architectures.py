"""Complete configurations of every architecture, by the defaults of transformers' classes."""

from tensorprimat.engines.torch import config as torch_config

NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},  # the class has no default
    "seed_oss": {"attention_dropout": 0.0, "residual_dropout": 0.0},  # random by default
}


def completed(kind, **entries):
    return torch_config.completed(kind, kind, {**NEEDED.get(kind, {}), **entries})


def tiny(kind, **entries):
    return torch_config.model(kind, completed(kind, **entries), "tiny")
