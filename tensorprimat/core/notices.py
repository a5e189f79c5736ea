"""`Notice`: what a result has to say besides its figures, for people as a sentence and for programs as a code.

data/notices.toml gives each code its sentence, its severity, and the flags that answer it. Code decides by the code,
the field or the flags of a notice, never by its words.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from tensorprimat.core import quantities
from tensorprimat.core.records import Record
from tensorprimat.facts import data_rows

Severity = Literal["info", "caution", "error"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
REMARK = "remark"
"""Code of a sentence from a file that states no code, and of what another program says."""
_FLAG = re.compile(r"--[a-z][a-z-]+")
_FIELD = re.compile(r"([a-z][a-z0-9_/. -]{1,60}?): (.*)", re.DOTALL)


class NoticeRecord(Record):
    """Content of a warning for programs."""

    code: str
    """Name of the kind of notice, as tensorprimat/data/notices.toml lists it; remark for a sentence without a kind."""
    field: str
    """Field of this file, or part of the training, that it is about."""
    severity: Severity
    """info: explains a figure; caution: a figure means less than its name says, or is missing; error: figures
    contradict one another."""
    values: dict[str, Any] = Field(default_factory=dict)
    """Values in the sentence, by the names of the table."""
    remedies: tuple[str, ...] = ()
    """Flags of tprimat that answer it."""
    run: int | None = None
    """Number of the run that it is about, from 1; None for all runs."""


@dataclass(frozen=True, kw_only=True)
class NoticeKind:
    """A row of the table."""

    severity: Severity
    text: str
    """The sentence without its subject; {name} is a value, {name:form} a value in one of the forms of `_FORMS`."""
    many: str | None = None
    """The sentence for several sides with other values: {sides}, and {low} and {high} of the value `off`, a share."""
    flags: tuple[str, ...] = ()
    """Flags that answer the notice; a notice may name others by itself."""
    derived: bool = False
    """True if the notice follows from the figures, and is made anew each time that these are computed."""


class Notice(str):
    """A sentence with its code, the field that it is about, its severity, its values, and the flags that answer it.

    Two notices are equal if their sentences are.
    """

    __slots__ = ("code", "field", "remedies", "run", "severity", "values")
    code: str
    field: str
    severity: Severity
    values: Mapping[str, Any]
    remedies: tuple[str, ...]
    run: int | None
    """Number of the run that it is about, from 1; None for all."""

    def __new__(
        cls, code: str, field: str, *, run: int | None = None, remedies: Sequence[str] = (), **values: Any
    ) -> Notice:
        """Create a notice from the table. Raises KeyError for a code or a value that the table does not have.

        field: empty for a sentence that begins with a subject of its own.
        """
        kind = notice_kinds()[code]
        where = "" if run is None else f"run {run}: "
        sentence = f"{field}: {where}{_Formatter().vformat(kind.text, (), values)}".removeprefix(": ")
        return cls._made(sentence, code, field, kind.severity, values, (*kind.flags, *remedies), run)

    @classmethod
    def _made(
        cls,
        sentence: str,
        code: str,
        field: str,
        severity: Severity,
        values: Mapping[str, Any],
        remedies: Iterable[str],
        run: int | None,
    ) -> Notice:
        made = str.__new__(cls, sentence.encode(errors="backslashreplace").decode())  # no half surrogate pairs
        made.code, made.field, made.severity, made.values = code, field, severity, values
        made.remedies, made.run = tuple(dict.fromkeys(map(str, remedies))), run
        return made

    @classmethod
    def of(cls, sentence: str, about: Mapping[str, Any] | None = None) -> Notice:
        """Return the notice of a sentence. about: what a file states of it, by the names of NoticeRecord."""
        if isinstance(sentence, Notice):
            return sentence
        about = about or {}
        match = _FIELD.fullmatch(sentence)
        return cls._made(
            sentence,
            str(about.get("code") or REMARK),
            str(about.get("field") or (match[1] if match else "")),
            about["severity"] if about.get("severity") in SEVERITIES else "caution",
            values if isinstance(values := about.get("values"), dict) else {},
            remedies if isinstance(remedies := about.get("remedies"), list) else _FLAG.findall(sentence),
            run if isinstance(run := about.get("run"), int) else None,
        )

    @property
    def text(self) -> str:
        """Return the sentence without the field."""
        return self.removeprefix(f"{self.field}: ")

    def within(self, where: str) -> Notice:
        """Return the notice of a part, which the sentence names: "training 2"."""
        return self._saying(f"{where}: {self.text}", self.run)

    @property
    def of_every_run(self) -> Notice:
        """Return the notice without the number of its run."""
        return self._saying(self.text.removeprefix(f"run {self.run}: "), None)

    def _saying(self, text: str, run: int | None) -> Notice:
        sentence = f"{self.field}: {text}".removeprefix(": ")
        return self._made(sentence, self.code, self.field, self.severity, self.values, self.remedies, run)

    @property
    def is_derived(self) -> bool:
        """Return True if the notice is made anew each time that the figures are computed."""
        return self.code in notice_kinds() and notice_kinds()[self.code].derived

    def together(self, others: Iterable[Notice], sides: int) -> str:
        """Return the sentence for notices of this code about several sides."""
        shares = sorted(abs(one.values["off"]) for one in (self, *others))
        values = {"sides": sides, "low": quantities.percent(shares[0]), "high": quantities.percent(shares[-1])}
        return _Formatter().vformat(notice_kinds()[self.code].many or "", (), values)

    def for_programs(self) -> NoticeRecord:
        """Return what the notice says for programs."""
        return NoticeRecord(
            code=self.code,
            field=self.field,
            severity=self.severity,
            values={name: _plain(value) for name, value in self.values.items()},
            remedies=self.remedies,
            run=self.run,
        )

    def __reduce__(self) -> tuple[Callable[..., Notice], tuple[Any, ...]]:
        """Return how a copy is made, for another process."""
        return Notice._made, (
            str(self), self.code, self.field, self.severity, dict(self.values), self.remedies, self.run,
        )  # fmt: skip


@cache
def notice_kinds() -> Mapping[str, NoticeKind]:
    """Return the table of notices, by code."""
    found = {}
    for code, row in data_rows.read_data("notices").items():
        (severity,) = (name for name in SEVERITIES if name in row)
        found[code] = NoticeKind(
            severity=severity, text=row[severity], many=row.get("many"), flags=tuple(row.get("flags", ())),
            derived=row.get("derived", False),
        )  # fmt: skip
    return found


def _sentences(value: Any, check: ValidatorFunctionWrapHandler) -> tuple[Notice, ...]:
    """Return the notices of a list of sentences."""
    check(value)
    return tuple(map(Notice.of, value))


Sentences = Annotated[tuple[str, ...], WrapValidator(_sentences)]
"""Notices, which a file contains as sentences."""


def with_codes(document: Any) -> Any:
    """Return a document from JSON with the codes of its `notices` joined to its `warnings`, which have one order."""
    if not isinstance(document, dict) or not isinstance(codes := document.get("notices"), list):
        return document
    sentences = document.get("warnings")
    if not isinstance(sentences, (list, tuple)) or len(sentences) != len(codes):
        return document
    told = [
        Notice.of(sentence, about) if isinstance(sentence, str) and isinstance(about, dict) else sentence
        for sentence, about in zip(sentences, codes, strict=True)
    ]
    return {**document, "warnings": told}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return quantities.stored(value)
    return value if isinstance(value, (int, str, bool, type(None))) else str(value)


_FORMS: Mapping[str, Callable[[Any], str]] = {
    name: getattr(quantities, name)
    for name in (
        "as_stated", "count", "digits_of", "gigabytes", "gigahertz", "joules", "listed", "percent", "precise",
        "seconds", "short_seconds", "significant", "stated_seconds", "stated_watts", "watts",
    )
}  # fmt: skip


class _Formatter(string.Formatter):
    """Formats values by the functions of core/quantities: {off:percent}, {rows:counted row}."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value as text."""
        name, _, argument = format_spec.partition(" ")
        if name == "counted":
            return quantities.counted(value, argument)
        return _FORMS[name](value) if name else str(value)
