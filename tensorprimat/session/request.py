"""Conversion of the options of `run` to a Request: the model or its file, the engine, settings and facts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.spec import MODELS, RunSettings
from tensorprimat.engines.cluster.executors import Cluster
from tensorprimat.engines.registry import OWN
from tensorprimat.session.budget import Budget
from tensorprimat.session.plan import Request, stated_facts

_TAKEN = ("runs", "append", "typed", "dry_run", "json", "profile")
"""Options that are copied into a request unchanged."""


def request_of(
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    cluster: Cluster,
    budget: Budget,
    file: Path | None,
) -> Request:
    """Return the request of a command line. Raises UsageError for options that contradict each other.

    options: values by parameter of the command. settings: values by field of RunSettings. cluster: --executor and its
    flags; without an executor, --gpu is a fact about a log. file: the file that --output names; None for a folder.
    """
    model, config = _model_of(options["model"], options["engine"])
    recompute = _recompute(options["recompute"], settings.get("recompute"))
    return Request(
        **{name: options[name] for name in _TAKEN},
        model=model,
        engine=OWN if config and options["engine"] == "auto" else options["engine"],
        output=DEFAULT_FOLDER if file else options["output"],
        file=file,
        cooldown_seconds=options["cooldown"],
        cluster=cluster if cluster.executor else cluster.changed(gpu=None),
        budget=budget,
        facts=stated_facts(
            gpu=None if cluster.executor else cluster.gpu,
            shape=options["shape"],
            model_name=options["model_name"],
            model=model,
        ),
        settings=RunSettings(**{**settings, **recompute}, config=config),
    )


def _model_of(text: str, engine: str) -> tuple[str, dict[str, Any] | None]:
    """Return the model's name, and its configuration if --model is a file.

    Raises UsageError for a file with an engine that cannot train it.
    """
    if text in (*MODELS, "all"):
        return text, None
    from tensorprimat.engines.torch import config as torch_config

    if engine not in ("auto", OWN):
        raise UsageError(f"--engine {engine}: trains {', '.join(MODELS)}; for --model {text} use --engine {OWN}")
    return torch_config.read_model_config(text)


def _recompute(switch: bool, stated: str | None) -> dict[str, str]:
    """Return the setting that --recompute means. Raises UsageError if --activation-checkpointing contradicts it."""
    if not switch:
        return {}
    if stated not in (None, "full"):
        raise UsageError(
            f"--recompute: means --activation-checkpointing full, which contradicts --activation-checkpointing {stated}"
            "; leave one of the two out"
        )
    return {"recompute": "full"}
