"""Notices above and below the figures; above are those that can change what the headline means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorprimat.analysis.records import Comparison
from tensorprimat.core.notices import REMARK, SEVERITIES, Notice, Severity, notice_kinds
from tensorprimat.core.result import Result
from tensorprimat.reports import formatting

_MOST_LINES = 200  # of a report
ABOVE = ("audit", "clock")
"""Fields of the notices above the headline: the log's clock contradicts it, or GPUs were below their normal state."""


@dataclass(frozen=True, kw_only=True)
class NoticeLine:
    """One line of a report."""

    text: str
    severity: Severity


def comparison_warnings(comparison: Comparison) -> tuple[str, ...]:
    """Return the sentence of every notice once, with its sides in front; errors first: they contradict the headline."""
    about: dict[Notice, list[str]] = {}
    for label, notice in _of_sides(comparison):
        about.setdefault(notice, []).append(label)
    count = len(comparison.sides)
    errors_first = sorted(about, key=lambda notice: notice.severity != "error")
    of_sides = [f"{_all_of(about[notice], count)}: {notice}" for notice in errors_first]
    errors = sum(notice.severity == "error" for notice in errors_first)
    return tuple(dict.fromkeys((*of_sides[:errors], *comparison.warnings, *of_sides[errors:])))


def _of_sides(comparison: Comparison) -> Iterable[tuple[str, Notice]]:
    several = len({side.result.model.name for side in comparison.sides}) > 1
    for side in comparison.sides:
        title = f" ({formatting.model_title(side.result.model)})" if several else ""
        yield from ((f"{side.label}{title}", notice) for notice in _of_result(side.result))


def _of_result(result: Result) -> Iterable[Notice]:
    """Return the notices of a result; one that every run has alike is there once, without the number of a run."""
    of_runs = Counter(notice.of_every_run for notice in result.remarks if notice.run is not None)
    in_every_run = {notice for notice, runs in of_runs.items() if runs == len(result.runs)}
    return dict.fromkeys(
        notice if (alike := notice.of_every_run) not in in_every_run else alike for notice in result.remarks
    )


def grouped_notices(comparison: Comparison) -> tuple[NoticeLine, ...]:
    """Return the notices that are not above the headline: one line for each field and its sides, the most severe first.

    Notices of one code are one sentence, whatever sides and runs they are about. After _MOST_LINES lines a last one
    counts the rest.
    """
    lines = [NoticeLine(text=text, severity="caution") for text in comparison.warnings if not _is_above(text)]
    together: dict[tuple[str, str], list[NoticeLine]] = {}
    for group in _groups(pair for pair in _of_sides(comparison) if pair[1].field not in ABOVE):
        labels, notice = list(dict.fromkeys(label for label, _ in group)), group[0][1]
        whose = _all_of(labels, len(comparison.sides))
        text = _sentence([one for _, one in group], labels)
        if notice.field:
            together.setdefault((whose, notice.field), []).append(NoticeLine(text=text, severity=notice.severity))
        else:
            lines.append(NoticeLine(text=f"{whose}: {notice}", severity=notice.severity))
    for (whose, field), parts in together.items():
        severity = max((part.severity for part in parts), key=SEVERITIES.index)
        text = f"{whose}: {_titled(field)}: {'; '.join(part.text for part in parts)}"
        lines.append(NoticeLine(text=text, severity=severity))
    lines.sort(key=lambda line: -SEVERITIES.index(line.severity))
    if (others := len(lines) - _MOST_LINES) <= 0:
        return tuple(lines)
    return (*lines[:_MOST_LINES], NoticeLine(text=f"… and {others} more; --json lists all", severity="info"))


def _groups(found: Iterable[tuple[str, Notice]]) -> list[list[tuple[str, Notice]]]:
    """Return (side, notice) in groups of one code and field, in the order of the first.

    Sides with other values are groups of their own, unless the table has a sentence for all of them together.
    """
    groups: dict[tuple[str, str], dict[str, list[Notice]]] = {}
    for label, notice in found:
        key = (notice.field, notice if notice.code == REMARK else notice.code)
        groups.setdefault(key, {}).setdefault(label, []).append(notice)
    parts: list[list[tuple[str, Notice]]] = []
    for (_, code), by_side in groups.items():
        kind = notice_kinds().get(code)
        alike: dict[tuple[Notice, ...], list[tuple[str, Notice]]] = {}
        for label, of_side in by_side.items():
            key_of_side = () if kind is not None and kind.many else tuple(dict.fromkeys(of_side))
            alike.setdefault(key_of_side, []).extend((label, one) for one in of_side)
        parts += alike.values()
    return parts


def _sentence(group: Sequence[Notice], labels: Sequence[str] = ()) -> str:
    """Return one sentence for notices of one code: the first, and how many others differ from it in their values."""
    first, *others = dict.fromkeys(group)
    kind = notice_kinds().get(first.code)
    if others and len(labels) > 1 and kind is not None and kind.many:
        return first.together(group, len(labels))
    return first.text + (f" ({len(others)} more like this)" if others else "")


def first_of_each_kind(found: Iterable[Notice]) -> list[str]:
    """Return the first sentence of each code and field, with the number of others."""
    groups = _groups(("", notice) for notice in found)
    return [f"{group[0][1].field}: ".removeprefix(": ") + _sentence([one for _, one in group]) for group in groups]


_SUBJECTS = {"memory_metrics": "memory", "gpu_info": "GPU", "training_config": "settings"}


def _titled(field: str) -> str:
    """Return the field of a notice in words: the key of a figure by its title."""
    return _SUBJECTS.get(field) or formatting.METRIC_TITLES.get(field) or field.replace("_", " ")


def before_headline(comparison: Comparison) -> tuple[str, ...]:
    """Return the notices above all figures: contradicted by the log's own clock, GPUs below their normal state."""
    about: dict[str, list[str]] = {}
    for label, notice in sorted(_of_sides(comparison), key=lambda pair: -SEVERITIES.index(pair[1].severity)):
        if notice.field in ABOVE:
            about.setdefault(notice.text, []).append(label)
    of_sides = (f"{_all_of(labels, len(comparison.sides))}: {text}" for text, labels in about.items())
    return (*(Notice.of(text).text for text in comparison.warnings if _is_above(text)), *of_sides)


def _is_above(text: str) -> bool:
    return isinstance(text, Notice) and text.field in ABOVE


def _all_of(labels: Sequence[str], count: int) -> str:
    if len(labels) < count or count == 1:
        return ", ".join(labels)
    return "both sides" if count == 2 else f"all {count} sides"
