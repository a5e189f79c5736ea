"""Lines of a log inside JSON, as written by docker, Loki and the log services of clouds, extracted from it.

An entry stays one line, so that line numbers are those of the file; the lines of one message are separated by carriage
returns, which readers take as drawings of one line. A document that holds many entries in one line becomes many lines,
from the oldest to the newest.
The time of an entry becomes a prefix of its line, spelled as Kubernetes does, unless the line has a stamp of its own.

- docker's json-file driver: `{"log": "…\\n", "stream": "stdout", "time": "…"}`, long lines in pieces of 16 KiB
- logcli -o jsonl: `{"labels": {…}, "line": "…", "timestamp": "…"}`; Loki's API: one document, the newest line first
- Cloud Logging: `textPayload` or `jsonPayload.message`; CloudWatch: `{"events": [{"timestamp": …, "message": "…"}]}`
- Fluent Bit and others: `{"log" or "message": "…", "kubernetes" or "@timestamp": …}`
- journalctl -o json: `{"MESSAGE": "…", "__REALTIME_TIMESTAMP": "…"}`, microseconds
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import chain, pairwise
from typing import Any

from tensorprimat.logs.clocks import STAMP_CHARACTERS, moment_in
from tensorprimat.logs.fields import json_in

JOURNAL = "MESSAGE"
"""Key of journald, which writes a line with colours as a list of bytes."""
MESSAGES = ("textPayload", "log", "line", "message", "msg", JOURNAL)
"""Keys of the line itself."""
_TIMES = ("timestamp", "@timestamp", "time", "ts", "date", "__REALTIME_TIMESTAMP")
"""Keys of the time at which the line was written."""
_COMPANIONS = frozenset(
    (
        *("stream", "time", "timestamp", "@timestamp", "ts", "date", "labels", "kubernetes", "container_id", "_p"),
        *("insertId", "logName", "receiveTimestamp", "resource", "ingestionTime", "eventId", "logStreamName"),
        "__REALTIME_TIMESTAMP",
    )
)
"""Keys that accompany the line in an envelope and that no row of a training has."""
DOCKER_PIECE_BYTES = range(16_000, 2**14 + 9)
"""Length of docker's pieces: 16 KiB, a little less where a collector has trimmed them, and up to four bytes more at
either end, where each byte of a character that docker cut has become a replacement character of three bytes."""
LOOKED_AT_LINES = 40  # of a file: an entry printed over several lines has some ten
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_LONG_DOCUMENT = re.compile(rb'"(?:events|streams|result)": ?\[ ?\{|"textPayload": ?"')
_LINE_OF_ENTRY = re.compile(r'^\s+"(?:' + "|".join(MESSAGES) + r')": ("(?:[^"\\]|\\.)*"),?\s*$')
_TIME_OF_ENTRY = re.compile(r'^\s+"(?:' + "|".join(_TIMES) + r')": ("[^"\\]{1,64}"|\d{1,20}(?:\.\d{1,9})?),?\s*$')
_DATE = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9})\d*)?"
    r" ?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_SINCE_EPOCH = re.compile(r"(?P<seconds>\d{10})(?:\.?(?P<fraction>\d{1,9}))?")
"""Seconds, milliseconds, microseconds or nanoseconds since 1970, of the years 2001 to 2286."""
_COMPANION_OF_ENTRY = re.compile(r'^\s+"(' + "|".join(map(re.escape, sorted(_COMPANIONS))) + r')": ')


def is_enveloped(head: bytes) -> bool:
    """Return True if a text begins with entries of a log service."""
    if head.lstrip()[:1] not in (b"{", b"["):
        return False
    lines = head.decode("utf-8", "replace").split("\n")[:LOOKED_AT_LINES]
    if len(lines) == 1 and _LONG_DOCUMENT.search(head):
        return True
    first = next((line for line in lines if line.strip()), "")
    if _messages(first):
        return True
    return any(map(_LINE_OF_ENTRY.match, lines)) and any(map(_COMPANION_OF_ENTRY.match, lines))


@dataclass
class _LongLine:
    """The pieces so far of a line that docker cut. The part of a line beyond `most_bytes` is dropped."""

    most_bytes: int
    pieces: list[str] = field(default_factory=list)
    size_bytes: int = 0
    stamp: str = ""
    """Time of the last piece, as a prefix."""
    is_dockers: bool = False
    """True if the last entry is a piece or contains the end of its line."""
    is_cut: bool = False
    """True if the last entry is a piece, or lacks the end of its line although the one before it is docker's."""

    def add(self, piece: str) -> None:
        if self.size_bytes < self.most_bytes:
            self.pieces.append(piece)
            self.size_bytes += len(piece.encode("utf-8", "replace"))

    def end_with(self, piece: str) -> str:
        """Return the pieces as one line that ends with `piece`, and begin another line."""
        if not self.pieces:
            return piece
        self.add(piece)
        line = "".join(self.pieces)
        self.pieces, self.size_bytes = [], 0
        return line


