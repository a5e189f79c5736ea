"""The Megatron-Bridge engine: the successor of NeMo 2, with its own pretrain recipes, timed by the lines it prints.

    python -m tensorprimat.engines.bridge --spec spec.json --result result.json

Starts torchrun, whose ranks build the recipe, set every value of the spec in it and train; keeps the whole output as a
log in the results folder and reads it like any other log. The recipe fetches its model's configuration from Hugging
Face (Llama's is gated: HF_TOKEN). Megatron-Bridge requires Transformer Engine and a GPU image, so no test of this
project has run it. Tests without it compare recipe names, settings and precisions with the source of its versions 0.2
to 0.6, and check the values that are set, the launch, the reading of the log and the error messages.
Exit codes: 0 done, 1 the training failed or was interrupted (its log stays), 2 it cannot run here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from tensorprimat import logs
from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.quantities import alternatives
from tensorprimat.core.result import Result
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.engines.entry import parser_of, run_spec
from tensorprimat.engines.launcher_output import follow_launcher, keep
from tensorprimat.engines.registry import importable
from tensorprimat.logs.format import UserFacts
from tensorprimat.machine import environment
from tensorprimat.machine.platform import Machine, detect_platform
from tensorprimat.models import presets
from tensorprimat.storage import store
from tensorprimat.system.packages import find_package

BRIDGE_RECIPES = {"llama": "llama31_8b", "qwen": "qwen25_7b", "mistral": "qwen25_7b"}
"""Our model → prefix of its recipe's name. Mistral has no recipe: it uses qwen's, with mistral's model in it."""

MODEL_INSTEAD = {"mistral": "mistralai/Mistral-7B-v0.1"}
"""Hugging Face name of the configuration that replaces the recipe's model."""

PERFORMANCE_RECIPES = "megatron.bridge.perf_recipes.llama"
"""Module of NVIDIA's performance recipes from version 0.6 on; each recipe states its environment variables."""
PERFORMANCE_STEMS = {"llama": "llama3_8b"}
"""Our model → prefix of its performance recipes' names; qwen and mistral have none."""
PERFORMANCE_GPUS = ("GB300", "GB200", "B300", "B200", "H200", "H100")
"""GPUs with performance recipes; GB200 before B200, which it contains; H200 uses those of H100, with equal cores."""
PERFORMANCE_PRECISIONS = {"bf16": "bf16", "fp8": "fp8cs"}
"""Our precision → its name in a performance recipe; fp8 is current scaling."""

BRIDGE_PRECISIONS = {"bf16": "bf16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed", "fp16": "fp16_mixed"}
"""Our precision → Megatron-Bridge's recipe for it, where no performance recipe sets it."""
FP8_RECIPE = "tensorwise"  # Megatron's name of current scaling

SettingValue = Callable[[RunSpec], Any]
BRIDGE_SETTINGS: tuple[tuple[tuple[str, ...], SettingValue], ...] = (
    *(((f"model.{name}",), attrgetter(name)) for name in MODEL_PARALLEL),
    (("model.virtual_pipeline_model_parallel_size",), lambda _: None),
    (("model.sequence_parallel",), lambda spec: spec.tensor_model_parallel_size > 1),
    (("model.seq_length",), lambda spec: spec.sequence_length),
    *(
        ((f"model.{name}",), lambda spec, name=name: spec.recompute.megatron.get(name))
        for name in Recompute.ALL_LAYERS.megatron
    ),
    (("dataset.seq_length", "dataset.sequence_length"), lambda spec: spec.sequence_length),
    (("dataset.random_seed",), lambda spec: spec.seed),
    (("tokenizer.tokenizer_type",), lambda _: "NullTokenizer"),
    (("tokenizer.tokenizer_model",), lambda _: None),
    # The null tokenizer of some versions adds an end-of-document token; it may have no more tokens than the model.
    (("tokenizer.vocab_size",), lambda spec: presets.find_preset(spec.model, spec.preset).shape.vocab_size - 1),
    (("train.train_iters",), lambda spec: spec.max_steps),
    (("train.micro_batch_size",), lambda spec: spec.micro_batch_size),
    (("train.global_batch_size",), lambda spec: spec.global_batch_size),
    (("validation.eval_iters", "train.eval_iters"), lambda _: 0),
    (("scheduler.lr_warmup_iters",), lambda _: 0),  # a recipe's warm-up of thousands of steps is longer than this run
    (("logger.log_interval",), lambda _: 1),
    (("checkpoint.save",), lambda _: None),
    (("checkpoint.load",), lambda _: None),
    (("rng.seed",), lambda spec: spec.seed),
    (("mixed_precision",), lambda spec: BRIDGE_PRECISIONS[spec.precision]),
)
"""Settings of a recipe: its possible names (the first that this version has is used) and its value for a spec."""

