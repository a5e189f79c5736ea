"""Stated facts as a command line has them: `VALUE` for everything that is read, `SIDE=VALUE` for one log or result.

A side is named by the label that reports show, or by its file (name, stem or folder), platform, device, model, engine
or precision, whatever distinguishes it from the others. `core/user_facts` lays the facts over a result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprimat.core import user_facts
from tensorprimat.core.errors import UsageError
from tensorprimat.core.records import LARGEST_COUNT
from tensorprimat.core.result import Result
from tensorprimat.core.settings import BY_NAME, PRECISIONS, option
from tensorprimat.core.user_facts import ALL_FLAGS, UserFacts
from tensorprimat.facts import catalogue
from tensorprimat.models import shapes
from tensorprimat.system.fingerprint import FINGERPRINT, fingerprint

PLATFORM_WORDS = {"nvd": ("nvd", "nvidia", "cuda"), "amd": ("amd", "rocm"), "cpu": ("cpu",), None: ("unknown",)}
"""Words for a platform on a command line."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One fact as it was typed."""

    field: str
    """Field of `user_facts.UserFacts`."""
    value: Any
    side: str | None
    """Name of the log or result that the fact is for; None for everything that is read."""
    typed: str

    @property
    def flag(self) -> str:
        """Return the flag with the text that was typed."""
        return f"{ALL_FLAGS[self.field]} {self.typed}"


def read_statements(
    typed: Mapping[str, Sequence[str] | str | int | None], *, sides: bool = True
) -> tuple[Statement, ...]:
    """Return the facts of a command line, checked.

    typed: field of UserFacts → values as typed, None where not stated. sides: True if a value may have the form
    SIDE=VALUE. Raises UsageError that names the flag, for an impossible value and for a fact that is stated twice.

    >>> [(one.value, one.side) for one in read_statements({"gpu": ["H100", "amd=MI300X"], "num_gpus": ["8"]})]
    [('H100 SXM', None), ('MI300X', 'amd'), (8, None)]
    """
    found: list[Statement] = []
    for field, values in typed.items():
        for text in [] if values is None else [values] if isinstance(values, (str, int)) else values:
            side, value = _parted(field, str(text)) if sides else (None, str(text))
            one = Statement(field=field, value=_value(field, value, str(text)), side=side, typed=str(text))
            if any((one.field, one.side) == (other.field, other.side) for other in found):
                remedy = (
                    f"; name a side: {ALL_FLAGS[field]} SIDE={value}" if side is None else f" for {side}; leave one out"
                )
                raise UsageError(f"{one.flag}: stated twice{remedy}")
            found.append(one)
    return tuple(found)


def _parted(field: str, text: str) -> tuple[str | None, str]:
    """Return side and value of "SIDE=VALUE"; a shape by its numbers has a sign of equality of its own."""
    side, equals, value = text.partition("=") if field == "shape" else text.rpartition("=")
    is_whole = field in ("shape", "data_fingerprint") and os.path.exists(text)
    if not equals or is_whole or (field == "shape" and shapes.NUMBERS.fullmatch(text)):
        return None, text
    return side.strip(), value


def _value(field: str, text: str, typed: str) -> Any:
    flag = ALL_FLAGS[field]
    if not text.strip():
        raise UsageError(f"{flag} is empty" if not typed.strip() else f"{flag} {typed}: has no value")
    if field in BY_NAME and BY_NAME[field].kind == "count":
        return typed_count(flag, text, least=min(1, option(field).least or 0), typed=typed)
    if field == "precision":
        if text.lower() not in PRECISIONS:
            raise UsageError(f"{flag} {typed}: must be one of {', '.join(PRECISIONS)}")
        return text.lower()
    if field == "data_fingerprint":
        return text if FINGERPRINT.fullmatch(text) else fingerprint(Path(text))
    if field == "gpu":
        return catalogue.typed_gpu(text.strip())
    return shapes.parse_shape(text) if field == "shape" else text.strip()


def typed_count(flag: str, text: str, *, least: int, typed: str | None = None) -> int:
    """Return a whole number as typed. Raises UsageError naming the flag where it is none, too small or impossible.

    typed: the whole value of the flag, such as SIDE=8.
    """
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{flag} {typed or text}: must be a whole number") from None
    if not least <= number <= LARGEST_COUNT:
        fault = f"must be {least} or more" if number < least else "is impossibly large"
        raise UsageError(f"{flag} {typed or text}: {fault}")
    return number


_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def typed_tokens(text: str) -> float | None:
    """Return a number of tokens as typed; None for what is no finite number.

    >>> typed_tokens("15T"), typed_tokens("1e12"), typed_tokens("many")
    (15000000000000.0, 1000000000000.0, None)
    """
    factor = _UNITS.get(text[-1:].upper())
    try:
        number = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def is_of_side(side: str, words: Collection[str]) -> bool:
    """Return True if a side is one of the words, in any case."""
    return side.casefold() in map(str.casefold, words)


def with_statements(result: Result, statements: Sequence[Statement], words: Collection[str], *, alone: bool) -> Result:
    """Return a result with the facts that are meant for it. words: names of it; alone: it is the only one."""
    own = _own(statements, words)
    for_all = {one.field: one.value for one in statements if one.side is None and one.field not in own}
    if alone:
        return user_facts.amended(result, UserFacts(**for_all, **own))
    return user_facts.amended(user_facts.amended(result, UserFacts(**for_all, overrides=False)), UserFacts(**own))


def facts_for(statements: Sequence[Statement], path: str | Path) -> UserFacts:
    """Return the facts stated for a log that the user named."""
    own = _own(statements, words_of_file(Path(path)))
    return UserFacts(**{**{one.field: one.value for one in statements if one.side is None}, **own})


def _own(statements: Sequence[Statement], words: Collection[str]) -> dict[str, Any]:
    """Return the facts that are stated for one side by a name of it. Raises UsageError where two contradict."""
    own: dict[str, Statement] = {}
    for one in statements:
        if one.side is None or not is_of_side(one.side, words):
            continue
        other = own.setdefault(one.field, one)
        if other.value != one.value:
            remedy = "use a name that only one side has"
            raise UsageError(f"{one.flag}: contradicts {other.flag}, which names the same result; {remedy}")
    return {field: one.value for field, one in own.items()}


def check_sides(statements: Sequence[Statement], words: Sequence[Collection[str]], shown: Collection[str] = ()) -> None:
    """Raise UsageError for a fact whose side names no file or result that was read. words: the names of each.

    shown: labels that reports show, for the message.
    """
    known = set().union(*words)
    for one in statements:
        if one.side is not None and not is_of_side(one.side, known):
            distinctive = {word for word in known if len(words) == 1 or not all(is_of_side(word, own) for own in words)}
            names = ", ".join(shown or sorted(distinctive or known))
            raise UsageError(f"{one.flag}: nothing that was read is called {one.side!r}; there are {names}")


def words_of_file(path: Path) -> set[str]:
    """Return the names that a user may write for a file as its side."""
    return {name for name in (str(path), path.name, path.stem, path.parent.name) if name not in ("", "-")}


def words_of(result: Result) -> set[str]:
    """Return the names that a user may write for a result as its side."""
    device = result.gpu_info.device_name
    gpu = catalogue.find_gpu_of(result.gpu_info)
    facts = (
        *PLATFORM_WORDS[result.platform],
        device,
        catalogue.plain_name(device or ""),
        gpu.name if gpu else None,
        result.model.name,
        result.model.preset,
        result.provenance.engine,
        result.training_config.precision,
    )
    return {fact for fact in facts if fact}
