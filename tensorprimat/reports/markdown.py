"""The reports comparison_report.md and enhanced_report.md: documents for a repository, an issue or a mail."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorprimat.analysis.records import Comparison, Pair
from tensorprimat.core import quantities
from tensorprimat.core.version import __version__
from tensorprimat.reports import efficiency, facts, forest, formatting, money, notices, sections
from tensorprimat.reports.sections import COMPARISON, Report, Section
from tensorprimat.reports.tables import Table
from tensorprimat.system.safe_text import LONGEST_NOTE
from tensorprimat.system.safe_text import markdown as safe


def table(content: Table) -> str:
    """Return a table in GitHub's dialect; a table without rows says so."""
    if not content.rows:
        return "Nothing to show."
    head = " | ".join(safe(column.title) or " " for column in content.columns)
    rule = " | ".join("---:" if column.numeric else ":---" for column in content.columns)
    rows = (" | ".join(safe(cell.text) for cell in row) for row in content.rows)
    parts = ["\n".join(f"| {line} |" for line in (head, rule, *rows))]
    parts += [safe(content.note, longest=LONGEST_NOTE)] if content.note else []
    parts += [bullets(content.remarks)] if content.remarks else []
    return "\n\n".join(parts)


def bullets(sentences: Sequence[str]) -> str:
    """Return a list, one sentence per point."""
    return "\n".join(f"- {safe(sentence)}" for sentence in sentences)


_MARKS = {"info": "", "caution": "", "error": "**"}
_PICTURES = {
    "comparison_plot.png": "Ratios, step time, throughput, memory and step times over steps, as far as they are known",
    "comparison_loss.png": "Training loss over steps",
    "enhanced_plot.png": "MFU, energy, memory, cost and time to train, as bars, as far as they are known",
}
"""File name → description of the picture, for those who cannot see it."""


def render(comparison: Comparison, report: Report = COMPARISON, *, pictures: Sequence[str] = ()) -> str:
    """Return the whole document. pictures: names in _PICTURES of the picture files in the same folder."""
    parts = [
        f"# {report.title}",
        f"{safe(quantities.moment(comparison.generated_at))} · TensorPrimat {__version__} · "
        f"{safe(formatting.sides_by(comparison))}",
        "## Executive summary",
        *(f"**Error: {safe(error)}**" for error in comparison.errors),
        *(f"**Warning:** {safe(text)}" for text in notices.before_headline(comparison)),
        *_headlines(forest.answers(comparison)),
    ]
    for scale in forest.forests(comparison):
        parts += [f"{safe(scale.title)}:", table(forest.ratios_table(scale))]
    if len(comparison.pairs) == 1:
        parts += _level(comparison.pairs[0])
    parts += [f"![{_PICTURES[name]}]({name})" for name in pictures]
    several = len(comparison.pairs) > 1
    said = forest.said(comparison)
    for part in comparison.by_model():
        parts += _summary(part, said, several_pairs=several)
    parts += ["### All verdicts", table(sections.verdicts(comparison.pairs))] if several else []
    parts += [safe(efficiency.convention_sentence(comparison))] if report.of_metrics else []
    for section in report.sections:
        parts += _per_model(comparison, section)
    if comparison.pairs:
        parts.append("## Fairness")
        for pair in comparison.pairs:
            parts += _fairness(pair, several_pairs=several)
    marked = ((line, _MARKS[line.severity]) for line in notices.grouped_notices(comparison))
    parts += ["## Warnings", "\n".join(f"- {mark}{safe(line.text)}{mark}" for line, mark in marked) or "None."]
    parts += _inputs(comparison) if report.of_metrics else []
    parts += _per_model(comparison, facts.provenance)
    return "\n\n".join(parts) + "\n"


def _summary(of_model: Comparison, said: set[str], *, several_pairs: bool) -> list[str]:
    parts = [f"### {safe(sections.model_heading(of_model.sides))}"]
    for pair in of_model.pairs:
        if several_pairs:
            parts += [*_headlines([formatting.headline(pair)], said), *_level(pair)]
        if alone := sections.own_device_sentence(pair):
            parts.append(f"{safe(alone)}.")
        if pair.losses is not None:
            parts.append(safe(pair.losses.sentence))
        parts += [safe(sentence) for sentence in money.sentences(pair)]
        if advice := formatting.advice(pair):
            parts.append(f"{safe(advice)}.")
    if not of_model.pairs:
        parts.append(sections.no_pair_sentence(of_model.sides))
    return [*parts, table(sections.results(of_model.sides))]


def _headlines(headlines: Sequence[formatting.Headline], said: Collection[str] = ()) -> list[str]:
    """Return the findings, and below them one paragraph of their limits, without those that the page has said."""
    limits = formatting.limits_of(headlines, said)
    return [*(f"**{safe(one.sentence)}.**" for one in headlines), *([safe(limits)] if limits else [])]


def _level(pair: Pair) -> list[str]:
    return [f"*Level: {safe(pair.fairness.title)}.* {safe(pair.fairness.sentence, longest=LONGEST_NOTE)}"]


def _per_model(comparison: Comparison, section: Section) -> list[str]:
    """Return a section: its title, and one table per model, under the model's name where there are several; nothing for
    a section without rows.
    """
    parts: list[str] = []
    for part in comparison.by_model():
        content = section(part)
        if not content.rows:
            continue
        parts += [f"## {content.title}"] if not parts else []
        if len(comparison.models) > 1:
            parts.append(f"**{safe(sections.model_heading(part.sides))}**")
        parts.append(table(content))
    return parts


def _inputs(comparison: Comparison) -> list[str]:
    """Return the formula and the inputs of every metric of every side."""
    parts = ["## Where the figures come from"]
    for side in comparison.sides:
        parts.append(f"### {safe(sections.model_heading([side]))}: {safe(side.label)}")
        parts += map(table, efficiency.explanation(side))
    return parts


def _fairness(pair: Pair, *, several_pairs: bool) -> list[str]:
    content = sections.fairness(pair)
    names = f", {pair.baseline.label} and {pair.candidate.label}" if several_pairs else ""
    title = formatting.model_title(pair.candidate.result.model)
    return [f"**{safe(title + names)}**", table(content) if content.rows else "No setting differs."]