TUNED = {
    "ddp.check_for_nan_in_grad": False,
    "ddp.check_for_large_grads": False,
    "ddp.grad_reduce_in_fp32": False,
    "rerun_state_machine.check_for_nan_in_loss": False,
    "model.cross_entropy_fusion_impl": "te",
    "model.apply_rope_fusion": True,
    "model.bias_activation_fusion": True,
    "model.bias_dropout_fusion": True,
    "train.manual_gc": True,
    "train.manual_gc_interval": 100,
}
"""Settings that every performance recipe has; other recipes get those that this version knows. Source:
NVIDIA-NeMo/Megatron-Bridge v0.6.0 (2026-08-19), perf_recipes/_common.py. The two bias_* fusions are on in its Llama
models (models/llama) and off in its Qwen 2.5 and Mistral models; here they are on for all."""

OF_THE_LOG = ("global_batch_size", "micro_batch_size", "sequence_length", "precision", "warmup_steps")
"""Settings of the spec that the reader of the log gets as facts."""
_STATED = (
    "num_nodes", *MODEL_PARALLEL, "data_parallel_size", "gradient_accumulation_steps", "max_steps", "seed",
)  # fmt: skip
"""Settings taken from the spec if the training's log does not state them."""


def check(spec: RunSpec, machine: Machine) -> None:
    """Raise UsageError where Megatron-Bridge cannot run the spec here."""
    spec.check()
    if machine.platform != "nvd":
        raise UsageError(
            f"--engine bridge needs an NVIDIA GPU, and this is a {machine.label} machine; try --engine torch"
        )
    if spec.preset != "full":
        raise UsageError(
            f"--preset {spec.preset}: Megatron-Bridge has recipes for the full models only; try --engine torch"
        )
    if spec.precision not in BRIDGE_PRECISIONS:
        raise UsageError(f"--precision {spec.precision}: Megatron-Bridge trains in {', '.join(BRIDGE_PRECISIONS)}")
    if spec.num_nodes > 1:
        raise UsageError(f"{spec.num_nodes} nodes: the bridge engine trains on one; try --engine nemo")


def recipe_name(model: str, offered: Sequence[str]) -> str:
    """Return the model's recipe among those that megatron.bridge.recipes offers. Raises UsageError if there is none.

    >>> recipe_name("llama", ["llama3_8b_pretrain_config", "llama31_8b_pretrain_config", "llama31_8b_sft_config"])
    'llama31_8b_pretrain_config'
    >>> recipe_name("qwen", ["qwen25_7b_pretrain_2gpu_h100_bf16_config"])  # names since 2026
    'qwen25_7b_pretrain_2gpu_h100_bf16_config'
    """
    stem = f"{BRIDGE_RECIPES[model]}_pretrain_"
    fitting = [name for name in offered if name == f"{stem}config"] or sorted(
        name for name in offered if name.startswith(stem) and name.endswith("_bf16_config")
    )
    if not fitting:
        raise UsageError(f"this Megatron-Bridge has no pretrain recipe of {BRIDGE_RECIPES[model]}; try --engine torch")
    return fitting[0]


