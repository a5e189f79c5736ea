"""The request that the options of `run` make: the model or its file, the engine, and what each option applies to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import MODELS, RunSettings
from tensorprimat.engines import OWN
from tensorprimat.engines.cluster.executors import Cluster
from tensorprimat.session.budget import Budget
from tensorprimat.session.plan import Request, stated_facts

DEFAULT_FOLDER = Path("output")
TAKEN = ("runs", "append", "typed", "dry_run", "json", "profile")
"""Options that a request takes as they are."""


def request_of(
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    cluster: Cluster,
    budget: Budget,
    file: Path | None,
) -> Request:
    """Return the request of a command line. Raises UsageError for options that contradict each other.

    options: by parameter of the command. settings: by name in RunSettings. cluster: --executor and its flags, of which
    --gpu is a fact about a log where there is no executor. file: the file that --output names; None for a folder.
    """
    model, config = model_of(options["model"], options["engine"])
    recompute = _recompute(options["recompute"], settings.get("recompute"))
    return Request(
        **{name: options[name] for name in TAKEN},
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


def model_of(text: str, engine: str) -> tuple[str, dict[str, Any] | None]:
    """Return the model's name, and its configuration where --model is a file.

    Raises UsageError where the engine trains no configuration files.
    """
    if text in (*MODELS, "all"):
        return text, None
    from tensorprimat.engines.torch import config as torch_config

    if engine not in ("auto", OWN):
        raise UsageError(f"--engine {engine}: trains {', '.join(MODELS)}; for --model {text} use --engine {OWN}")
    return torch_config.read(text)


def _recompute(switch: bool, stated: str | None) -> dict[str, str]:
    """Return the setting that --recompute makes. Raises UsageError where --activation-checkpointing contradicts it."""
    if not switch:
        return {}
    if stated not in (None, "full"):
        raise UsageError(
            f"--recompute: means --activation-checkpointing full, and --activation-checkpointing {stated} is given "
            "too; leave one of the two out"
        )
    return {"recompute": "full"}
