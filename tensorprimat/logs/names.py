"""Names of models as configurations spell them, and the names that results of the same model share."""

from __future__ import annotations

import re

_KNOWN = (
    ("llama", re.compile(r"llama[-_ ]?3(?:[._]1)?[-_ ]?8b", re.IGNORECASE)),
    ("qwen", re.compile(r"qwen[-_ ]?2[._]5[-_ ]?7b", re.IGNORECASE)),
    ("mistral", re.compile(r"mistral[-_ ]?7b", re.IGNORECASE)),
)
_DECORATION = re.compile(
    r"\.ya?ml$|[-_](?:bf16|fp16|fp8|fp4|mxfp\d|pre_?train|post_?train|sft|lora)\b.*$", re.IGNORECASE
)


def model_name(spelled: str) -> str | None:
    """The name that results of this model share: the project's own for its own models, else the last part of the path.

    >>> model_name("examples/megatron/configs/MI300X/llama3.1_8B-BF16-pretrain.yaml"), model_name("llama2_70B.yaml")
    ('llama', 'llama2_70B')
    """
    last = spelled.strip().strip("'\"").rstrip("/").rpartition("/")[2]
    for name, pattern in _KNOWN:
        if pattern.search(last):
            return name
    return _DECORATION.sub("", last) or None
