"""Words for the values of settings: the scales of FP8, and the recomputation of activations."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, ClassVar

_FP8_RECIPES = {
    "delayed": "delayed", "delayedscaling": "delayed",
    "tensorwise": "tensorwise", "current": "tensorwise", "currentscaling": "tensorwise",
    "float8currentscaling": "tensorwise", "float8blockscaling": "blockwise", "mxfp8blockscaling": "mxfp8",
    "nvfp4blockscaling": "nvfp4",
}  # fmt: skip
"""Spelling of the scales of FP8, without spaces → Megatron's: one for a tensor, from the tensor's history (delayed) or
from the tensor itself (tensorwise, which Transformer Engine calls Float8CurrentScaling), or one for each block."""


def fp8_recipe(stated: str) -> str:
    """Return the scales of an FP8 training by Megatron's word, in whatever spelling they are stated.

    The format before them ("hybrid, delayed scaling") belongs to the recipe: E4M3 forward and E5M2 backward. A recipe
    that is not known is returned as it is.
    """
    words = stated.lower().replace(",", " ").replace("_", " ").split()
    plain = "".join(words[1:] if words[:1] == ["hybrid"] else words)
    return _FP8_RECIPES.get(plain, stated)


class Recompute(str):
    """Activations that backward computes again: a word of the flag, of a log, or of a result.

    NONE, SECOND_LAYERS and ALL_LAYERS name whole layers. A share such as "35%" is the part of the activations to keep
    at most, and `plan` names what a layer recomputes for it (models/recompute). Other words are a framework's own.
    """

    NONE: ClassVar[Recompute]
    SECOND_LAYERS: ClassVar[Recompute]
    ALL_LAYERS: ClassVar[Recompute]
    PRODUCTS = ("queries", "keys", "values", "output", "gate", "up", "down")
    """Matrix products of a dense layer, in the order in which they run."""
    ATTENTION = "attention"
    OPERATIONS = (*PRODUCTS[:3], ATTENTION, *PRODUCTS[3:6])
    """Operations of a layer whose results a plan keeps or recomputes, in the order in which they run."""

    @classmethod
    def plan(cls, recomputed: Collection[str], share: float) -> Recompute:
        """Return a plan in words, as results state it. share: of the activations without recomputation, 0 to 1.

        >>> Recompute.plan(("queries", "up"), 0.354)
        '35 % of activations kept: queries, up recomputed'
        """
        return cls(f"{round(100 * share)} % of activations kept: {', '.join(recomputed) or _NO_PRODUCT} recomputed")

    @classmethod
    def of_run(cls, stated: str) -> Recompute:
        """Return the recomputation of a run for a word of the flag; NONE for a share, whose plan is chosen later."""
        if cls(stated).kept_share is not None:
            return cls.NONE
        return cls.SECOND_LAYERS if stated == "selective" else cls(stated)

    @property
    def word(self) -> Recompute:
        """Return this project's word for a framework's: NONE for "off", ALL_LAYERS for "true"; others in lower case."""
        return Recompute(_WORDS.get(self.lower(), self.lower()))

    @property
    def megatron(self) -> dict[str, Any]:
        """Return the settings by which Megatron recomputes all layers; none for anything else."""
        return _MEGATRON if self == self.ALL_LAYERS else {}

    @property
    def of_layers(self) -> float | None:
        """Return the share of the layers that run again as a whole; None for parts of layers and other words."""
        return {self.NONE: 0.0, self.SECOND_LAYERS: 0.5, self.ALL_LAYERS: 1.0}.get(self)

    @property
    def operations(self) -> tuple[str, ...] | None:
        """Return the operations of a layer that a plan recomputes, all for ALL_LAYERS; None for other words.

        >>> Recompute("35 % of activations kept: queries, up recomputed").operations
        ('queries', 'up')
        """
        if self == self.ALL_LAYERS:
            return self.OPERATIONS
        found = re.fullmatch(r"\d+ % of activations kept: (.+) recomputed", self)
        names = () if found is None or found[1] == _NO_PRODUCT else tuple(found[1].split(", "))
        return names if found and set(names) <= set(self.OPERATIONS) else None

    @property
    def kept_share(self) -> float | None:
        """Return the share of the activations to keep, above 0 and up to 1; None for words and plans.

        >>> Recompute("35%").kept_share, Recompute("full").kept_share, Recompute("0%").kept_share
        (0.35, None, None)
        """
        found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)\s?%", self)
        return float(found[1]) / 100 if found and 0 < float(found[1]) <= 100 else None


Recompute.NONE, Recompute.ALL_LAYERS = Recompute("none"), Recompute("full")
Recompute.SECOND_LAYERS = Recompute("every second layer")
_NO_PRODUCT = "no product"
_WORDS = {**dict.fromkeys(("false", "off", "no"), "none"), **dict.fromkeys(("true", "yes"), "full")}
_MEGATRON = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