def performance_recipe_name(spec: RunSpec, device_name: str | None, offered: Sequence[str]) -> str | None:
    """Return NVIDIA's performance recipe for this model, GPU, GPU count and precision; None where there is none.

    offered: the names in PERFORMANCE_RECIPES.
    """
    gpu = next((gpu for gpu in PERFORMANCE_GPUS if gpu in (device_name or "")), None)
    stem, precision = PERFORMANCE_STEMS.get(spec.model), PERFORMANCE_PRECISIONS.get(spec.precision)
    if gpu is None or stem is None or precision is None:
        return None
    name = f"{stem}_pretrain_{spec.num_gpus}gpu_{'H100' if gpu == 'H200' else gpu}_{precision}_config".lower()
    return name if name in offered else None


def configure_recipe(config: Any, spec: RunSpec, *, is_performance_recipe: bool = False) -> Any:
    """Set every value of the spec in a recipe's configuration and return it.

    A performance recipe keeps its own precision and, if the spec requests no recomputation, its own recomputation. Any
    other recipe gets TUNED. Raises RunError where the recipe has none of a setting's names.
    """
    for places, value in BRIDGE_SETTINGS:
        if is_performance_recipe and _is_the_recipes_own(places[0], spec):
            continue
        if not any(_set(config, place, value(spec)) for place in places):
            raise RunError(f"this Megatron-Bridge has no {alternatives(places)} in its recipes; try --engine torch")
    if not is_performance_recipe:
        for place, tuned in TUNED.items():
            _set(config, place, tuned)
        config.mixed_precision = _reducing_in_bf16(config.mixed_precision)
    if spec.pipeline_model_parallel_size > 1:
        import torch

        config.model.pipeline_dtype = torch.float16 if spec.precision == "fp16" else torch.bfloat16
    return config


def _is_the_recipes_own(place: str, spec: RunSpec) -> bool:
    return place == "mixed_precision" or (place.startswith("model.recompute") and spec.recompute == "none")


def _set(config: Any, place: str, value: Any) -> bool:
    """Set the attribute with a dotted name; return False where the configuration has no such attribute."""
    *owners, name = place.split(".")
    for part in owners:
        config = getattr(config, part, None)
    if not hasattr(config, name):
        return False
    setattr(config, name, value)
    return True


def _reducing_in_bf16(name: str) -> Any:
    """Return the precision of this name with gradients reduced in bf16, as in performance recipes.

    In a version without Megatron-Bridge's module of precisions, return the name, which leaves the reduction in fp32.
    """
    try:
        precisions = importlib.import_module("megatron.bridge.training.mixed_precision")
    except ImportError:
        return name
    precision = getattr(precisions, name)()
    precision.grad_reduce_in_fp32 = False
    return precision


def _recipe(spec: RunSpec) -> tuple[Any, bool]:
    """Return the configuration of the model's recipe, and True if it is NVIDIA's performance recipe."""
    device_name = detect_platform().gpu_info.device_name
    if importable(PERFORMANCE_RECIPES):
        performance = importlib.import_module(PERFORMANCE_RECIPES)
        if name := performance_recipe_name(spec, device_name, dir(performance)):
            print(f"Megatron-Bridge's performance recipe: {name}", flush=True)
            return getattr(performance, name)(), True
    recipes = importlib.import_module("megatron.bridge.recipes")
    return getattr(recipes, recipe_name(spec.model, dir(recipes)))(), False


def write_environment(spec: RunSpec, file: Path) -> None:
    """Write the environment variables that the recipe states, by name, as JSON."""
    config, _ = _recipe(spec)
    variables = getattr(config, "env_vars", None) or {}
    file.write_text(json.dumps({name: str(value) for name, value in variables.items()}))


