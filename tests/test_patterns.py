"""No regular expression of the package takes time that grows faster than the text, whatever the text."""

import ast
import dataclasses
import importlib
import importlib.util
import pkgutil
import re
import re._constants as code
import re._parser as parser
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import nodes

import tensorprimat
from tensorprimat.logs import dialects, keyvalue

LENGTH = 4000  # characters: of them, a quadratic pattern makes eight million attempts
SHORT_LENGTH = LENGTH // 4  # is tried first: most patterns are so fast that nothing else need be measured
SLOW_SECONDS = 0.02  # eight million attempts take more; a linear pattern takes a tenth, also on a slow machine
SUSPECT_SECONDS = SLOW_SECONDS / 100  # for the short text, where a quadratic one takes a sixteenth
GROWTH = 9.0  # from a quarter of the text to all of it: 4 is linear, 16 quadratic
PATIENCE_SECONDS = 0.4
MOST_UNITS = 25  # repeated for one pattern
ROOT = Path(tensorprimat.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
OFTEN = ("1", " ", "a", "=", ".", "-", "1,", "1.", " 1", "a 1 ", "\t", "a: 1 ", "[", '"')
REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT, getattr(code, "POSSESSIVE_REPEAT", None))
CATEGORIES = {
    code.CATEGORY_DIGIT: "1", code.CATEGORY_SPACE: " ", code.CATEGORY_WORD: "a", code.CATEGORY_NOT_SPACE: "x",
    code.CATEGORY_NOT_DIGIT: "x", code.CATEGORY_NOT_WORD: "-",
}  # fmt: skip


def modules():
    for module in pkgutil.walk_packages(tensorprimat.__path__, "tensorprimat."):
        without_triton = module.name.endswith(".torch.transpose") and importlib.util.find_spec("triton") is None
        if not (module.name.endswith("__main__") or without_triton):
            yield importlib.import_module(module.name)


def inside(value: object, depth: int = 0) -> Iterator[re.Pattern]:
    """Yield the patterns of a value and of tables of values."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 4 and isinstance(value, tuple | list | frozenset | set):
        for one in value:
            yield from inside(one, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for one in value.values():
            yield from inside(one, depth + 1)
    elif depth < 4 and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from inside(getattr(value, field.name, None), depth + 1)


def methods_of_names() -> dict[str, set[str]]:
    """Return by the name of a pattern the methods that the package calls on it."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in nodes(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.Attribute):
                holder = node.value
                name = holder.id if isinstance(holder, ast.Name) else getattr(holder, "attr", None)
                if name:
                    found.setdefault(name, set()).add(node.attr)
    return found


