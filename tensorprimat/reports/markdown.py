"""The reports comparison_report.md and enhanced_report.md: documents for a repository, an issue or a mail."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.analysis.records import Comparison, Pair
from tensorprimat.core import quantities
from tensorprimat.core.version import __version__
from tensorprimat.reports import forest, formatting
from tensorprimat.reports.page import ModelPart, PairPart, model_heading, no_pair_sentence, page_of
from tensorprimat.reports.sections import COMPARISON, Report
from tensorprimat.reports.tables import Table
from tensorprimat.system.safe_text import LONGEST_NOTE, markdown_cells
from tensorprimat.system.safe_text import markdown as safe


def table(content: Table) -> str:
    """Return a table in GitHub's dialect; a table without rows says so."""
    if not content.rows:
        return "Nothing to show."
    titles = [column.title for column in content.columns]
    head, *rows = markdown_cells([titles, *([cell.text for cell in row] for row in content.rows)])
    rule = ["---:" if column.numeric else ":---" for column in content.columns]
    parts = ["\n".join(f"| {' | '.join(line)} |" for line in ([title or " " for title in head], rule, *rows))]
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
    page = page_of(comparison, report)
    parts = [
        f"# {report.title}",
        f"{safe(quantities.moment(comparison.generated_at))} · TensorPrimat {__version__} · "
        f"{safe(formatting.sides_by(comparison))}",
        "## Executive summary",
        *(f"**Error: {safe(error)}**" for error in comparison.errors),
        *(f"**Warning:** {safe(text)}" for text in page.above),
        *_headlines(page.answers, page.limits),
    ]
    for scale in page.scales:
        parts += [f"{safe(scale.title)}:", table(forest.ratios_table(scale))]
    several = len(comparison.pairs) > 1
    parts += [] if several else [_level(pair) for pair in comparison.pairs]
    parts += [f"![{_PICTURES[name]}]({name})" for name in pictures]
    for model in page.models:
        parts += _summary(model, several_pairs=several)
    parts += ["### All verdicts", table(page.verdicts)] if several else []
    parts += [safe(page.convention)] if report.of_metrics else []
    for of_models in zip(*(model.tables for model in page.models), strict=True):
        parts += _section(page.models, of_models)
    if comparison.pairs:
        parts.append("## Fairness")
        for one in (one for model in page.models for one in model.pairs):
            parts += _fairness(one, several_pairs=several)
    marked = ((line, _MARKS[line.severity]) for line in page.notices)
    parts += ["## Warnings", "\n".join(f"- {mark}{safe(line.text)}{mark}" for line, mark in marked) or "None."]
    parts += ["## Where the figures come from"] if report.of_metrics else []
    for side, tables in (one for model in page.models for one in model.explanations):
        parts += [f"### {safe(model_heading([side]))}: {safe(side.label)}", *map(table, tables)]
    parts += _section(page.models, [model.provenance for model in page.models])
    return "\n\n".join(parts) + "\n"


def _summary(model: ModelPart, *, several_pairs: bool) -> list[str]:
    parts = [f"### {safe(model.heading)}"]
    for one in model.pairs:
        if several_pairs:
            parts += [*_headlines([one.headline], one.limits), _level(one.pair)]
        sentences = (
            one.own_devices and f"{one.own_devices}.",
            one.pair.losses and one.pair.losses.sentence,
            *one.money,
            one.advice and f"{one.advice}.",
        )
        parts += [safe(sentence) for sentence in sentences if sentence]
    if not model.pairs:
        parts.append(no_pair_sentence(model.part.sides))
    return [*parts, table(model.results)]


def _headlines(headlines: Sequence[formatting.Headline], limits: str) -> list[str]:
    """Return the findings, and below them one paragraph of their limits."""
    return [*(f"**{safe(one.sentence)}.**" for one in headlines), *([safe(limits)] if limits else [])]


def _level(pair: Pair) -> str:
    return f"*Level: {safe(pair.fairness.title)}.* {safe(pair.fairness.sentence, longest=LONGEST_NOTE)}"


def _section(models: Sequence[ModelPart], tables: Sequence[Table]) -> list[str]:
    """Return a section: its title, and one table per model, under the model's name where there are several; nothing for
    a section without rows.
    """
    filled = [(model, content) for model, content in zip(models, tables, strict=True) if content.rows]
    parts = [f"## {content.title}" for _, content in filled[:1]]
    for model, content in filled:
        parts += [f"**{safe(model.heading)}**"] if len(models) > 1 else []
        parts.append(table(content))
    return parts


def _fairness(one: PairPart, *, several_pairs: bool) -> list[str]:
    pair = one.pair
    names = f", {pair.baseline.label} and {pair.candidate.label}" if several_pairs else ""
    title = formatting.model_title(pair.candidate.result.model)
    return [f"**{safe(title + names)}**", table(one.fairness) if one.fairness.rows else "No setting differs."]
