"""Prefixes that launchers and loggers put before a framework's own line, and their removal.

One row per prefix. A row's expression may name `rank`, `world` (number of ranks) and `time`; their values are kept in
`Origin`, so that lines of several ranks can be distinguished.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that wrote a line, as far as the prefixes name it."""

    rank: int | None = None
    world_size: int | None = None
    time: str | None = None
    """Time stamp in the prefix, as printed."""
    primus: bool = False
    """True if Primus' own logger wrote the line."""


NOWHERE = Origin()

PREFIXES = {
    "torchrun": r"\[(?:default|trainer|worker)(?P<rank>\d{1,6})\]:\s?",
    "torch elastic": r"\[rank(?P<rank>\d{1,6})\]:\s?",
    "srun --label": r"[ ]{0,5}(?P<rank>\d{1,6}):(?:[ ]|$)",
    "mpirun --tag-output": r"\[\d{1,6},(?P<rank>\d{1,6})\]<std(?:out|err)>:\s?",
    "Ray": r"\([^()\n]{0,80}\bpid=\d{1,10}(?:, ip=[\d.a-f:]{1,45})?\)\s?",
    "pdsh, DeepSpeed": r"(?:worker|node|host|gpu|ip)[\w.-]{0,60}\d: |(?:\d{1,3}\.){3}\d{1,3}: ",
    "journald, syslog, ts": (
        r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? "
        r"(?:[\w.-]{1,255} [\w./@-]{1,64}\[\d{1,10}\]: )?"
        r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?[+-]\d\d:?\d\d "
        r"[\w.-]{1,255} [\w./@-]{1,64}\[\d{1,10}\]: "
        r"|1\d{9}\.\d{3,9} "
    ),
    "Kubernetes": (
        r"\[pod/[^\]\n]{1,200}\]\s"
        r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"
    ),
    "docker compose": r"[A-Za-z0-9][\w.-]{0,126}[-_]\d{1,4} {2,60}\| ",
    "Primus": (
        r"(?:\d{1,6})?\[?(?P<time>\d{8} \d\d:\d\d:\d\d(?:\.\d{1,6})?)\](?:\[[^\]\n]{0,200}\]){0,3}?"
        r"\[rank-(?P<rank>\d{1,6})/(?P<world>\d{1,6})\]\[?\s?[A-Z]{4,8} {0,10}\]? {0,10}"
        r"(?:\[[^\]\n]{0,200}\])? {0,4}:? {0,2}"
    ),
}


_ANY = re.compile(re.sub(r"\?P<\w+>", "?:", "|".join(PREFIXES.values())))
_EACH = tuple((name, re.compile(expression)) for name, expression in PREFIXES.items())
MOST_PREFIXES = 16  # launchers within launchers; removing a prefix copies the rest of the line
_STARTS = frozenset("[(0123456789 wnhgiJFMASOND")  # first characters of prefixes; most lines begin with another one
_DATE_STARTS = frozenset("[0123456789")
_COMPOSE = "  | "  # of docker compose, whose prefix begins with the name of any service
_COMPOSE_WITHIN = 200


def _may_begin(text: str) -> bool:
    return bool(text) and (text[0] in _STARTS or text.find(_COMPOSE, 0, _COMPOSE_WITHIN) > 0)


_STAMP = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: -|:|,| \|(?= [A-Z]{4,8} ))? (?:\[?(?:INFO|DEBUG|WARNING)\]?(?: ?[-:|])? )?"
)


def undated(text: str) -> str:
    """Return the line without the date and time at its beginning, for patterns that match only there.

    `strip` keeps a stamp, because a reader may time its rows by it.

    >>> undated("[2026-01-05 08:00:00] step 5: train loss 4.1"), undated("step 5")
    ('step 5: train loss 4.1', 'step 5')
    """
    match = _STAMP.match(text) if text[:1] in _DATE_STARTS else None
    return text[match.end() :] if match else text


def strip(text: str) -> str:
    """Return the line without its prefixes."""
    for _ in range(MOST_PREFIXES):
        if not _may_begin(text) or not (match := _ANY.match(text)):
            break
        text = text[match.end() :]
    return text


def strip_all(lines: Iterable[tuple[int, str]], longest: int | None = None) -> list[tuple[int, str]]:
    """Return numbered lines, the first `longest` characters of each, without their prefixes."""
    return [(number, strip(text[:longest])) for number, text in lines]


def split(text: str) -> tuple[Origin, str]:
    """Return the origin that the prefixes name, and the line without them; the innermost prefix decides the rank.

    >>> split("3: [default1]: iteration 5")
    (Origin(rank=1, world_size=None, time=None, primus=False), 'iteration 5')
    """
    found: dict[str, str] = {}
    primus, end = False, 0
    for name, match, start in _matches(text):
        found |= {key: value for key, value in match.groupdict().items() if value is not None}
        primus |= name == "Primus"
        end = start + match.end()
    if not found:
        return NOWHERE, text[end:]
    rank, world = found.get("rank"), found.get("world")
    return Origin(int(rank) if rank else None, int(world) if world else None, found.get("time"), primus), text[end:]


def rank_places(text: str) -> tuple[slice | None, int]:
    """Return the place of the rank that `split` finds, and where the line without prefixes begins.

    >>> rank_places("3: [default1]: iteration 5")
    (slice(11, 12, None), 15)
    """
    rank, end = None, 0
    for _, match, start in _matches(text):
        if match.groupdict().get("rank"):
            rank = slice(start + match.start("rank"), start + match.end("rank"))
        end = start + match.end()
    return rank, end


def _matches(text: str) -> Iterator[tuple[str, re.Match[str], int]]:
    """Yield each prefix: its name, its match in the text after earlier prefixes, and where that text begins."""
    start = 0
    for _ in range(MOST_PREFIXES):
        if not _may_begin(text) or not _ANY.match(text):
            return
        name, match = next((name, match) for name, pattern in _EACH if (match := pattern.match(text)))
        yield name, match, start
        text = text[match.end() :]
        start += match.end()
