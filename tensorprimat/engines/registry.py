"""The registry of engines: a row for each with every fact by which the tool treats engines differently."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorprimat.core.errors import UsageError
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.result import Platform
from tensorprimat.core.spec import RunSpec
from tensorprimat.models.megatron_memory import MegatronCore, RecipeRecomputation
from tensorprimat.system.packages import find_package


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One row of ENGINES: every fact by which the tool treats engines differently."""

    name: str
    """Value of --engine and of provenance.engine."""
    title: str
    logs: str | None = None
    """Title of the engine when it reads logs of earlier training; None for an engine that only trains."""
    trains: bool = True
    """It can train (see engines/modules); False for an engine that only reads logs."""
    vendor: Platform | None = None
    """Platform of the vendor that publishes the engine; `auto` prefers it there. None for the project's own."""
    packages: tuple[str, ...] = ()
    """Import names of the packages that it needs to start."""
    gpu_packages: tuple[str, ...] = ()
    """Import names of the packages that it also needs to train on a GPU."""
    oldest: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Package → oldest version with which the training does what the result states."""
    own_training: bool = False
    """The training loop is the project's own: it takes model configuration files, tiny presets and flags of the loop
    (--compile, --attention, …)."""
    own_configuration: bool = False
    """The settings come from configuration files of the framework on this machine, which flags override: another engine
    would train with other settings, and the files may divide the model in a way that no flag states."""
    detects_warmup: bool = False
    """Warm-up steps are detected from the times in the log of the training; else the spec states their number."""
    log_scripts: Mapping[str, str] = field(default_factory=dict)
    """Model → script of this project that trains it with the engine and so writes a log to read."""
    from_methodology: bool = False
    """Without --methodology, a full model is trained with the default methodology."""
    under_executor: bool = False
    """--executor can start its ranks on other machines."""
    torch_profiler: bool = False
    """It can run PyTorch's own profiler (--profile torch)."""
    megatron: MegatronCore | None = None
    """Behaviour of Megatron Core in it, with parallel sizes and memory; None for an engine without Megatron Core."""
    install: str = ""
    """Advice for a Python without its packages: how to install them, or another engine to use."""
    gpu_install: str = ""
    """The same for a machine with a GPU whose Python lacks one of gpu_packages."""

    @property
    def tensor_parallel(self) -> bool:
        """Return True if the engine can split a model over GPUs (--tensor-parallel-size and the other such flags)."""
        return self.megatron is not None

    def missing_packages(self, platform: Platform | None = None) -> tuple[str, ...]:
        """Return the engine's packages that this Python lacks; imports only the parents of a dotted name.

        platform: platform of this machine if the engine would train on it; None leaves gpu_packages out.
        """
        needed = self.packages if platform in (None, "cpu") else (*self.packages, *self.gpu_packages)
        return tuple(name for name in needed if not importable(name))

    def outdated_packages(self) -> tuple[str, ...]:
        """Return a phrase for each package that is too old for the engine, without importing any."""
        found = []
        for name, (major, minor) in self.oldest.items():
            installed = find_package(name)
            if installed is None:  # a folder on PYTHONPATH has no version
                continue
            numbers = re.match(r"(\d+)\.(\d+)", installed.version)
            if numbers and (int(numbers[1]), int(numbers[2])) < (major, minor):
                found.append(f"{name} {major}.{minor} or newer ({installed.version} is installed)")
        return tuple(found)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="torch",
            own_training=True,
            under_executor=True,
            torch_profiler=True,
            title="the torch engine (Lightning)",
            packages=("torch", "lightning", "transformers"),
            oldest={"torch": (2, 4), "lightning": (2, 4), "transformers": (4, 53)},  # 4.52 keeps all activations
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
            packages=("nemo.collections.llm", "nemo_run"),
            gpu_packages=("transformer_engine",),  # for fused RoPE, cross-entropy and the precision-aware optimizer
            install="install NeMo 2 (make nemo-env, or NVIDIA's image); with NeMo 3 use benchmark.py --engine bridge, "
            "without NeMo --engine torch",
            gpu_install="use NVIDIA's NeMo image, which has all that NeMo needs on a GPU, or benchmark.py "
            "--engine torch",
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
            packages=("megatron.bridge",),
            install="NVIDIA's newer NeMo images have it; try benchmark.py --engine torch",
        ),
        Engine(
            name="primus",
            vendor="amd",
            own_configuration=True,
            detects_warmup=True,
            log_scripts={"llama": "run_primus_llama.sh", "qwen": "run_primus_qwen.sh"},
            megatron=MegatronCore(),
            title="Primus",
            logs="Primus, from its logs",
            packages=("yaml",),
        ),
        Engine(name=LOGS, title="logs of earlier training", logs="logs of earlier training", trains=False),
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


def default_engine(platform: Platform, *, here: bool = True) -> str:
    """Return the engine whose results have no engine in their file name.

    On an NVIDIA GPU it is the first installed one of NVIDIA_ORDER, on an AMD GPU Primus, on a CPU the project's own.
    here: the training runs on this machine; False with an executor.
    """
    if platform == "nvd":
        trains_on = platform if here else None
        return next(name for name in NVIDIA_ORDER if name == OWN or not ENGINES[name].missing_packages(trains_on))
    return VENDOR_ENGINES["amd"][0] if platform == "amd" else OWN


def log_scripts(model: str) -> list[str]:
    """Return this project's scripts that train a model and so write a log to read."""
    return [engine.log_scripts[model] for engine in ENGINES.values() if model in engine.log_scripts]


def check_model_parallel(engine: Engine, spec: RunSpec) -> None:
    """Raise UsageError where the spec splits the model and the engine cannot."""
    if engine.tensor_parallel or not spec.split_by:
        return
    instead = "leave --methodology out" if spec.with_methodology_flag else "use 1"
    if spec.platform != "cpu" and spec.num_gpus * spec.num_nodes % spec.model_parallel_size == 0:
        instead += f", or --engine {VENDOR_ENGINES[spec.platform][0]}"
    raise UsageError(
        f"{spec.named(*spec.split_by)}: the {engine.name} engine supports data parallelism only; {instead}"
    )


def importable(name: str) -> bool:
    """Return True if `import name` would find a module. Finding a dotted name imports its parents."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent is missing, or is a broken stub in sys.modules
        return False