def unwrapped(blocks: Iterable[bytes], most_bytes: int) -> Iterator[bytes]:
    """Yield blocks of whole lines with each entry replaced by the lines in it; others stay as they are.

    most_bytes: of a line in pieces, or of one of its drawings; the rest of it is dropped.
    """
    long_line = _LongLine(most_bytes)
    for block, following in pairwise(chain(blocks, [b""])):
        lines: list[str] = []
        time, undated = "", -1  # of an entry printed over several lines: its time, and its line if that has no time yet
        for line in block.decode("utf-8", "replace").split("\n"):
            if line.lstrip()[:1] != '"':
                lines.append(_line(line, long_line))
            elif match := _LINE_OF_ENTRY.match(line):
                lines.append(_drawings(_decoded(match[1]), time))
                time, undated = "", -1 if time else len(lines) - 1
            elif match := _TIME_OF_ENTRY.match(line):
                time = _prefix(_decoded(match[1]))
                if undated >= 0:
                    lines[undated], time, undated = _drawings(lines[undated], time), "", -1
                lines.append(line)
            else:
                lines.append(line)
        if not following and long_line.is_cut:
            lines = _without_end(lines[:-1] if block.endswith(b"\n") else lines, long_line)
        yield "\n".join(lines).encode("utf-8", "replace")  # JSON may contain half of a surrogate pair


def _without_end(lines: list[str], long_line: _LongLine) -> list[str]:
    """Return the last lines of a file so that they end as the log itself: in the middle of a line."""
    *before, last = lines
    unfinished = _drawings(long_line.end_with(""), long_line.stamp)
    return [*before, "\r".join(filter(None, (last, unfinished)))]


def _line(line: str, long_line: _LongLine) -> str:
    """Return the content of one line of the file: of a piece, the drawings that end in it; the rest waits."""
    messages = _messages(line) if line.lstrip()[:1] in ("{", "[") else []
    if not messages:
        if not line:
            return ""
        long_line.is_cut = False
        return long_line.end_with(line)
    (text, time), *others = messages
    if not others and _is_piece(text):
        drawings, mark, unfinished = text.rpartition("\r")
        stamp = long_line.stamp = _prefix(time)
        ended = _drawings(long_line.end_with(drawings), stamp) if mark else ""
        long_line.add(unfinished)
        long_line.is_cut = long_line.is_dockers = True
        return ended
    has_end = text.endswith("\n")
    long_line.is_cut, long_line.is_dockers = long_line.is_dockers and not (has_end or others), has_end
    return "\n".join(_drawings(text, _prefix(time)) for text, time in ((long_line.end_with(text), time), *others))


