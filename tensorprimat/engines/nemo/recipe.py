"""NeMo 2 recipes of the three models with every value set explicitly and the BenchmarkCallback added.

A recipe's own defaults differ by model (llama: context parallel 2, global batch 512; qwen: tensor parallel 2, micro
batch 2, global batch 32), so the RunSpec replaces all of them. Data are NeMo's mock tokens; the tokenizer is a null
tokenizer with the size of the model's own vocabulary, because the recipe's default would download one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import profiling
from tensorprimat.engines.nemo import performance as nemo_performance
from tensorprimat.models import presets

NEMO_RECIPES = {"llama": "llama31_8b", "qwen": "qwen25_7b", "mistral": "mistral_7b"}
"""Our model → its recipe in nemo.collections.llm."""

_PRECISIONS = {"bf16": "bf16_mixed", "fp8": "bf16_with_fp8_mixed", "fp16": "fp16_mixed"}
"""Our precision → NeMo's recipe for it; fp8 is hybrid with delayed scaling."""


def build_recipe(spec: RunSpec, *, result_file: str | None = None, device_name: str | None = None) -> Any:
    """Return the recipe as `nemo_run.Partial`, ready to run or to serialise. device_name: name of the GPUs.

    Raises UsageError for a precision that NeMo has no recipe for, ImportError without NeMo.
    """
    import nemo_run as run
    from nemo.collections import llm

    recipe = getattr(llm, NEMO_RECIPES[spec.model]).pretrain_recipe(
        name=f"tensorprimat_{spec.model}",
        dir=str(Path(spec.output_dir) / "nemo"),  # its own logs
        num_nodes=spec.num_nodes,
        num_gpus_per_node=spec.num_gpus,
    )
    _set_parallelism(recipe, spec)
    _set_data(recipe, spec)
    _set_trainer(recipe, spec)
    for name, value in spec.recompute.megatron.items():
        setattr(recipe.model.config, name, value)
    nemo_performance.apply(recipe, spec, device_name)
    ours = callback(run, spec, result_file, device_name)
    recipe.trainer.callbacks = [*recipe.trainer.callbacks, ours, *_profilers(run, spec)]
    return recipe


def precision_recipe(spec: RunSpec) -> str:
    """Return NeMo's name for the spec's precision. Raises UsageError where it has none."""
    if spec.precision not in _PRECISIONS:
        raise UsageError(f"--precision {spec.precision}: NeMo trains in {', '.join(_PRECISIONS)}")
    return _PRECISIONS[spec.precision]


def callback(run: Any, spec: RunSpec, result_file: str | None, device_name: str | None) -> Any:
    """Return the BenchmarkCallback as a `run.Config`, because a live instance cannot be serialised.

    Its training_config contains settings that NeMo's objects do not state.
    """
    from tensorprimat.engines.callback import BenchmarkCallback

    settings: dict[str, Any] = {"data": "mock", "seed": spec.seed}
    if nemo_performance.uses_cuda_graphs(spec, device_name):
        settings["cuda_graphs"] = True
    return run.Config(
        BenchmarkCallback,
        output_dir=spec.output_dir,
        model_name=spec.model,
        preset=spec.preset,
        engine="nemo",
        methodology=spec.methodology,
        warmup_steps=spec.warmup_steps,
        training_config=settings,
        result_file=result_file,
    )


def _profilers(run: Any, spec: RunSpec) -> list[Any]:
    """Return a profiler of the first steps after the warm-up, as a `run.Config`, if the spec requests one."""
    if profiling.STEM not in spec.options:
        return []
    from tensorprimat.engines.torch.profile import StepProfiler

    return [run.Config(StepProfiler, stem=spec.options[profiling.STEM], first_step=spec.warmup_steps)]


def _set_parallelism(recipe: Any, spec: RunSpec) -> None:
    import torch

    strategy = recipe.trainer.strategy
    for name in MODEL_PARALLEL:
        setattr(strategy, name, getattr(spec, name))
    strategy.virtual_pipeline_model_parallel_size = None
    strategy.sequence_parallel = spec.tensor_model_parallel_size > 1
    strategy.pipeline_dtype = torch.bfloat16 if spec.pipeline_model_parallel_size > 1 else None


def _set_data(recipe: Any, spec: RunSpec) -> None:
    import nemo_run as run
    from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer

    recipe.data.micro_batch_size = spec.micro_batch_size
    recipe.data.global_batch_size = spec.global_batch_size
    recipe.data.seq_length = recipe.model.config.seq_length = spec.sequence_length  # two settings
    shape = presets.find_preset(spec.model, spec.preset).shape
    for holder in (recipe.data, recipe.model):
        holder.tokenizer = run.Config(
            NullTokenizer, vocab_size=shape.vocab_size - 1
        )  # it adds an end-of-document token
    if shape.sliding_window is not None:
        recipe.model.config.window_size = (shape.sliding_window, 0)  # NeMo sets a list, which Megatron cannot hash


def _set_trainer(recipe: Any, spec: RunSpec) -> None:
    from nemo.collections.llm.recipes.precision import mixed_precision

    trainer = recipe.trainer
    trainer.plugins = getattr(mixed_precision, precision_recipe(spec))()
    trainer.max_steps = spec.max_steps
    trainer.log_every_n_steps = 1  # one printed line per step, so that log and callback can be compared
    trainer.val_check_interval = None
    trainer.limit_val_batches = trainer.num_sanity_val_steps = 0
    trainer.enable_checkpointing = trainer.logger = False
    recipe.log.ckpt = recipe.log.tensorboard = recipe.resume = None
