"""The documents comparison.json and enhanced_metrics.json, for scripts. Keys are stable: added to, never renamed.

Every figure of a side is in `figures` with what `--explain` prints: `formula`, `numbers` (the formula with its
numbers), `inputs` and `origin`; `origins` names the log lines, files and flags behind all of them.

For one pair, `verdict`, `headline`, `fairness` and `ratio` at the top are those of the pair. For several pairs,
`headline` and `fairness` are null, and `verdict` and `ratio` are those of the mean over models; without a mean, `ratio`
is null and `verdict` is the one that all pairs share, or null. `pairs` always has all pairs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from tensorprimat.analysis.economics import Return, weigh
from tensorprimat.analysis.explanations import origins
from tensorprimat.analysis.records import Comparison, Estimate, Fairness, Pair, PublishedComparison, Ratio, Side
from tensorprimat.core.figures import Figure, Input
from tensorprimat.core.quantities import rounded, rounded_each, rounded_interval
from tensorprimat.core.terms import unit_of
from tensorprimat.core.version import __version__
from tensorprimat.reports import efficiency, formatting, notices
from tensorprimat.reports.sections import COMPARISON, Report

_SCHEMA_VERSION = 1
_DIGITS = 6  # significant digits: more than any benchmark repeats; a narrow interval has more
_ALIASES = {"tokens_per_dollar": "tokens_per_dollar_hour"}
"""Key of enhanced_metrics.json → its old name, which scripts still read; both are tokens per USD."""


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the document as plain dicts, lists, strings and finite numbers."""
    pairs = [_pair(pair) for pair in comparison.pairs]
    only = pairs[0] if len(pairs) == 1 else None
    mean = _ratio(comparison.mean_ratio)
    shared = pairs[0]["verdict"] if len({pair["verdict"] for pair in pairs}) == 1 else None
    return {
        "kind": "comparison",
        "schema_version": _SCHEMA_VERSION,
        "tool_version": __version__,
        "generated_at": comparison.generated_at,
        "by": comparison.by,
        "models": list(comparison.models),
        "verdict": mean["verdict"] if mean and not only else shared,
        "headline": only["headline"] if only else None,
        "fairness": only["fairness"] if only else None,
        "ratio": only["ratio"] if only else mean,
        "sides": [_side(side) for side in comparison.sides],
        "pairs": pairs,
        "mean_ratio": mean,
        "published": [_published(row) for row in comparison.published],
        "published_left_out": dict(comparison.published_left_out),
        "errors": list(comparison.errors),
        "warnings": list(notices.comparison_warnings(comparison)),
    }


def metrics_document(comparison: Comparison) -> dict[str, Any]:
    """Return enhanced_metrics.json: flat values for scripts, and each metric with unit, formula, inputs or reason."""
    return {
        "kind": "enhanced_metrics",
        "schema_version": _SCHEMA_VERSION,
        "tool_version": __version__,
        "generated_at": comparison.generated_at,
        "flops_convention": comparison.choices.convention,
        "prices": dict(comparison.choices.prices),
        "budget_tokens": comparison.choices.budget_tokens,
        "results": [_metrics_of(side) for side in comparison.sides],
        "returns": [_return(pair.model, weigh(pair)) for pair in comparison.pairs],
        "warnings": list(notices.comparison_warnings(comparison)),
        "errors": list(comparison.errors),
    }


def render(comparison: Comparison, report: Report = COMPARISON) -> str:
    """Return the whole file; ASCII, so that no text from a log can steer a terminal."""
    content = metrics_document(comparison) if report.of_metrics else comparison_document(comparison)
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _pair(pair: Pair) -> dict[str, Any]:
    comparable = pair.fairness.verdict != "not_comparable"
    ratio = _ratio(pair.ratio) if comparable else None
    return {
        "model": pair.model,
        "baseline": pair.baseline.label,
        "candidate": pair.candidate.label,
        "verdict": "not_comparable" if not comparable else ratio["verdict"] if ratio else None,
        "headline": str(formatting.headline(pair)),
        "fairness": _fairness(pair.fairness),
        "ratio": ratio,
        "losses": None if pair.losses is None else rounded_each(asdict(pair.losses)),
    }


def _fairness(fairness: Fairness) -> dict[str, Any]:
    return {
        "verdict": fairness.verdict,
        "level": fairness.verdict,
        "title": fairness.title,
        "colour": fairness.level.colour,
        "conditions": list(fairness.conditions),
        "remedy": fairness.remedy,
        "errors": list(fairness.errors),
        "sentence": fairness.sentence,
        "differences": [asdict(difference) for difference in fairness.differences],
        "unknown": list(fairness.unknown),
    }


