"""Parts of a model's shape that dense models with grouped queries do not have: experts and latent attention."""

from __future__ import annotations

from pydantic import Field, model_validator

from tensorprimat.core.records import LARGEST_COUNT, Dimension, Record


class Experts(Record):
    """A mixture of experts: each token uses the router, some routed experts, and all shared ones."""

    count: Dimension
    """Routed experts of one layer."""
    active: Dimension
    """Routed experts that one token uses in a layer."""
    ffn_hidden_size: Dimension
    """Inner width of one routed expert."""
    shared_ffn_hidden_size: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    """Inner width of all shared experts of one layer together."""
    layers: Dimension
    """Layers with experts; the others have an MLP of the model's ffn_hidden_size."""

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Experts:
        if self.active > self.count:
            raise ValueError(f"{self.active} active of {self.count} experts")
        return self


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), as training computes it."""

    query_rank: Dimension | None = None
    """Width of the latent vector that queries are computed from; None: they come from the hidden state."""
    key_value_rank: Dimension
    """Width of the latent vector that keys and values are computed from, without the rotated part of the key."""
    plain_head_dim: Dimension
    """Dimensions of one head of queries and keys without rotary embedding."""
    rotated_head_dim: Dimension
    """Dimensions of one head of queries and keys with rotary embedding."""
    value_head_dim: Dimension
    """Dimensions of one head of values."""
