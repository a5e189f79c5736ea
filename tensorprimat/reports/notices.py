"""Warnings above and below the figures; above are those that can change what the headline means."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorprimat.analysis.records import Comparison
from tensorprimat.reports import formatting

_MOST_WARNINGS = 200  # of a report
_ABOVE = re.compile(r": (?:audit|clock): ")
"""Subjects of the warnings above the headline."""


def comparison_warnings(comparison: Comparison) -> tuple[str, ...]:
    """Return all warnings, each once, with its sides in front."""
    sides = comparison.sides
    several = len({side.result.model.name for side in sides}) > 1
    about: dict[str, list[str]] = {}
    for side in sides:
        title = f" ({formatting.model_title(side.result.model)})" if several else ""
        for warning in side.result.warnings:
            about.setdefault(warning, []).append(f"{side.label}{title}")
    of_sides = (f"{_all_of(labels, len(sides))}: {warning}" for warning, labels in about.items())
    unique = dict.fromkeys((*comparison.warnings, *of_sides))
    # Errors of the audit come first: they contradict the headline.
    return tuple(sorted(unique, key=lambda warning: "audit: " not in warning))


def grouped_warnings(comparison: Comparison) -> tuple[str, ...]:
    """Return one line per subject and side for the warnings that are not above the headline.

    The subject of a warning is the text before its first colon. The line of a subject contains all its sentences; of
    sentences that differ only in their numbers, it contains the first and a count. After _MOST_WARNINGS warnings a last
    line counts the rest.
    """
    every = [text for text in comparison_warnings(comparison) if not _ABOVE.search(text)]
    others = len(every) - _MOST_WARNINGS
    subjects: dict[tuple[str, str], list[str]] = {}
    for warning in every[:_MOST_WARNINGS]:
        whose, colon, message = warning.partition(": ")
        subject, of_field, rest = message.partition(": ")
        if colon and of_field and re.fullmatch(r"[a-z_/. -]{3,40}", subject):
            subjects.setdefault((whose, subject), []).append(rest)
        else:
            subjects.setdefault((warning, ""), [])
    lines = tuple(
        f"{whose}: {_titled(subject)}: {'; '.join(first_of_each_kind(sentences))}" if subject else whose
        for (whose, subject), sentences in subjects.items()
    )
    return lines if others <= 0 else (*lines, f"… and {others} more; --json lists all")


def first_of_each_kind(sentences: Sequence[str]) -> list[str]:
    """Return the first sentence of each kind, with the number of others that differ from it in numbers alone.

    >>> first_of_each_kind(["before run 1 load 5.4", "after run 1 load 7.3", "run 2 drifts"])
    ['before run 1 load 5.4 (1 more like this)', 'run 2 drifts']
    """
    kinds: dict[str, list[str]] = {}
    for sentence in dict.fromkeys(sentences):
        kind = re.sub(r"\d[\d.,]*", "#", sentence)
        kinds.setdefault(re.sub(r"^(\w+: )?after run", r"\1before run", kind), []).append(sentence)
    return [first + (f" ({len(others)} more like this)" if others else "") for first, *others in kinds.values()]


_SUBJECTS = {"memory_metrics": "memory", "gpu_info": "GPU", "training_config": "settings"}


def _titled(subject: str) -> str:
    """Return the subject of a warning in words: the key of a figure by its title."""
    return _SUBJECTS.get(subject) or formatting.METRIC_TITLES.get(subject) or subject.replace("_", " ")


def before_headline(comparison: Comparison) -> tuple[str, ...]:
    """Return the warnings above all figures: contradicted by the log's own clock, GPUs below their normal state."""
    return tuple(_ABOVE.sub(": ", text, count=1) for text in comparison_warnings(comparison) if _ABOVE.search(text))


def _all_of(labels: Sequence[str], count: int) -> str:
    if len(labels) < count or count == 1:
        return ", ".join(labels)
    return "both sides" if count == 2 else f"all {count} sides"
