"""The document enhanced_metrics.json: derived figures for scripts. Keys are stable: keys are added, never renamed."""

from __future__ import annotations

import json
from typing import Any

from tensorprimat.analysis.economics import Economics, Enhanced, Return
from tensorprimat.analysis.metric import Input, Metric
from tensorprimat.core.version import __version__
from tensorprimat.reports import formatting
from tensorprimat.reports.tables import csv_of

SCHEMA_VERSION = 1
ALIASES = {"tokens_per_dollar": "tokens_per_dollar_hour"}
"""Key → its old name, which scripts still read; both are tokens per USD."""


def document(content: Economics) -> dict[str, Any]:
    """Return enhanced_metrics.json: flat values for scripts, and each metric with unit, formula, inputs or reason."""
    return {
        "kind": "enhanced_metrics",
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "generated_at": content.generated_at,
        "flops_convention": content.assumptions.convention,
        "prices": dict(content.assumptions.prices),
        "budget_tokens": content.assumptions.budget_tokens,
        "results": [_side(model, side) for model, sides in content.models.items() for side in sides],
        "returns": [_return(model, one) for model, returns in content.returns.items() for one in returns],
        "warnings": list(content.warnings),
        "errors": list(content.errors),
    }


def render(content: Economics) -> str:
    """Return the whole file; ASCII, so that no text from a log can steer a terminal."""
    return json.dumps(document(content), indent=2, allow_nan=False) + "\n"


def render_csv(content: Economics) -> str:
    """Return one row per result with the flat values of the JSON document."""
    rows = [{**row, "files": "; ".join(row["files"])} for row in document(content)["results"]]
    columns = [key for key in rows[0] if key != "metrics"]
    return csv_of(columns, ([row[key] for key in columns] for row in rows))


def _side(model: str, side: Enhanced) -> dict[str, Any]:
    result = side.side.result
    values = {name: metric.value for name, metric in side.metrics.items()}
    return {
        "model": model,
        "title": formatting.model_title(result.model),
        "preset": result.model.preset,
        "label": side.side.label,
        "platform": result.platform,
        "device_name": result.gpu_info.device_name,
        "num_gpus": result.training_config.num_gpus,
        "precision": result.training_config.precision,
        "files": list(side.side.files),
        **values,
        **{alias: values[name] for name, alias in ALIASES.items()},
        "metrics": {name: _metric(metric) for name, metric in side.metrics.items()},
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


def _metric(metric: Metric) -> dict[str, Any]:
    definition = metric.definition
    return {
        "value": metric.value,
        "unit": definition.unit,
        "reason": metric.because,
        "remark": metric.remark,
        "formula": definition.formula,
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
