"""Names of models as the configurations of frameworks spell them."""

from __future__ import annotations

import itertools
import re

from tensorprimat.logs import files
from tensorprimat.logs.text import HEAD_BYTES, Log
from tensorprimat.models import names

_SEARCHED_BYTES = 2**26  # of a log whose reader knows no model: more takes long, and settings are at the beginning
_FAMILY = re.compile(rb"llama|qwen|mistral", re.IGNORECASE)


def model_name(spelled: str) -> str | None:
    """Return the project's name of a known model, else the last part of the path without precision, phase or date.

    None for a number: "parameters in model: 1986054144" names no model.

    >>> model_name("examples/megatron/configs/MI300X/llama3.1_8B-BF16-pretrain.yaml"), model_name("llama2_70B.yaml")
    ('llama', 'llama2_70B')
    >>> model_name("1986054144")
    """
    last = spelled.strip().strip("'\"").rstrip("/").rpartition("/")[2]
    return names.known_model(spelled) or (None if last.isdigit() else names.undecorated(last) or None)


def in_text(log: Log) -> dict[str, str]:
    """Return the models that a log names with version and size: key → place and spelling of the first mention.

    If it names none, the models that it may mean by a class or a path (`names.labels`). Reads the first _SEARCHED_BYTES
    only: a configuration comes before the rows.
    """
    found: dict[str, str] = {}
    labels: dict[str, str] = {}
    number = 1
    for block in itertools.islice(files.blocks(log.path, HEAD_BYTES), _SEARCHED_BYTES // HEAD_BYTES):
        if _FAMILY.search(block):
            for offset, line in enumerate(block.decode("utf-8", "replace").split("\n")):
                for match in names.mentions(line):
                    found.setdefault(names.key(match), f"line {number + offset}: {match}")
                for label, spelled in () if found else names.labels(line).items():
                    labels.setdefault(label, f"line {number + offset}: {spelled}, no size")
        number += files.count_line_ends(block)
    return found or labels


def names_model(file_name: str, model: str) -> bool:
    """Return True if a file's name names this model alone: with its size where the name has one, else by its family.

    >>> [names_model(name, "llama") for name in ("my_llama_run.log", "llama3.1_70B.log", "llama_and_qwen.log")]
    [True, False, False]
    """
    return (names.sized(file_name) or names.families(file_name)) == {model}
