"""The records of a comparison that reports show: estimates with intervals, differences, fairness, ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from tensorprimat.analysis.levels import LEVELS, Level, LevelName
from tensorprimat.analysis.metrics import MetricChoices
from tensorprimat.core.figures import Figure
from tensorprimat.core.quantities import listed
from tensorprimat.core.result import Result
from tensorprimat.core.terms import Term
from tensorprimat.facts.catalogue import Published

Verdict = Literal["faster", "slower", "no_difference_shown", "too_few_runs", "unsettled", "not_comparable"]
LossVerdict = Literal["agree", "diverge", "undecided", "failed", "not_comparable"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval, or the reason why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    rests_on: str
    """Data of the interval: "5 runs", "one run of 87 rows (21 effective)" …"""
    no_interval_because: str | None = None
    runs_for_one_percent: int | None = None
    """Number of runs that would give an interval of about ± 1 %."""
    joint: float | None = None
    """Confidence with which all intervals of the report hold together, after the correction for several comparisons or
    looks; None if this interval is not corrected."""
    family: int = 1
    """Number of comparisons for which the interval is corrected together."""
    within_run: bool = False
    """The interval is of the steps of one run: it does not include run-to-run variation."""
    mean_of_runs: Term | None = None
    """Formula and inputs of a value that is a mean over runs; None for others."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One group of runs: everything that was measured for one label and one model."""

    label: str
    """Label on screen: "AMD Instinct MI300X" or, with --by, the engine, precision …"""
    model: str
    """The name under which sides are paired, one of `Comparison.models`."""
    result: Result
    """Pooled over its files."""
    files: tuple[str, ...]
    step_time_seconds: Estimate
    tokens_per_second: Estimate
    tokens_per_second_per_gpu: Estimate
    samples_per_second: Estimate
    metrics: Mapping[str, Figure]
    """Derived figures by their name in `core.figures.DERIVED_FIGURES`."""
    figures: Mapping[str, Mapping[str, Figure]]
    """Figures of `result` with their terms: section → field, as `core.explained` returns them."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One row of the fairness table."""

    field: str
    """Key in the result: "sequence_length", "precision" …"""
    label: str
    values: tuple[str | None, ...]
    """One per side, in the order of the sides; None where unknown."""
    weight: Literal["work", "configuration", "context"]
    """work: another problem was solved; configuration: the same problem, another way; context: decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Fairness:
    """The comparability of two sides: its level, and the sentence that states it."""

    verdict: LevelName
    """Name of a level in `analysis.levels`."""
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]
    """Labels of fields that one side states and the other does not."""
    sentence: str
    """The verdict in words, for the place above a headline."""
    conditions: tuple[str, ...] = ()
    """Settings that must match but are not stated by both sides; the headline names them with "if"."""
    metric: str | None = None
    """Name of the rate in which the sides can be compared; None if there is none."""
    same_work: bool = False
    """True if both did the same work step by step, whatever rates they measured; False also where a side does not state
    its global batch, sequence length or model."""
    remedy: str | None = None
    """The one thing that would make the sides comparable."""
    errors: tuple[str, ...] = ()
    """Sentences on impossible figures; a pair that has any is not comparable."""

    @property
    def level(self) -> Level:
        """Return the level with its title, colour and style."""
        return LEVELS[self.verdict]

    @property
    def title(self) -> str:
        """Return the level for a badge or a cell; the headline names the condition that it depends on."""
        return self.level.title + (" as far as stated" if self.conditions else "")


def the_settings(conditions: Sequence[str]) -> str:
    """Return the settings as a list with articles."""
    return listed(f"the {one}" for one in conditions)


def must_match(conditions: Sequence[str]) -> str:
    """Return the clause that settings match, for after "if".

    >>> must_match(["model shape"]), must_match(["model shape", "packing"])
    ('the model shape matches', 'the model shape and the packing match')
    """
    several = len(conditions) > 1 or conditions[0].endswith("s")
    return f"{the_settings(conditions)} {'match' if several else 'matches'}"


@dataclass(frozen=True, kw_only=True)
class TaskFactors:
    """Time to the same quality target, candidate over baseline, and its two factors: time = samples / rate."""

    time: float
    rate: float
    """Of samples/s between start and target, evaluation included."""
    samples: float


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The ratio candidate / baseline of a rate: above 1, the candidate does more per second."""

    metric: str
    """Name of the rate, such as tokens_per_second_per_gpu, or time_to_train: then the rate is 1 / time to train."""
    estimate: Estimate
    verdict: Verdict
    task: TaskFactors | None = None
    """Factors of a ratio of times to train; None for other ratios, or if a side does not count samples."""
    assumption: str | None = None
    """The assumption of a verdict, printed with it: "assumed: single runs vary by 2 %"."""
    sensitivity: str | None = None
    """Consequence if the assumption is wrong by a factor of two."""
    scope: str | None = None
    """Remark that other machines may differ, or by how much machines are assumed to vary; None unless a side was
    measured on one machine only."""
    steps: str | None = None
    """The steps of both sides that it is of: "steps 2 to 35 of both sides"; None for all that were measured."""
    unsettled_by: Literal["drift", "phases"] = "drift"
    """Reason of the verdict "unsettled": step time drifts, or the sides were measured in different phases."""


