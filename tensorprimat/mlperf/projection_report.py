"""A projection and its validation as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorprimat.core.quantities import confidence_level, count, counted, fixed, rate, rounded
from tensorprimat.mlperf.library import derived_from
from tensorprimat.mlperf.projection import (
    PROJECTION_CONFIDENCE,
    LeftOut,
    Projection,
    ScalingGroup,
    Validation,
    verdict,
)
from tensorprimat.mlperf.report import text_table
from tensorprimat.mlperf.score import Repeat
from tensorprimat.system.safe_text import one_line

_COLUMNS = ("from", "GPUs", "measured", "predicted", "interval", "missed")
_TITLES = (
    "from", "GPUs", "measured samples/s", "predicted samples/s", f"{confidence_level(PROJECTION_CONFIDENCE)} interval",
    "missed",
)  # fmt: skip


def projection_document(found: Projection) -> dict[str, Any]:
    return {
        "benchmark": found.benchmark, "gpu": found.gpu, "measured_gpus": found.measured_gpus, "gpus": found.gpus,
        "measured": found.measured, "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu, "low": found.low,
        "high": found.high, "confidence": PROJECTION_CONFIDENCE, "exponent": found.exponent.mean,
        "left_out_points": len(found.validation.points), "coverage": found.validation.coverage,
        "median_error": found.validation.median_error, "sentence": projection_sentence(found),
    }  # fmt: skip


def projection_sentence(found: Projection) -> str:
    """Return the projection with its basis."""
    expected = f"{count(found.tokens_per_second_per_gpu)} tokens/s/GPU on {counted(found.gpus, 'GPU')}"
    interval = f"{confidence_level(PROJECTION_CONFIDENCE)} interval {count(found.low)} to {count(found.high)}"
    measured = f"{count(found.measured)} on {counted(found.measured_gpus, 'GPU')}"
    task = f", although its own task is another one ({one_line(found.other_task)})," if found.other_task else ""
    exponent = found.exponent
    law = f"samples/s grow as GPUs^{fixed(exponent.mean, 3)} ± {fixed(exponent.half_width, 3)}"
    return (
        f"{one_line(found.gpu)}: {expected} ({interval}), projected from the measured {measured}. "
        f"This assumes that the result scales as {exponent.groups} submissions of {found.benchmark} did ({law}){task} "
        "and that its global batch and network are like theirs; the scatter of the result itself is not included. "
        f"Check of the projection: {verdict(found.validation)}."
    )


def derivation_notice(found: Sequence[ScalingGroup]) -> str | None:
    """Return the notice that MLPerf requires for the rates of its submissions, or None without a submission."""
    return derived_from(group.round for group in found) if found else None


def notes(repeats: Sequence[Repeat], derived: str | None) -> str:
    """Return a line for each entry that is left out because another one has its runs, and the notice of MLPerf."""
    lines = [f"note: {one_line(one.sentence)}" for one in repeats]
    lines += [f"Rates of submissions: {derived}."] if derived else []
    return "".join(f"\n{line}" for line in lines)


def validation_document(benchmark: str, found: Validation) -> dict[str, Any]:
    """Return the JSON object of the left-out points of a benchmark."""
    return {
        "benchmark": benchmark, "shown_to_work": found.works, "left_out_points": len(found.points),
        "coverage": rounded(found.coverage), "median_error": rounded(found.median_error),
        "points": [dict(zip(_COLUMNS, _row(point), strict=True)) for point in found.points],
    }  # fmt: skip


def validation_text(benchmark: str, found: Validation) -> str:
    """Return the left-out points of a benchmark as a table, and the conclusion from them."""
    rows = text_table(_TITLES, [_row(point) for point in found.points]) if found.points else ""
    shown = "reliable" if found.works else "not reliable"
    return f"{rows}{one_line(benchmark)}: projection is {shown}: {verdict(found)}."


def _row(point: LeftOut) -> tuple[str, ...]:
    return (
        point.fewer.entry.name,
        f"{point.fewer.entry.num_gpus} → {point.more.entry.num_gpus}",
        rate(point.more.samples_per_second),
        rate(point.predicted),
        f"{rate(point.low)} to {rate(point.high)}",
        "" if point.covered else "missed",
    )
