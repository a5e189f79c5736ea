"""The first picture of every report: the ratios of all sides on one scale, best first, each in the colour of its level.

Terminal, Markdown, HTML and plot draw the same marks. A scale shows the figure that the sentence above it names: for
runs to one quality target the time, where less is better, otherwise the rate, where more is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tensorprimat.analysis.levels import LEVELS, Level
from tensorprimat.analysis.rates import TIME_TO_TRAIN
from tensorprimat.analysis.records import Comparison, Pair, Ratio
from tensorprimat.core import quantities
from tensorprimat.reports import formatting
from tensorprimat.reports.formatting import Headline
from tensorprimat.reports.tables import Table, TableCell, TableRow, table_of
from tensorprimat.system.safe_text import middle_cut

_LARGEST = 1e6  # a ratio beyond it is nonsense that would flatten every other
LONGEST_BASE = 40  # characters of the baseline in a title
ROOM = 0.12  # of the span, left free at both ends of a scale
LEAST_ROOM = 0.01  # a ratio of 1.0001 must not look like a difference


@dataclass(frozen=True, kw_only=True)
class ForestMark:
    """One row of a scale: a ratio to the baseline with its interval, or the baseline itself."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    text: str
    """The ratio as people read it."""
    ends: str
    """Its interval as text, or the reason why there is none."""
    verdict: str
    """The verdict in a few words."""
    level: Level | None = None
    """None for the baseline and for a mean over models."""
    is_mean: bool = False


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Marks that share one scale."""

    title: str
    marks: tuple[ForestMark, ...]
    """Best first."""
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return the position of a ratio between start (0) and end (1)."""
        return min(1.0, max(0.0, (value - self.start) / (self.end - self.start)))


def forests(comparison: Comparison) -> tuple[Forest, ...]:
    """Return one scale for each rate whose ratios are shown; usually there is only one."""
    of_metric: dict[str, list[Pair]] = {}
    for pair in comparison.pairs:
        if (ratio := _ratio_of(pair)) is not None:
            of_metric.setdefault(ratio.metric, []).append(pair)
    return tuple(_forest(comparison, metric, pairs) for metric, pairs in of_metric.items())


def _ratio_of(pair: Pair) -> Ratio | None:
    """Return the ratio that a pair may show."""
    ratio = pair.ratio
    if ratio is None or not pair.fairness.level.comparable or pair.fairness.errors:
        return None
    value = ratio.estimate.value
    return ratio if value is not None and math.isfinite(value) and 1 / _LARGEST < value < _LARGEST else None


def _forest(comparison: Comparison, metric: str, pairs: Sequence[Pair]) -> Forest:
    less = metric == TIME_TO_TRAIN
    marks = [_mark(label, pair.ratio, pair) for pair, label in zip(pairs, _labels(pairs), strict=True) if pair.ratio]
    bases = list(dict.fromkeys(pair.baseline.label for pair in pairs))
    mean = comparison.mean_ratio
    if len(bases) == 1 and len({pair.model for pair in pairs}) == 1:
        marks.append(ForestMark(label=bases[0], value=1.0, text="1x", ends="baseline", verdict="baseline"))
    marks.sort(key=lambda mark: mark.value if less else -mark.value)
    if mean is not None and mean.metric == metric and mean.estimate.value is not None:
        marks.append(_mark(f"mean of {len(pairs)} models", mean, None))
    of = "time to the quality target" if less else formatting.METRIC_TITLES.get(metric, metric)
    base = bases[0] if len(bases) == 1 else "the baseline"
    title = f"Multiple of the {of} of {middle_cut(base, LONGEST_BASE)} ({'lower' if less else 'higher'} is better)"
    start, end = _range(marks)
    return Forest(title=title, marks=tuple(marks), start=start, end=end)


def _labels(pairs: Sequence[Pair]) -> list[str]:
    """Return a label for each pair by what differs: candidate, model or both, and the baseline if there are several."""
    candidates = {pair.candidate.label for pair in pairs}
    models, bases = {pair.model for pair in pairs}, {pair.baseline.label for pair in pairs}

    def label(pair: Pair) -> str:
        title = formatting.model_title(pair.candidate.result.model)
        parts = [pair.candidate.label] if len(candidates) > 1 or len(models) == 1 else []
        parts += [title] if len(models) > 1 else []
        over = f" over {pair.baseline.label}" if len(bases) > 1 else ""
        return " · ".join(parts) + over

    return [label(pair) for pair in pairs]


