"""Engines, which run benchmarks, and the one that `--engine auto` chooses on a machine for each model."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import Platform
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One row of ENGINES."""

    name: str
    """Value of --engine and of provenance.engine."""
    title: str
    module: str | None = None
    """Module that a fresh process runs (see engines/launch); None for an engine that reads logs."""
    packages: tuple[str, ...] = ()
    """Import names without which it cannot start."""
    oldest: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Package → its oldest version that trains as the engine records it."""
    own_training: bool = False
    """The training loop is the project's own: it takes model configuration files, tiny presets and flags of the loop
    (--compile, --attention, …)."""
    own_configuration: bool = False
    """The settings come from configuration files of the framework, which flags override."""
    tensor_parallel: bool = False
    """The engine has --tensor-parallel-size."""
    memory: str | None = None
    """Module whose `estimate(spec, device_name)` and `remedies(spec, memory_bytes)` deal with one device's memory."""
    install: str = ""
    """The command that brings them."""

    @property
    def reads_logs(self) -> bool:
        """Return True if the engine turns logs of earlier training into results instead of training."""
        return self.module is None

    def missing_packages(self) -> tuple[str, ...]:
        """Return those of the engine's packages that this Python lacks, without importing any."""
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
            memory="tensorprimat.core.training_memory",
            title="the torch engine (Lightning)",
            module="tensorprimat.engines.torch.engine",
            packages=("torch", "lightning", "transformers"),
            oldest={"torch": (2, 4), "lightning": (2, 4), "transformers": (4, 53)},  # 4.52 ignores a layer's recompute
            install="pip install torch lightning 'transformers>=4.53'",
        ),
        Engine(
            name="nemo",
            tensor_parallel=True,
            memory="tensorprimat.core.megatron_memory",
            title="the NeMo engine",
            module="tensorprimat.engines.nemo.engine",
            packages=("nemo.collections.llm", "nemo_run"),
            install="NeMo 2 has them (make nemo-env, or NVIDIA's image); NeMo 3: benchmark.py --engine bridge; "
            "else benchmark.py --engine torch",
        ),
        Engine(
            name="bridge",
            tensor_parallel=True,
            memory="tensorprimat.core.megatron_memory",
            title="the Megatron-Bridge engine",
            module="tensorprimat.engines.bridge",
            packages=("megatron.bridge",),
            install="NVIDIA's newer NeMo images have it; try benchmark.py --engine torch",
        ),
        Engine(
            name="primus",
            own_configuration=True,
            tensor_parallel=True,
            memory="tensorprimat.engines.primus.memory",
            title="Primus, from its logs",
        ),
        Engine(name="logs", title="logs of earlier training"),
    )
}


PRIMUS_TRAINING = replace(
    ENGINES["primus"], title="Primus", module="tensorprimat.engines.primus.engine", packages=("yaml",)
)
"""Engine of --engine primus if there is a Primus checkout; without one it reads logs."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The engine for each model, and the reason for the choice."""

    engines: Mapping[str, Engine | None]
    """By model; None: there is no log of this model, and no training was requested."""
    because: str
    """One sentence for the start of the benchmark."""


NVIDIA_ORDER = ("nemo", "bridge", "torch")
"""Engines that `auto` tries on an NVIDIA GPU: NVIDIA's own first; its newer images carry Megatron-Bridge only."""


VENDOR_ENGINES = {"nvd": ("nemo", "bridge"), "amd": ("primus",)}
"""By platform: the vendor's own engines, for messages."""


def default_engine(platform: Platform) -> str:
    """Return the engine whose results have no engine in their file name: the first one installed of those of `auto`."""
    if platform == "nvd":
        return next(name for name in NVIDIA_ORDER if name == "torch" or not ENGINES[name].missing_packages())
    return "primus" if platform == "amd" else "torch"


Obstacle = Callable[[Engine, str], str | None]
"""Function that returns why an engine cannot train a model on this machine's GPUs, as a phrase after the model's name;
None if it can."""


def in_order(
    models: Sequence[str], obstacle: Obstacle, *, order: Sequence[str] = NVIDIA_ORDER, where: str = " on this GPU"
) -> Plan:
    """Return for each model the first engine that is installed and has no obstacle, else the last one of the order.

    where: words after "the NeMo engine trains" in the sentence, which also says why each earlier engine is not used.
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
        instead += f", or --engine {'primus' if spec.platform == 'amd' else 'nemo'}"
    raise UsageError(f"{spec.named(*split)}: the {engine.name} engine supports data parallelism only; {instead}")


def looks_for_logs(requested: str, platform: str) -> bool:
    """Return True if the choice depends on logs; on CUDA only if the user requested logs.

    >>> looks_for_logs("auto", "nvd"), looks_for_logs("auto", "amd"), looks_for_logs("torch", "amd")
    (False, True, False)
    """
    return requested in ("logs", "primus") or (requested == "auto" and platform != "nvd")


def choose(
    requested: str,
    *,
    platform: Platform,
    models: Sequence[str],
    with_log: Sequence[str],
    primus_models: Sequence[str] | None = None,
    obstacle: Obstacle = lambda *_: None,
) -> Plan:
    """Return the engine for each model.

    requested: --engine; with_log: models of which a log was found; primus_models: those that a Primus checkout here has
    a configuration of, None where there is no checkout; obstacle: used on an NVIDIA GPU only, see `in_order`. Raises
    UsageError for an engine that does not exist.
    """
    if requested != "auto" and requested not in ENGINES:
        raise UsageError(f"--engine {requested}: no such engine; engines: auto, {', '.join(ENGINES)}")
    if requested == "primus" and primus_models is not None:
        return _plan(PRIMUS_TRAINING, models, primus_models, "Primus trains on this machine, as requested")
    if requested != "auto":
        engine = ENGINES[requested]
        return _plan(engine, models, with_log if engine.reads_logs else models, f"{engine.title}, as requested")
    if platform == "nvd":
        return in_order(models, obstacle)
    if platform == "amd":
        because = "on ROCm, Primus logs are read; use --engine torch to train here instead"
        return _plan(ENGINES["primus"], models, with_log, because)
    if with_log:
        because = (
            "no GPU found; reading the training logs that were found; use --engine torch to train on the CPU instead"
        )
        return _plan(ENGINES["logs"], models, with_log, because)
    because = "No GPU or training log found; training a tiny version of each model on the CPU"
    return _plan(ENGINES["torch"], models, models, because)


def _plan(engine: Engine, models: Sequence[str], available: Sequence[str], because: str) -> Plan:
    return Plan(engines={model: engine if model in available else None for model in models}, because=because)


def fuses_norm(device_type: str) -> bool:
    """Return True if torch has one kernel for RMS norm on this kind of device; assumed of a GPU where torch is missing.

    Estimates ask here, so that they and the training agree.
    """
    if not importable("torch"):
        return device_type != "cpu"
    from tensorprimat.engines.torch import model

    return model.has_fused_norm(device_type)


def importable(name: str) -> bool:
    """Return True if `import name` would find a module. Parents of a dotted name are imported to find out."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent is missing, or is a broken stub in sys.modules
        return False
