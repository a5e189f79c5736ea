"""Fingerprint of tokenised training data: equal on two machines where both would train on the same first tokens.

The first FIRST_TOKENS tokens are hashed as 64-bit numbers, whatever file holds them: Megatron's .idx and .bin
(megatron/core/datasets/indexed_dataset.py), a .bin of 16-bit tokens as nanoGPT writes it, a shard of llm.c, a .npy, or
JSON lines with `input_ids`, `tokens` or `text_ids`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tensorprimat.core.errors import InputError
from tensorprimat.system import regular

FIRST_TOKENS = 2**20
FINGERPRINT = re.compile(r"sha256:[0-9a-f]{16}")
"""Form of a fingerprint, by which one that was printed on another machine is known."""
_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Code of a type of tokens in an index → the type; 6 and 7 are floating point."""
_HEADERS, _HEADER_BYTES = {20240520: "<u2", 20240801: "<u4"}, 1024
"""First number of a shard of llm.c and modded-nanogpt → type of its tokens; and the size of its header."""
_KEYS = ("input_ids", "tokens", "text_ids")
_REMEDY = "name Megatron's .idx, a .bin of 16-bit tokens, a .npy of tokens, or JSON lines with input_ids"


def fingerprint(path: Path) -> str:
    """Return the fingerprint of the tokens in a file, such as sha256:0123456789abcdef.

    path: the file, or Megatron's prefix of both files. Raises InputError where there are no tokens.
    """
    places = (path, path.with_suffix(".idx"), Path(f"{path}.idx")) if path.name else ()
    index = next((one for one in places if _is_index(one)), None)
    try:
        found = _of_index(index) if index else _of_file(path)
        tokens = np.fromiter(islice(found, FIRST_TOKENS), dtype="<i8")
    except (OSError, ValueError, OverflowError, TypeError) as error:
        raise InputError(f"holds no tokens ({error})", path=path, remedy=_REMEDY) from error
    if not len(tokens):
        raise InputError("holds no tokens", path=path, remedy=_REMEDY)
    return f"sha256:{hashlib.sha256(tokens.tobytes()).hexdigest()[:16]}"


def _is_index(path: Path) -> bool:
    if not os.path.isfile(path):
        return False
    with regular.open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _of_index(path: Path) -> Iterator[int]:
    """Yield the tokens of the sequences that an index lists, in its order."""
    header = np.dtype([("version", "<u8"), ("code", "u1"), ("sequences", "<u8"), ("documents", "<u8")])
    with regular.open_regular(path) as file:
        file.seek(len(_MAGIC))
        (facts,) = np.frombuffer(file.read(header.itemsize), header, count=1)
        if facts["version"] != 1 or int(facts["code"]) not in _DTYPES:
            raise ValueError(f"version {facts['version']} with tokens of type {facts['code']} is not known")
        start, sequences = file.tell(), int(facts["sequences"])
        first = min(sequences, FIRST_TOKENS)  # an empty sequence is rare
        lengths = np.frombuffer(file.read(4 * first), "<i4", count=first)
        file.seek(start + 4 * sequences)
        places = np.frombuffer(file.read(8 * first), "<i8", count=first)
    kind, left = np.dtype(_DTYPES[int(facts["code"])]), FIRST_TOKENS
    with regular.open_regular(path.with_suffix(".bin")) as file:
        for place, length in zip(places.tolist(), lengths.tolist(), strict=True):
            file.seek(place)
            wanted = min(length, left)
            yield from np.frombuffer(file.read(kind.itemsize * wanted), kind, count=wanted).tolist()
            left -= wanted
            if not left:
                return


def _of_file(path: Path) -> Iterator[int]:
    """Yield the tokens of one file by its ending."""
    if path.suffix == ".npy":
        numbers = np.load(path, mmap_mode="r", allow_pickle=False)
        if numbers.dtype.kind not in "iu":
            raise ValueError(f"its numbers are {numbers.dtype}")
        yield from numbers.reshape(-1)[:FIRST_TOKENS].tolist()
    elif path.suffix == ".bin":
        with regular.open_regular(path) as file:
            content = file.read(_HEADER_BYTES + 4 * FIRST_TOKENS)
        shard = _HEADERS.get(int.from_bytes(content[:4], "little"))
        kind = np.dtype(shard or "<u2")
        content = content[_HEADER_BYTES if shard else 0 :][: kind.itemsize * FIRST_TOKENS]
        yield from np.frombuffer(content, kind).tolist()
    elif path.suffix in (".jsonl", ".json"):
        with regular.open_regular(path) as file:
            for line in file:
                yield from _of_row(json.loads(line))
    else:
        with regular.open_regular(path):
            raise ValueError(f"{path.suffix or 'a file without an ending'} is not read")


def _of_row(row: Any) -> list[int]:
    tokens = next((row[key] for key in _KEYS if key in row), None) if isinstance(row, dict) else None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ValueError(f"a line has no whole numbers as {', '.join(_KEYS)}")
    return tokens