@dataclass(frozen=True, kw_only=True)
class LossParity:
    """The verdict on the losses of two sides that read the same data. Gaps are candidate − baseline, in loss units."""

    verdict: LossVerdict
    """agree: every gap is within the tolerance, beyond doubt; diverge: one is not, beyond doubt; undecided: the noise
    allows both; failed: a side does not learn (nan, flat); not_comparable: other data, or nothing to compare."""
    sentence: str
    """The verdict in words."""
    steps: int = 0
    """Common logged steps that were compared."""
    largest_gap: float | None = None
    """Largest gap between the sides' mean losses over a window of a few steps."""
    largest_gap_step: int | None = None
    noise: float | None = None
    """Half-width of the interval of such a gap."""
    first_divergence_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One candidate against the baseline, for one model."""

    model: str
    baseline: Side
    candidate: Side
    fairness: Fairness
    ratio: Ratio | None
    """None if a side has no rate. If the sides are not comparable, the ratio has no value, only that verdict."""
    losses: LossParity | None = None
    """None where a side logged no loss."""


@dataclass(frozen=True, kw_only=True)
class Against:
    """One side measured here against a published result."""

    label: str
    fairness: Fairness
    ratio: float | None
    """tokens/s/GPU measured here over published; None where the work was another or a rate is missing."""


@dataclass(frozen=True, kw_only=True)
class PublishedComparison:
    """A published result, not measured here, and every side of its model against it."""

    published: Published
    against: tuple[Against, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Everything that reports show."""

    by: str
    """Property that separates the sides: platform, engine, precision, preset or gpu; "argument" if each argument
    is a side."""
    models: tuple[str, ...]
    sides: tuple[Side, ...]
    """Every side of every model, in the order of the report; one side alone is a valid comparison without pairs."""
    pairs: tuple[Pair, ...]
    mean_ratio: Ratio | None
    """Geometric mean of the models' ratios; None unless at least two models have a comparable pair, and all these
    pairs have the same two sides and the same rate."""
    warnings: tuple[str, ...]
    generated_at: str
    errors: tuple[str, ...] = ()
    """Sentences on impossible figures, each with its device or side; they are shown above every headline."""
    published: tuple[PublishedComparison, ...] = ()
    """Published results for the same models, the most similar first, if the user requested them."""
    published_left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of less similar published results that are left out, per model."""
    choices: MetricChoices = field(default_factory=MetricChoices)
    """Convention, prices and token budget of the sides' metrics."""
    why: str | None = None
    """Picture (SVG) of what each class of work contributes to the difference, where two sides have a trace."""

    def of_model(self, model: str) -> Comparison:
        """Return the part about one model: its sides, its pairs and the published results for it."""
        return replace(
            self,
            models=(model,),
            sides=tuple(side for side in self.sides if side.model == model),
            pairs=tuple(pair for pair in self.pairs if pair.model == model),
            published=tuple(row for row in self.published if row.published.model == model),
            published_left_out={name: rows for name, rows in self.published_left_out.items() if name == model},
        )

    @cached_property
    def by_model(self) -> tuple[Comparison, ...]:
        """Return the part about each model."""
        return tuple(map(self.of_model, self.models))
