"""The table of published results next to those that were measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from tensorprimat.analysis.records import Against, Comparison, Fairness, PublishedComparison
from tensorprimat.core import quantities
from tensorprimat.reports.tables import Table, TableCell, figure_cell, headed, text_cell

MOST_DIFFERENCES = 5  # settings that a row names


OVER_PUBLISHED = " / published"
"""End of the headings of the columns of ratios."""


def published(comparison: Comparison) -> Table:
    """Return the published results for the sides' model; a table without rows where there are none."""
    return published_table(comparison.published, sum(comparison.published_left_out.values()))


def published_table(rows: Sequence[PublishedComparison], left_out: int = 0) -> Table:
    """Return the published results of one model, nearest first, and each measured side as a multiple of them."""
    labels = [against.label for against in rows[0].against] if rows else []
    ratios = [f"{label}{OVER_PUBLISHED}" for label in labels]
    figures = ("GPUs", "Precision", "Sequence", "Global batch", "tokens/s/GPU")
    titles = ("GPU", *figures, *ratios, "Level", "What differs", "Source")
    return Table(
        key="published",
        title="Published, not measured here",
        columns=headed(titles, words=("GPU", "Level", "What differs", "Source")),
        rows=tuple(_published_row(row) for row in rows),
        note="Published figures use the timing of their source and have no interval; the ratio is the measured figure "
        "over the published one. Comparable rows come first, then the same GPU, then the same number of GPUs."
        + _starred(rows)
        + _omitted(left_out),
    )


def _starred(rows: Sequence[PublishedComparison]) -> str:
    conditions = dict.fromkeys(one for row in rows for against in row.against for one in against.fairness.conditions)
    named = quantities.listed(conditions)
    return f" * only if both sides agree in {named}, which one side does not state." if conditions else ""


def _omitted(left_out: int) -> str:
    rows = "row is" if left_out == 1 else "rows are"
    return f" {left_out} more {rows} left out; tprimat mlperf list --published lists all." if left_out else ""


def _published_row(row: PublishedComparison) -> tuple[TableCell, ...]:
    one = row.published
    alike = [against for against in row.against if against.ratio is not None]
    return (
        text_cell(one.gpu),
        figure_cell(one.num_gpus, quantities.count),
        text_cell(one.precision.upper() if one.precision else None),
        figure_cell(one.sequence_length, quantities.count),
        figure_cell(one.global_batch_size, quantities.count),
        figure_cell(one.tokens_per_second_per_gpu, quantities.rate, f"{one.source}, {one.date or 'undated'}"),
        *(_against(against) for against in row.against),
        TableCell(
            text=_of_each(alike or row.against, lambda one: one.level.title + "*" * bool(one.conditions)),
            source=_of_each(row.against, attrgetter("sentence")),
        ),
        text_cell(_of_each(row.against, _what_differs)),
        text_cell(f"{one.source}, {one.date}" if one.date else one.source),
    )


def _of_each(sides: Sequence[Against], describe: Callable[[Fairness], str]) -> str:
    """Return one sentence if it is the same for all sides, else the sentence of each after its label."""
    several = {one.label: describe(one.fairness) for one in sides}
    if len(set(several.values())) == 1:
        return next(iter(several.values()))
    return "; ".join(f"{label}: {words}" for label, words in several.items())


def _what_differs(fairness: Fairness) -> str:
    if not fairness.level.comparable:
        return fairness.sentence.removeprefix("Not comparable: ")
    stated = [one for one in fairness.differences if None not in one.values and one.weight != "context"]
    names = [difference.label for difference in stated]
    more = f" and {len(names) - MOST_DIFFERENCES} more" if len(names) > MOST_DIFFERENCES else ""
    return (", ".join(names[:MOST_DIFFERENCES]) or "none of the settings that both state") + more


def _against(against: Against) -> TableCell:
    shown = quantities.times(against.ratio) if against.ratio is not None else "no ratio"
    return TableCell(text=shown, value=against.ratio, source=against.fairness.sentence)
