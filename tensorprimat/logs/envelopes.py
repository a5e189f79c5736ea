"""Lines of a log inside JSON, as docker, Loki and the log services of clouds hand them out, taken out of it.

An entry stays one line, so that line numbers are those of the file; the lines of one message are parted by carriage
returns, which readers take as drawings of one line. A document that holds many entries in one line becomes many lines.

- docker's json-file driver: `{"log": "…\\n", "stream": "stdout", "time": "…"}`, long lines in pieces of 16 KiB
- logcli -o jsonl: `{"labels": {…}, "line": "…", "timestamp": "…"}`; Loki's API: one document, the newest line first
- Cloud Logging: `textPayload` or `jsonPayload.message`; CloudWatch: `{"events": [{"timestamp": …, "message": "…"}]}`
- Fluent Bit and others: `{"log" or "message": "…", "kubernetes" or "@timestamp": …}`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

MESSAGES = ("textPayload", "log", "line", "message", "msg")
"""Keys of the line itself."""
COMPANIONS = frozenset(
    (
        *("stream", "time", "timestamp", "@timestamp", "ts", "date", "labels", "kubernetes", "container_id", "_p"),
        *("insertId", "logName", "receiveTimestamp", "resource", "ingestionTime", "eventId", "logStreamName"),
    )
)
"""Keys that accompany the line in an envelope and that no row of a training has."""
DOCKER_PIECE_BYTES = 16_000  # docker cuts lines into pieces of 16 KiB
LOOKED_AT_LINES = 40  # of a file: an entry printed over several lines has some ten

_LONG_DOCUMENT = re.compile(rb'"(?:events|streams|result)": ?\[ ?\{|"textPayload": ?"')
_LINE_OF_ENTRY = re.compile(r'^\s+"(?:' + "|".join(MESSAGES) + r')": ("(?:[^"\\]|\\.)*"),?\s*$')
_COMPANION_OF_ENTRY = re.compile(r'^\s+"(' + "|".join(map(re.escape, sorted(COMPANIONS))) + r')": ')


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


def unwrapped(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines with each entry replaced by the lines in it; others stay as they are."""
    piece = ""
    for block in blocks:
        lines = []
        for line in block.decode("utf-8", "replace").split("\n"):
            text, is_piece = _line(line)
            if is_piece:
                piece, text = piece + text, ""
            elif piece and text:
                piece, text = "", piece + text
            lines.append(text)
        yield "\n".join(lines).encode()


def _line(line: str) -> tuple[str, bool]:
    """Return the content of one line of the file, and True if it is a piece of a longer one."""
    start = line.lstrip()[:1]
    if start == '"' and (match := _LINE_OF_ENTRY.match(line)):
        return _drawings(_decoded(match[1])), False
    if start not in ("{", "["):
        return line, False
    messages = _messages(line)
    if not messages:
        return line, False
    is_piece = len(messages) == 1 and not messages[0].endswith("\n") and len(messages[0]) >= DOCKER_PIECE_BYTES
    return (messages[0] if is_piece else "\n".join(map(_drawings, messages))), is_piece


def _drawings(message: str) -> str:
    return message.rstrip("\n").replace("\r\n", "\r").replace("\n", "\r")


def _decoded(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _messages(line: str) -> list[str]:
    """Return the lines in one JSON document, the oldest first; none where it is no envelope."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return []
    entries = _entries(document)
    found = [text for entry in entries if (text := _message(entry)) is not None]
    return found if len(found) == len(entries) else []


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
    values = [value for stream in streams if isinstance(stream, dict) for value in stream.get("values", ())]
    pairs = [value for value in values if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str)]
    pairs.sort(key=lambda pair: (len(pair[0]), pair[0]))  # nanoseconds as text
    return [{"timestamp": time, "line": text} for time, text, *_ in pairs]


def _message(entry: Any) -> str | None:
    """Return the line in an entry; None where it is none."""
    if not isinstance(entry, dict) or COMPANIONS.isdisjoint(entry):
        return None
    payload = entry.get("jsonPayload")
    for within in (entry, payload if isinstance(payload, dict) else {}):
        for name in MESSAGES:
            if isinstance(text := within.get(name), str):
                return text
    return None
