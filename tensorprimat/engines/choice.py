"""The choice of an engine for each model: by `--engine auto`, by the GPU, and by the logs that were found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorprimat.core.errors import UsageError
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.result import Platform
from tensorprimat.engines.registry import ENGINES, NVIDIA_ORDER, OWN, Engine, default_engine


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The engine for each model, and the reason for the choice."""

    engines: Mapping[str, Engine | None]
    """By model; None: there is no log of this model, and no training was requested."""
    because: str
    """One sentence for the start of the benchmark."""
    from_logs: bool = False
    """The engines read logs of earlier training."""
    untrained: str = ""
    """Message about a model that the requested engine cannot train here."""


Obstacle = Callable[[Engine, str], str | None]
"""Function that returns why an engine cannot train a model on this machine's GPUs, as a phrase after the model's name;
None if it can."""


def in_order(
    models: Sequence[str],
    obstacle: Obstacle,
    *,
    order: Sequence[str] = NVIDIA_ORDER,
    where: str = " on this GPU",
    platform: Platform | None = None,
) -> Plan:
    """Return for each model the first engine that is installed and has no obstacle, else the last one of the order.

    `Plan.because` names the engine that trains, and the reason against each engine before it in the order. where: the
    end of its first phrase, such as "the NeMo engine trains on this GPU". platform: platform of this machine if the
    training runs on it; None if it runs elsewhere.
    """
    lacking = {name: missing for name in order[:-1] if (missing := ENGINES[name].missing_packages(platform))}
    candidates = [ENGINES[name] for name in order if name not in lacking]
    engines: dict[str, Engine] = {}
    obstacles: dict[str, list[str]] = {}
    for model in models:
        for engine in candidates:
            engines[model] = engine
            because = None if engine is candidates[-1] else obstacle(engine, model)
            if because is None:
                break
            obstacles.setdefault(engine.title, []).append(f"{model} {because}")
    chosen = {engine.name: [model for model in models if engines[model] is engine] for engine in engines.values()}
    passed_over = order[: max(order.index(name) for name in chosen)]
    absent = [f"{ENGINES[name].title} (no {', '.join(lacking[name])})" for name in passed_over if name in lacking]
    parts = [
        *(
            f"{ENGINES[name].title} trains{' ' + ', '.join(of) if len(chosen) > 1 else ''}{where}"
            for name, of in chosen.items()
        ),
        *(f"not {title}, because {', and '.join(phrases)}" for title, phrases in obstacles.items()),
        *([f"not installed here: {', '.join(absent)}"] if absent else []),
    ]
    return Plan(engines=engines, because="; ".join(parts))


def looks_for_logs(requested: str, platform: str) -> bool:
    """Return True if the choice of the engine depends on the logs found; on CUDA only if the user requested logs.

    >>> looks_for_logs("auto", "nvd"), looks_for_logs("auto", "amd"), looks_for_logs("torch", "amd")
    (False, True, False)
    """
    if requested == "auto":
        return platform != "nvd"
    return requested in ENGINES and ENGINES[requested].logs is not None


def choose_engines(
    requested: str,
    *,
    platform: Platform,
    models: Sequence[str],
    with_log: Sequence[str],
    with_unassigned: Sequence[str] = (),
    configured: Sequence[str] | None = None,
    obstacle: Obstacle = lambda *_: None,
) -> Plan:
    """Return the engine for each model.

    requested: --engine; with_log: models of which a log was found; with_unassigned: models to which a log that was
    found may belong, so that nothing is trained instead; configured: models for which the checkout on this
    machine has a configuration, None without a checkout; obstacle: used on an NVIDIA GPU only, see `in_order`.
    Raises UsageError for an engine that does not exist.
    """
    if requested != "auto" and requested not in ENGINES:
        raise UsageError(f"--engine {requested}: no such engine; engines: auto, {', '.join(ENGINES)}")
    if requested != "auto":
        engine = ENGINES[requested]
        if engine.own_configuration and configured is not None:
            return _plan(engine, models, f"{engine.title} trains on this machine, as requested", among=configured)
        if engine.logs is not None:
            return _plan(engine, models, f"{engine.logs}, as requested", among=with_log, from_logs=True)
        return _plan(engine, models, f"{engine.title}, as requested", among=models)
    if platform == "nvd":
        return in_order(models, obstacle, platform=platform)
    if platform == "amd":
        because = "on ROCm, Primus logs are read; use --engine torch to train here instead"
        return _plan(ENGINES[default_engine(platform)], models, because, among=with_log, from_logs=True)
    if with_log:
        because = (
            "no GPU found; reading the training logs that were found; use --engine torch to train on the CPU instead"
        )
        return _plan(ENGINES[LOGS], models, because, among=with_log, from_logs=True)
    if with_unassigned:
        because = "no GPU found; a training log was found, but not its model; --engine torch trains on the CPU instead"
        return _plan(ENGINES[LOGS], models, because, among=(), from_logs=True)
    because = "No GPU or training log found; training on the CPU (by default a tiny version of each model)"
    return _plan(ENGINES[OWN], models, because, among=models)


def _plan(
    engine: Engine, models: Sequence[str], because: str, *, among: Sequence[str], from_logs: bool = False
) -> Plan:
    """Return a plan with this engine for the models in `among`, and none for the others."""
    engines = {model: engine if model in among else None for model in models}
    return Plan(engines=engines, because=because, from_logs=from_logs)