def patterns() -> Iterator[tuple[str, re.Pattern, bool]]:
    """Yield where a pattern is, the pattern, and if it is only tried at the beginning of a text."""
    methods = methods_of_names()
    for module in modules():
        for name, value in vars(module).items():
            used = methods.get(name, set()) & {"search", "finditer", "findall", "sub", "split", "subn"}
            tried = methods.get(name, set()) & {"match", "fullmatch"}
            for pattern in inside(value):
                yield f"{module.__name__}.{name}", pattern, bool(tried and not used)
    for path in SOURCES:
        for node in nodes(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                text = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
                known = getattr(node.func.value, "id", "") == "re" and node.func.attr not in ("compile", "escape")
                if known and isinstance(text, str | bytes):
                    at_start = node.func.attr in ("match", "fullmatch")
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", re.compile(text), at_start
    for dialect in dialects.DIALECTS:
        for text in (dialect.row, dialect.new_epoch, *(pattern for pattern, _ in dialect.words)):
            if text:
                yield f"dialect {dialect.name}", re.compile(text), False
        for number in (*dialect.numbers, *dialect.settings):
            yield (
                f"dialect {dialect.name}",
                keyvalue._expression(number.spelled, dialect.suffixes, number.decimals),
                False,
            )


def sample(items) -> str:
    """Return a short text that fits a parsed pattern, or nearly."""
    out = ""
    for kind, value in items:
        if kind is code.LITERAL:
            out += chr(value)
        elif kind is code.NOT_LITERAL:
            out += "x" if chr(value) != "x" else "y"
        elif kind is code.ANY:
            out += "x"
        elif kind is code.IN:
            out += one_of(value)
        elif kind in REPEATS:
            out += sample(value[2]) * max(value[0], min(1, int(value[1])))
        elif kind is code.SUBPATTERN:
            out += sample(value[3])
        elif kind is getattr(code, "ATOMIC_GROUP", None):
            out += sample(value)
        elif kind is code.BRANCH:
            out += sample(value[1][0])
    return out


def one_of(listed) -> str:
    if listed[0][0] is code.NEGATE:
        refused = {chr(value) for kind, value in listed if kind is code.LITERAL}
        return next((one for one in "x1 -" if one not in refused), "")
    kind, value = listed[0]
    if kind is code.CATEGORY:
        return CATEGORIES[value]
    return chr(value[0] if kind is code.RANGE else value)


def pieces(items) -> Iterator[str]:
    """Yield a text for every part of a parsed pattern."""
    yield sample(items)
    for kind, value in items:
        if kind in REPEATS:
            yield from pieces(value[2])
        elif kind is code.SUBPATTERN:
            yield from pieces(value[3])
        elif kind is getattr(code, "ATOMIC_GROUP", None):
            yield from pieces(value)
        elif kind is code.BRANCH:
            for branch in value[1]:
                yield from pieces(branch)


def attacks(pattern: re.Pattern) -> Iterator[tuple[str, str]]:
    """Yield a beginning, and what is repeated after it: parts of a match, so that attempts fail late."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    parsed = parser.parse(text, pattern.flags & ~re.UNICODE)
    whole = sample(parsed)
    units = {*OFTEN, *pieces(parsed), *(whole[:end] for end in range(1, len(whole), max(1, len(whole) // 8)))}
    yield from (("", unit) for unit in sorted(units)[:: len(units) // MOST_UNITS + 1] if unit)
    for end in range(1, len(whole), max(1, len(whole) // 5)):
        yield from ((whole[:end], unit) for unit in (" ", "1", "a", whole[end - 1]))


class LateError(Exception):
    """Raised if a pattern takes longer than its time limit."""


def seconds(pattern: re.Pattern, attack: tuple[str, str], length: int, *, at_start: bool) -> float:
    begin, unit = attack
    text = begin + unit * (length // len(unit)) + "\x01"
    subject = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    begun = time.thread_time()  # that of the process is coarse while its timer runs
    try:
        signal.setitimer(signal.ITIMER_PROF, PATIENCE_SECONDS)  # of this process: another one's work does not count
        try:
            if at_start:
                pattern.match(subject), pattern.fullmatch(subject)
            else:
                for _ in pattern.finditer(subject):
                    pass
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)  # the signal can still arrive here
    except LateError:
        return PATIENCE_SECONDS
    return time.thread_time() - begun


def worst(pattern: re.Pattern, *, at_start: bool = False) -> str | None:
    """Return the text under which the time of a pattern grows faster than the text, or None."""
    for attack in attacks(pattern):
        taken = seconds(pattern, attack, SHORT_LENGTH, at_start=at_start)
        if taken >= PATIENCE_SECONDS:
            return f"{attack} takes more than {taken * 1000:.0f} ms even in a short text"
        if taken > SUSPECT_SECONDS:
            tries = [
                (seconds(pattern, attack, LENGTH, at_start=at_start),
                 seconds(pattern, attack, SHORT_LENGTH, at_start=at_start)) for _ in range(3)
            ]  # fmt: skip
            long, short = (min(times) for times in zip(*tries, strict=True))
            if long >= PATIENCE_SECONDS or (long > SLOW_SECONDS and long > GROWTH * short):
                return f"{attack} takes {long * 1000:.0f} ms, a quarter of it {short * 1000:.0f} ms"
    return None


@pytest.fixture(autouse=True)
def _patience():
    def late(*_):
        raise LateError

    before = signal.signal(signal.SIGPROF, late)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs timers that interrupt a search")
def test_every_pattern_of_the_package_takes_time_in_proportion_to_the_text():
    listed = {(pattern.pattern, pattern.flags, at_start): (where, pattern) for where, pattern, at_start in patterns()}
    assert len(listed) > 250
    slow = [f"{where}: {found}" for (_, _, at_start), (where, pattern) in listed.items()
            if (found := worst(pattern, at_start=at_start))]  # fmt: skip
    assert not slow, "\n".join(slow)
