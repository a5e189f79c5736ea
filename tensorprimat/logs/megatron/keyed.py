"""Conversion of iteration lines of `name=value` pairs, which the Megatron-DeepSpeed of Argonne's computing facility
prints since 2024 (`training_log.py`), to the spelling of all other descendants of Megatron-LM:
` iteration=  5/ 100 | … elapsed_time_per_iteration_ms=3415.3 | …` → ` iteration 5/ 100 | … elapsed time per iteration
(ms): 3415.3 | …`. Lines keep their number.
"""

from __future__ import annotations

import re

KEYED_NEEDLE = "elapsed_time_per_iteration_ms="
"""Text in every such line."""
ROW = re.compile(rf"\biteration=\s{{0,20}}\d{{1,20}}/\s{{0,20}}\d{{1,20}}\s\|[^\n]{{0,2000}}?\b{KEYED_NEEDLE}")

_LINE = re.compile(ROW.pattern.encode() + rb"[^\n]*")
_PAIR = re.compile(rb"(?:(?<=\| )|\b(?=iteration=))([A-Za-z][A-Za-z_ ]{0,60})=\s{0,20}")
_OTHERWISE = {
    b"iteration": b"iteration ",
    b"elapsed_time_per_iteration_ms": b"elapsed time per iteration (ms): ",
    b"tokens_per_gpu_per_second_tgs": b"tokens per gpu per second (tgs): ",
}


def respelled(block: bytes) -> bytes:
    """Return a block of lines with its iteration lines in the usual spelling."""
    return _LINE.sub(lambda line: _PAIR.sub(_respelled_name, line[0]), block)


def _respelled_name(pair: re.Match[bytes]) -> bytes:
    return _OTHERWISE.get(pair[1], pair[1].replace(b"_", b" ") + b": ")
