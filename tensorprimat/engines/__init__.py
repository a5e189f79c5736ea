"""The engines that run benchmarks, and the choice of one for each model by `--engine auto`."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.megatron_memory import MegatronCore, RecipeRecomputation
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.result import Platform
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One row of ENGINES: every fact by which the tool treats engines differently."""

    name: str
    """Value of --engine and of provenance.engine."""
    title: str
    logs: str | None = None
    """Title of the engine when it reads logs of earlier training; None for an engine that only trains."""
    module: str | None = None
    """Module that a fresh process runs (see engines/launch); None for an engine that only reads logs."""
    checkout: str | None = None
    """Module whose `models_here` and `machine_of` find the checkout that trains; without a checkout the engine reads
    logs. None for an engine that consists of packages."""
    vendor: Platform | None = None
    """Platform of the vendor that publishes the engine; `auto` prefers it there. None for the project's own."""
    packages: tuple[str, ...] = ()
    """Import names of the packages that it needs to start."""
    oldest: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Package → its oldest version with which the training runs as the result states."""
    own_training: bool = False
    """The training loop is the project's own: it takes model configuration files, tiny presets and flags of the loop
    (--compile, --attention, …)."""
    own_configuration: bool = False
    """The settings come from configuration files of the framework, which flags override."""
    from_methodology: bool = False
    """Without --methodology, a full model is trained with the default methodology."""
    under_executor: bool = False
    """--executor can start its ranks on other machines."""
    torch_profiler: bool = False
    """It can run PyTorch's own profiler (--profile torch)."""
    megatron: MegatronCore | None = None
    """Behaviour of Megatron Core in it, with parallel sizes and memory; None for an engine without Megatron Core."""
    memory: str | None = None
    """Module with the functions `estimate` (memory of one device), `recomputed_share` and, without `megatron`,
    `remedies`; None: `megatron` has them, if set."""
    install: str = ""
    """Advice for a Python without its packages: how to install them, or another engine to use."""

    @property
    def tensor_parallel(self) -> bool:
        """Return True if the engine can split a model over GPUs (--tensor-parallel-size and the other such flags)."""
        return self.megatron is not None

    def memory_model(self) -> Any:
        """Return the module or MegatronCore with the functions of `memory`; None for an engine without estimates."""
        return self.megatron if self.memory is None else importlib.import_module(self.memory)

    def missing_packages(self) -> tuple[str, ...]:
        """Return the engine's packages that this Python lacks; imports only the parents of a dotted name."""
        return tuple(name for name in self.packages if not importable(name))

    def outdated_packages(self) -> tuple[str, ...]:
        """Return a phrase for each package that is too old for the engine, without importing any."""
        found = []
        for name, (major, minor) in self.oldest.items():
            try:
                version = metadata.version(name)
            except metadata.PackageNotFoundError:  # a folder on PYTHONPATH has no version
                continue
            numbers = re.match(r"(\d+)\.(\d+)", version)
            if numbers and (int(numbers[1]), int(numbers[2])) < (major, minor):
                found.append(f"{name} {major}.{minor} or newer ({version} is installed)")
        return tuple(found)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="torch",
            own_training=True,
            under_executor=True,
            torch_profiler=True,
            memory="tensorprimat.core.training_memory",
            title="the torch engine (Lightning)",
            module="tensorprimat.engines.torch.engine",
            packages=("torch", "lightning", "transformers"),
            oldest={"torch": (2, 4), "lightning": (2, 4), "transformers": (4, 53)},  # 4.52 ignores a layer's recompute
            install="pip install torch lightning 'transformers>=4.53'",
        ),
        Engine(
            name="nemo",
            vendor="nvd",
            from_methodology=True,
            under_executor=True,
            torch_profiler=True,
            megatron=MegatronCore(exchanges_heads=True, steps_with_bf16_gradients=True),
            title="the NeMo engine",
            module="tensorprimat.engines.nemo.engine",
            packages=("nemo.collections.llm", "nemo_run"),
            install="NeMo 2 has them (make nemo-env, or NVIDIA's image); NeMo 3: benchmark.py --engine bridge; "
            "else benchmark.py --engine torch",
        ),
        Engine(
            name="bridge",
            vendor="nvd",
            from_methodology=True,  # it starts its ranks itself, so that no executor can start them
            megatron=MegatronCore(
                recomputes=(  # Megatron-Bridge v0.6.0 (2026-08-19), perf_recipes/llama/h100/llama3.py
                    RecipeRecomputation(model="llama", precision="fp8", num_gpus=8, gpus=("H100", "H200"), layers=5),
                )
            ),
            title="the Megatron-Bridge engine",
            module="tensorprimat.engines.bridge",
            packages=("megatron.bridge",),
            install="NVIDIA's newer NeMo images have it; try benchmark.py --engine torch",
        ),
        Engine(
            name="primus",
            vendor="amd",
            own_configuration=True,
            megatron=MegatronCore(),
            memory="tensorprimat.engines.primus.memory",
            title="Primus",
            logs="Primus, from its logs",
            module="tensorprimat.engines.primus.engine",
            checkout="tensorprimat.engines.primus.checkout",
            packages=("yaml",),
        ),
        Engine(name=LOGS, title="logs of earlier training", logs="logs of earlier training"),
    )
}