def _ratio(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {
        "metric": ratio.metric,
        **_estimate(ratio.estimate),
        "verdict": ratio.verdict,
        "task": None if ratio.task is None else rounded_each(asdict(ratio.task)),
        "assumption": ratio.assumption,
        "sensitivity": ratio.sensitivity,
        "scope": ratio.scope,
        "steps": ratio.steps,
    }


_NOT_OF_JSON = ("mean_of_runs", "family")  # the terms show the first, `rests_on` the second


def _estimate(estimate: Estimate) -> dict[str, Any]:
    names = [field.name for field in fields(estimate) if field.name not in _NOT_OF_JSON]
    ends = rounded_interval(estimate.value, estimate.low, estimate.high, _DIGITS)
    figures = dict(zip(("value", "low", "high"), ends, strict=True))
    return rounded_each({name: getattr(estimate, name) for name in names}) | figures


def _estimate_of(side: Side, estimate: Estimate, field: str) -> dict[str, Any]:
    """Return the estimate of a figure with its terms."""
    figure = side.figures.get("performance_metrics", {}).get(field)
    return {**_estimate(estimate), **rounded_each(_terms(figure))}


def _terms(figure: Figure | None) -> dict[str, Any]:
    """Return formula, the formula with its numbers, inputs and origin; a figure that steps do not support has only an
    origin.
    """
    inputs = figure.inputs if figure else ()
    return {
        "formula": figure and figure.own_formula,
        "numbers": figure and figure.put_in,
        "inputs": [{"name": i.name, "value": i.value, "unit": i.unit} for i in inputs],
        "origin": figure and figure.origin,
    }


def _figures(side: Side) -> dict[str, Any]:
    """Return every figure of the result with unit, terms and origin, by section and field of the result file."""
    figures = {
        section: {
            field: {"value": figure.value, "unit": unit_of(field), **_terms(figure)}
            for field, figure in of_section.items()
        }
        for section, of_section in side.figures.items()
    }
    return rounded_each(figures)


def _published(row: PublishedComparison) -> dict[str, Any]:
    return {
        **dict(row.published),
        "measured_here": [
            {"label": one.label, "fairness": one.fairness.verdict, "sentence": one.fairness.sentence,
             "differences": [asdict(difference) for difference in one.fairness.differences],
             "ratio": rounded(one.ratio)}
            for one in row.against
        ],
    }  # fmt: skip


def _side(side: Side) -> dict[str, Any]:
    result, metrics = side.result, side.metrics
    return {
        "label": side.label,
        "model": result.model.name,
        "preset": result.model.preset,
        "model_title": formatting.model_title(result.model),
        "platform": result.platform,
        "gpu_info": result.gpu_info.model_dump(mode="json"),
        "training_config": result.training_config.model_dump(mode="json"),
        "files": list(side.files),
        "timestamp": result.timestamp,
        "runs": len(result.runs),
        "measured_steps": result.performance_metrics.measured_steps,
        "basis": result.performance_metrics.basis,
        "step_time_seconds": _estimate_of(side, side.step_time_seconds, "avg_step_time_seconds"),
        "tokens_per_second": _estimate_of(side, side.tokens_per_second, "tokens_per_second"),
        "tokens_per_second_per_gpu": _estimate_of(side, side.tokens_per_second_per_gpu, "tokens_per_second_per_gpu"),
        "memory_metrics": None if result.memory_metrics is None else result.memory_metrics.model_dump(mode="json"),
        "efficiency": rounded_each(
            {name: {key: getattr(metrics[name], key) for key in _OF_A_METRIC} for name in efficiency.SHORT}
        ),
        "host_memory_peak_gb": result.host_memory_peak_gb,
        "figures": _figures(side),
        "origins": origins(result),
        "warnings": list(result.warnings),
    }


_OF_A_METRIC = ("value", "remark", "because")


def _metrics_of(side: Side) -> dict[str, Any]:
    result = side.result
    values = {name: metric.value for name, metric in side.metrics.items()}
    return {
        "model": side.model,
        "title": formatting.model_title(result.model),
        "preset": result.model.preset,
        "label": side.label,
        "platform": result.platform,
        "device_name": result.gpu_info.device_name,
        "num_gpus": result.training_config.num_gpus,
        "precision": result.training_config.precision,
        "files": list(side.files),
        **values,
        **{alias: values[name] for name, alias in _ALIASES.items()},
        "metrics": {name: _metric(metric) for name, metric in side.metrics.items()},
        "figures": _figures(side),
        "origins": origins(side.result),
    }


def _return(model: str, one: Return) -> dict[str, Any]:
    return {
        "model": model,
        "baseline": one.baseline,
        "candidate": one.candidate,
        "grounds": one.grounds,
        "break_even_price_usd_per_gpu_hour": one.break_even_price.value,
        "budget_saving_usd": one.saving.value,
        "metrics": {metric.name: _metric(metric) for metric in (one.break_even_price, one.saving)},
    }


def _metric(metric: Figure) -> dict[str, Any]:
    definition = metric.definition
    return {
        "value": metric.value,
        "unit": definition.unit,
        "reason": metric.because,
        "remark": metric.remark,
        "formula": metric.formula,
        "inputs": [_input(item) for item in metric.inputs],
    }


def _input(item: Input) -> dict[str, Any]:
    known = item.value is not None
    return {
        "name": item.name,
        "value": item.value,
        "unit": item.unit,
        "source": item.source if known else None,
        "reason": None if known else item.because,
    }