def _is_piece(text: str) -> bool:
    """Return True for a message that is as long as docker's pieces and lacks the end of its line."""
    may_be = not text.endswith("\n") and len(text) >= DOCKER_PIECE_BYTES[0] // 4  # a character has at most four bytes
    return may_be and len(text.encode("utf-8", "replace")) in DOCKER_PIECE_BYTES


def _drawings(message: str, stamp: str) -> str:
    """Return a message as one line, with the stamp before each of its own lines that has none."""
    texts = message.rstrip("\n").replace("\r\n", "\r").replace("\n", "\r").split("\r")
    return "\r".join(_stamped(text, stamp) for text in texts)


def _stamped(text: str, stamp: str) -> str:
    return stamp + text if stamp and text and moment_in(text[:STAMP_CHARACTERS]) is None else text


def _prefix(time: Any) -> str:
    """Return the time of an entry as Kubernetes writes it before a line; empty for none.

    >>> _prefix("2026-01-16 07:32:00.25+01:00"), _prefix(1768548720250), _prefix("1768548720.5"), _prefix("today")
    ('2026-01-16T07:32:00.25+01:00 ', '2026-01-16T07:32:00.250Z ', '2026-01-16T07:32:00.5Z ', '')
    """
    if isinstance(time, str) and (match := _DATE.match(time)):
        fraction = f".{match['fraction']}" if match["fraction"] else ""
        return f"{match['day']}T{match['time']}{fraction}{match['zone'] or 'Z'} "
    if isinstance(time, bool) or not isinstance(time, (str, int, float)):
        return ""
    if not (match := _SINCE_EPOCH.fullmatch(format(time, ".6f") if isinstance(time, float) else str(time))):
        return ""
    moment = _EPOCH + timedelta(seconds=int(match["seconds"]))
    fraction = f".{match['fraction']}" if match["fraction"] else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z "


def _decoded(text: str) -> str:
    content = json_in(text)
    return text if content is None else str(content)


def _messages(line: str) -> list[tuple[str, Any]]:
    """Return (line, its time) of each entry of one JSON document, the oldest first; [] if it is not an envelope."""
    entries = _entries(json_in(line))
    found = [(text, _time(entry)) for entry in entries if (text := _message(entry)) is not None]
    if len(found) < len(entries):
        return []
    return found[::-1] if _is_newest_first(found) else found


def _is_newest_first(messages: list[tuple[str, Any]]) -> bool:
    """Return True if the first entry is younger than the last one, as many services list them by default."""
    first, last = (moment_in(_prefix(messages[at][1])) if messages else None for at in (0, -1))
    return first is not None and last is not None and first.seconds > last.seconds


def _entries(document: Any) -> list[Any]:
    """Return the entries of one document: itself, or those that it lists."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return []
    if isinstance(events := document.get("events"), list):
        return events
    data = document.get("data", document)
    streams = data.get("result", data.get("streams")) if isinstance(data, dict) else None
    if not isinstance(streams, list):
        return [document]
    lists = [stream.get("values") for stream in streams if isinstance(stream, dict)]
    values = [value for values in lists if isinstance(values, list) for value in values]
    pairs = [value for value in values if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str)]
    pairs.sort(key=lambda pair: (len(pair[0]), pair[0]))  # nanoseconds as text
    return [{"timestamp": time, "line": text} for time, text, *_ in pairs]


def _message(entry: Any) -> str | None:
    """Return the line in an entry; None if it is not an entry of a log service."""
    if not isinstance(entry, dict) or _COMPANIONS.isdisjoint(entry):
        return None
    payload = entry.get("jsonPayload")
    for within in (entry, payload if isinstance(payload, dict) else {}):
        for name in MESSAGES:
            text = within.get(name)
            if isinstance(text, list) and name == JOURNAL and all(isinstance(part, int) for part in text):
                text = bytes(part & 0xFF for part in text).decode("utf-8", "replace")
            if isinstance(text, str):
                return text
    return None


def _time(entry: dict[str, Any]) -> Any:
    return next((entry[name] for name in _TIMES if name in entry), None)