OWN = next(name for name, engine in ENGINES.items() if engine.own_training)
"""The project's own engine, which trains everywhere."""
VENDOR_ENGINES = {
    platform: tuple(name for name, engine in ENGINES.items() if engine.vendor == platform)
    for platform in ("nvd", "amd")
}
"""Platform → its vendor's own engines, the preferred one first."""
NVIDIA_ORDER = (*VENDOR_ENGINES["nvd"], OWN)
"""Engines that `auto` tries on an NVIDIA GPU, NVIDIA's own first; its newer images contain Megatron-Bridge only."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The engine for each model, and the reason for the choice."""

    engines: Mapping[str, Engine | None]
    """By model; None: there is no log of this model, and no training was requested."""
    because: str
    """One sentence for the start of the benchmark."""
    from_logs: bool = False
    """The engines read logs of earlier training."""


def default_engine(platform: Platform) -> str:
    """Return the engine whose results have no engine in their file name.

    On an NVIDIA GPU it is the first installed one of NVIDIA_ORDER, on an AMD GPU Primus, on a CPU the project's own.
    """
    if platform == "nvd":
        return next(name for name in NVIDIA_ORDER if name == OWN or not ENGINES[name].missing_packages())
    return VENDOR_ENGINES["amd"][0] if platform == "amd" else OWN


Obstacle = Callable[[Engine, str], str | None]
"""Function that returns why an engine cannot train a model on this machine's GPUs, as a phrase after the model's name;
None if it can."""


def in_order(
    models: Sequence[str], obstacle: Obstacle, *, order: Sequence[str] = NVIDIA_ORDER, where: str = " on this GPU"
) -> Plan:
    """Return for each model the first engine that is installed and has no obstacle, else the last one of the order.

    where: end of the sentence "the NeMo engine trains …" in `because`, which also states why no earlier engine is used.
    """
    lacking = {name: missing for name in order[:-1] if (missing := ENGINES[name].missing_packages())}
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


def check_model_parallel(engine: Engine, spec: RunSpec) -> None:
    """Raise UsageError where the spec splits the model and the engine cannot."""
    split = [name for name in MODEL_PARALLEL if getattr(spec, name) > 1]
    if engine.tensor_parallel or not split:
        return
    instead = "leave --methodology out" if spec.with_methodology_flag else "use 1"
    if spec.platform != "cpu" and spec.num_gpus * spec.num_nodes % spec.model_parallel_size == 0:
        instead += f", or --engine {VENDOR_ENGINES[spec.platform][0]}"
    raise UsageError(f"{spec.named(*split)}: the {engine.name} engine supports data parallelism only; {instead}")


def looks_for_logs(requested: str, platform: str) -> bool:
    """Return True if the choice of the engine depends on the logs found; on CUDA only if the user requested logs.

    >>> looks_for_logs("auto", "nvd"), looks_for_logs("auto", "amd"), looks_for_logs("torch", "amd")
    (False, True, False)
    """
    if requested == "auto":
        return platform != "nvd"
    return requested in ENGINES and ENGINES[requested].logs is not None


def choose(
    requested: str,
    *,
    platform: Platform,
    models: Sequence[str],
    with_log: Sequence[str],
    configured: Sequence[str] | None = None,
    obstacle: Obstacle = lambda *_: None,
) -> Plan:
    """Return the engine for each model.

    requested: --engine; with_log: models of which a log was found; configured: models for which the checkout on this
    machine has a configuration, None without a checkout; obstacle: used on an NVIDIA GPU only, see `in_order`.
    Raises UsageError for an engine that does not exist.
    """
    if requested != "auto" and requested not in ENGINES:
        raise UsageError(f"--engine {requested}: no such engine; engines: auto, {', '.join(ENGINES)}")
    if requested != "auto":
        engine = ENGINES[requested]
        if engine.checkout is not None and configured is not None:
            return _training(engine, models, f"{engine.title} trains on this machine, as requested", among=configured)
        if engine.logs is not None:
            return _reading(engine, models, with_log, f"{engine.logs}, as requested")
        return _training(engine, models, f"{engine.title}, as requested")
    if platform == "nvd":
        return in_order(models, obstacle)
    if platform == "amd":
        because = "on ROCm, Primus logs are read; use --engine torch to train here instead"
        return _reading(ENGINES[default_engine(platform)], models, with_log, because)
    if with_log:
        because = (
            "no GPU found; reading the training logs that were found; use --engine torch to train on the CPU instead"
        )
        return _reading(ENGINES[LOGS], models, with_log, because)
    because = "No GPU or training log found; training a tiny version of each model on the CPU"
    return _training(ENGINES[OWN], models, because)


def _training(engine: Engine, models: Sequence[str], because: str, *, among: Sequence[str] | None = None) -> Plan:
    """Return a plan that trains every model; with `among`, only the models in it."""
    trained = models if among is None else among
    return Plan(engines={model: engine if model in trained else None for model in models}, because=because)


def _reading(engine: Engine, models: Sequence[str], with_log: Sequence[str], because: str) -> Plan:
    found = {model: engine if model in with_log else None for model in models}
    return Plan(engines=found, because=because, from_logs=True)


def fuses_norm(device_type: str) -> bool:
    """Return True if torch has one kernel for RMS norm on this kind of device; without torch, True for every GPU.

    The memory estimates use this function, so that they agree with the training.
    """
    if not importable("torch"):
        return device_type != "cpu"
    from tensorprimat.engines.torch import model

    return model.has_fused_norm(device_type)


def importable(name: str) -> bool:
    """Return True if `import name` would find a module. Finding a dotted name imports its parents."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent is missing, or is a broken stub in sys.modules
        return False
