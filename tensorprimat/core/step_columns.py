"""Steps as columns of JSON: `raw_step_times` and `step_metrics` of a result file."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from tensorprimat.core.quantities import to_digits
from tensorprimat.core.steps import FLAG_COLUMNS, INTEGER_COLUMNS, INTERRUPTIONS, Steps

SERIES_DIGITS = 6  # significant digits of a raw series: a microsecond in a second


def with_steps(document: Any) -> Any:
    """Return a document from JSON with `steps` built from its raw_step_times and step_metrics."""
    if not isinstance(document, dict) or "steps" in document:
        return document
    times = document.get("raw_step_times") or []
    metrics = document.get("step_metrics") or {}
    columns: dict[str, np.ndarray] = {}
    logged_nan: dict[str, np.ndarray] = {}
    for name, values in {**metrics, **({"seconds": times} if times else {})}.items():
        if name == "interrupted_by":
            columns[name] = np.array([INTERRUPTIONS.index(value or "") for value in values], np.int8)
        elif name in INTEGER_COLUMNS:
            unseen = INTEGER_COLUMNS[name]
            columns[name] = np.array([unseen if value is None else value for value in values], np.int64)
        elif name in FLAG_COLUMNS:
            columns[name] = np.array([bool(value) for value in values], np.int8)
        else:
            mask = np.array([value == "nan" for value in values], np.bool_)
            columns[name] = np.array(
                [math.nan if value is None or value == "nan" else value for value in values], np.float64
            )
            if mask.any():
                logged_nan[name] = mask
    return {**document, "steps": Steps(columns, logged_nan=logged_nan)}


def column(steps: Steps, name: str) -> list[Any]:
    """Return one column as JSON: null where unseen, "nan" where nan was logged."""
    values = steps.column(name)
    if name == "interrupted_by":
        return [INTERRUPTIONS[int(value)] or None for value in values]
    if name in FLAG_COLUMNS:
        return [bool(value) for value in values]
    if name in INTEGER_COLUMNS:
        return [None if name == "line" and value < 0 else int(value) for value in values]
    printed_nan = steps.logged_nan(name)
    shorten = partial(round, ndigits=3) if name == "ended_at" else partial(to_digits, digits=SERIES_DIGITS)
    return [
        shorten(value) if math.isfinite(value) else "nan" if is_nan else None
        for value, is_nan in zip(values.tolist(), printed_nan.tolist(), strict=True)
    ]