def train_rank(spec: RunSpec) -> None:
    """Build the recipe and train one rank under torchrun."""
    config, is_performance_recipe = _recipe(spec)
    if instead := MODEL_INSTEAD.get(spec.model):
        bridge = importlib.import_module("megatron.bridge").AutoBridge
        config.model = bridge.from_hf_pretrained(instead).to_megatron_provider(load_weights=False)
    pretrain = importlib.import_module("megatron.bridge.training.pretrain").pretrain
    forward_step = importlib.import_module("megatron.bridge.training.gpt_step").forward_step
    pretrain(
        config=configure_recipe(config, spec, is_performance_recipe=is_performance_recipe),
        forward_step_func=forward_step,
    )


def train(spec: RunSpec, spec_file: Path, result_file: Path) -> None:
    """Train one run. Raises RunError or OutOfMemoryError where it fails; the steps measured before it are written."""
    log = Path(spec.output_dir) / f"bridge_training_{spec.model}_{store.new_stamp()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    ours = [sys.executable, "-m"]
    module = ["tensorprimat.engines.bridge", "--spec", str(spec_file)]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(spec.num_gpus), "-m"]
    brought = result_file.with_name("environment.json")
    print(f"Megatron-Bridge starts; its log: {log}", flush=True)
    with log.open("xb", buffering=0) as file:
        preparing = [*ours, *module, "--environment", str(brought)]
        if failure := follow_launcher(preparing, file, name="Megatron-Bridge", spec=spec, environment=dict(os.environ)):
            raise failure
        variables = _variables(brought)  # set before the ranks start: CUDA and its allocator read them only once
        failure = follow_launcher(
            [*ours, *torchrun, *module, "--rank"], file, name="Megatron-Bridge", spec=spec, environment=variables
        )
    keep(lambda: _read(spec, log, detect_platform(), variables), result_file, name="Megatron-Bridge", failure=failure)


def _variables(brought: Path) -> dict[str, str]:
    """Return the environment of the ranks: the recipe's variables, which the user's own values override."""
    variables: dict[str, str] = json.loads(brought.read_text())
    # Expandable segments prevent fragmentation of the allocator's memory.
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **variables, **os.environ}


def _read(spec: RunSpec, log: Path, machine: Machine, variables: Mapping[str, str]) -> Result:
    """Return the log as the result of this run. Raises InputError where the log contains no usable step.

    variables: environment of the ranks.
    """
    facts = UserFacts(
        model_name=spec.model,
        num_gpus=spec.num_gpus * spec.num_nodes,
        **{name: getattr(spec, name) for name in OF_THE_LOG},
    )
    result = logs.read(log, facts=facts)
    config = result.training_config
    unstated = {name: getattr(spec, name) for name in _STATED if getattr(config, name) is None}
    if spec.precision == "fp8" and config.fp8_recipe is None:
        unstated["fp8_recipe"] = FP8_RECIPE
    return result.changed(
        platform=machine.platform,
        gpu_info=machine.gpu_info,
        methodology=spec.methodology,
        training_config=config.changed(
            **unstated,
            data="mock",
            environment=environment.speed_variables(variables),
            versions={**environment.versions(), **environment.gpu_software(machine.platform, machine.gpu_ids)},
            framework="Megatron-Bridge",
            framework_version=None if (installed := find_package("megatron-bridge")) is None else installed.version,
        ),
        provenance=result.provenance.changed(engine="bridge", host=machine.host, gpu_ids=machine.gpus_of(spec)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("tensorprimat.engines.bridge", __doc__, needs_result=False)
    parser.add_argument("--rank", action="store_true", help="train as one rank that torchrun started")
    parser.add_argument("--environment", type=Path, metavar="FILE", help="write the recipe's variables and exit")

    def train_or_rank(spec: RunSpec, options: argparse.Namespace) -> None:
        if options.environment is not None:
            write_environment(spec, options.environment)
        elif options.rank:
            train_rank(spec)
        elif options.result is None:
            parser.error("--result is needed")
        else:
            train(spec, options.spec, options.result)

    return run_spec("bridge", RunSpec, parser, train_or_rank, argv)


if __name__ == "__main__":
    sys.exit(main())