def _mark(label: str, ratio: Ratio, pair: Pair | None) -> ForestMark:
    estimate, form = ratio.estimate, formatting.ratio_form(ratio)
    value, low, high = estimate.value or math.nan, estimate.low, estimate.high
    if ratio.metric == TIME_TO_TRAIN:  # draw the ratio of times; `ratio` is that of speeds
        value, low, high = 1 / value, 1 / high if high else None, 1 / low if low else None
        form = partial(quantities.times, digits=3)
    known = low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    return ForestMark(
        label=label,
        value=value,
        low=low if known else None,
        high=high if known else None,
        text=form(value),
        ends=f"{form(low)} to {form(high)}" if known else "no interval",
        verdict=formatting.verdict_text(pair) if pair is not None else formatting.VERDICT_TITLES[ratio.verdict],
        level=LEVELS[pair.fairness.verdict] if pair is not None else None,
        is_mean=pair is None,
    )


def _range(marks: Iterable[ForestMark]) -> tuple[float, float]:
    """Return both ends of a scale. It contains 1 and all ratios; long intervals are cut so that ratios stay apart."""
    shown = list(marks)
    values = [1.0, *(mark.value for mark in shown)]
    span = max(values) - min(values) or 0.05
    least, most = min(values), max(values)
    for mark in shown:
        if mark.low is not None and mark.high is not None:
            least = min(least, max(mark.low, min(values) - span))
            most = max(most, min(mark.high, max(values) + span))
    room = max(ROOM * (most - least), LEAST_ROOM)
    return least - room, most + room


def ratios_table(forest: Forest) -> Table:
    """Return the marks as a ranked table, for documents without pictures."""
    levels = {mark.level for mark in forest.marks if mark.level is not None}
    rows: list[TableRow] = [
        {
            "Side": mark.label,
            "Ratio": TableCell(text=mark.text, value=mark.value),
            "Interval": mark.ends,
            "Verdict": mark.verdict,
            **({"Level": mark.level.title if mark.level else ""} if len(levels) > 1 else {}),
        }
        for mark in forest.marks
    ]
    return table_of("ranking", forest.title, rows, words=("Side", "Verdict", "Level"))


def answers(comparison: Comparison) -> list[Headline]:
    """Return the headlines that answer the comparison: one on the mean over models, else one for each model."""
    if (mean := formatting.mean_headline(comparison)) is not None:
        return [mean]
    found = []
    for pairs in (part.pairs for part in comparison.by_model if part.pairs):
        title = formatting.model_title(pairs[0].candidate.result.model) if len(comparison.models) > 1 else ""
        headline = formatting.headline(pairs[0]) if len(pairs) == 1 else _of_several(pairs)
        found.append(replace(headline, model=title))
    return found


def _of_several(pairs: Sequence[Pair]) -> Headline:
    """Return the headline of the best of several candidates by the measured ratios; no test confirms their order."""
    known = [(ratio.estimate.value, pair) for pair in pairs if (ratio := _ratio_of(pair)) and ratio.estimate.value]
    if not known:
        return Headline(
            finding=f"None of {len(pairs)} sides can be compared with {pairs[0].baseline.label}", pairs=tuple(pairs)
        )
    value, best = max(known, key=lambda item: item[0])
    headline, baselines = formatting.headline(best), {pair.baseline.label for _, pair in known}
    sides, without = len(known) + len(baselines), len(pairs) - len(known)
    rank = f"best of {sides} sides by the measured ratios"
    if len(baselines) > 1:  # ratios to unlike sides do not rank their candidates
        rank = f"largest of {len(known)} ratios, each to its own baseline"
    elif value <= 1:
        rank += f" is the baseline, {best.baseline.label}; next is {best.candidate.label}"
    first = (rank,) if len(known) > 1 else ()
    rest = (f"{quantities.counted(without, 'more side')} cannot be compared",) if without else ()
    return replace(headline, limits=(*first, *headline.limits, *rest))
