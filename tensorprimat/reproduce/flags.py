"""The options of `tprimat run` that train what a published result states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import MODELS
from tensorprimat.facts.catalogue import find_gpu
from tensorprimat.mlperf.result import row_of_entry
from tensorprimat.reproduce.published import named_baseline

_ENGINES = {"Megatron-Bridge": "bridge", "NeMo": "nemo", "Primus": "primus"}
"""Framework of a published table, without its version → the engine that runs it."""
_OWN = "torch"
_PER_NODE = {"GB200": 4, "GB300": 4}
_MOST_PER_NODE = 8


def options_of(name: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a published result by parameter, with its engine; those that the user typed are the user's.

    typed: the options that the user set. Raises UsageError for a result that no engine or model here can run, unless
    the user names another one.
    """
    baseline = named_baseline(name)
    row = baseline.row or (row_of_entry(baseline.entry) if baseline.entry else None)
    if row is None:
        raise UsageError(f"--reproduce {name}: its source states no configuration")
    framework = (row.framework or "").partition(" ")[0]
    engine = typed.get("engine") or _ENGINES.get(framework)
    if engine is None:
        raise UsageError(
            f"--reproduce {name}: no engine here runs {row.framework or 'its framework'}; "
            f"--engine {_OWN} runs its settings with the torch engine"
        )
    if row.model not in MODELS and "model" not in typed:
        raise UsageError(f"--reproduce {name}: {row.model} is not among {', '.join(MODELS)}; give --model CONFIG.json")
    found = {"engine": engine, "model": row.model}
    for one in settings.WITH_OPTION:
        value = getattr(row, one.name, None)
        if one.option is not None and value is not None and (engine == _OWN or not one.option.own_training):
            found[one.option.parameter] = value
    per_node = _PER_NODE.get(row.gpu or "", _MOST_PER_NODE)
    if typed.get("dry_run") and not typed.get("executor"):  # plans for the published GPUs, on whatever machine
        if row.gpu and find_gpu(row.gpu):
            found["gpu"] = row.gpu.replace(" ", "-")
    elif row.num_gpus > per_node:
        found |= {"nodes": row.num_gpus // per_node, "num_gpus": per_node}
    return found
