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
from tensorprimat.models import presets

NEMO_RECIPES = {"llama": "llama31_8b", "qwen": "qwen25_7b", "mistral": "mistral_7b"}
"""Our model → its recipe in nemo.collections.llm."""

_PRECISIONS = {"bf16": "bf16_mixed", "fp8": "bf16_with_fp8_mixed", "fp16": "fp16_mixed"}
"""Our precision → NeMo's recipe for it; fp8 is hybrid with delayed scaling."""

# NVIDIA's performance settings, copied as one block from NVIDIA/NeMo, scripts/performance (helpers.py, executors.py,
# llm/pretrain_llama3_8b.py), PerfEnvPlugin of nemo.lightning.run.plugins and `pretrain_performance_optimizations` of
# the recipes, read at commit 8cfedd72 of 2025-09-20, and for the GPUs of the Hopper generation at v2.4.0rc2 (7ac5a8eb),
# the last version that trains there without Megatron's FSDP; its block is the same. NVIDIA publishes the settings for
# Llama 3 8B; all three models get them, because qwen's and mistral's recipes have no performance mode of their own.
# Only CUDA graphs, which NVIDIA's table switches on by model and GPU, are for llama alone. Fusions are those of
# Llama31Config8B, which qwen's and mistral's configurations leave off; Megatron-Bridge sets the rotary one in every
# performance recipe (perf_recipes/_common.py, v0.6.0).
GARBAGE_COLLECTION_STEPS = 100
LAYERNORM_MARGIN = 16  # number of streaming multiprocessors that layer norm leaves for communication
BLACKWELL = ("B200", "GB200", "B300", "GB300")

_ALWAYS = {
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "NCCL_NVLS_ENABLE": "0",  # saves memory: NVLS is needed only for registered user buffers, which are not used
    "NVTE_FLASH_ATTN": "1",
    "NVTE_FUSED_ATTN": "1",
    "NVTE_FWD_LAYERNORM_SM_MARGIN": str(LAYERNORM_MARGIN),
    "NVTE_BWD_LAYERNORM_SM_MARGIN": str(LAYERNORM_MARGIN),
}
"""Environment variables that the performance scripts set for every run."""

GRACE = {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_C2C": "1"}
"""Environment variables of GB200, whose GPUs reach the network card through their CPU."""

FUSIONS = ("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion")
"""Fused kernels that NVIDIA's configuration of Llama 3 8B switches on; they fit all three models, which have SwiGLU
and rotary positions."""

GRAPHS_ON = ("B200", "GB200")
"""GPUs for which NVIDIA's table of recommended configurations switches on CUDA graphs for Llama 3 8B."""


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
    _set_performance(recipe, spec, device_name)
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
    if uses_cuda_graphs(spec, device_name):
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


def performance_environment(spec: RunSpec, device_name: str | None) -> dict[str, str]:
    """Return the environment variables that NVIDIA sets for this configuration on this GPU."""
    is_blackwell = any(name in (device_name or "") for name in BLACKWELL)
    variables = dict(_ALWAYS)
    if spec.tensor_model_parallel_size > 1 or spec.context_parallel_size > 1:
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "32" if is_blackwell else "1"
    if spec.pipeline_model_parallel_size > 1:
        variables["NCCL_P2P_NET_CHUNKSIZE"] = "2097152"
    if "GB200" in (device_name or ""):
        variables |= GRACE
    # NVIDIA notes that expandable segments fail on B200.
    fails = "B200" in (device_name or "") and "GB200" not in (device_name or "")
    if not fails and not uses_cuda_graphs(spec, device_name):
        variables["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return variables


def uses_cuda_graphs(spec: RunSpec, device_name: str | None) -> bool:
    """Return True if NVIDIA's table switches CUDA graphs on; False with recomputed activations, for which Megatron
    Core does not support them."""
    is_listed = any(name in (device_name or "") for name in GRAPHS_ON)
    return spec.model == "llama" and is_listed and spec.recompute == "none"


def _set_performance(recipe: Any, spec: RunSpec, device_name: str | None) -> None:
    """Set NVIDIA's performance settings in a recipe that has its parallel sizes and precision."""
    import nemo_run as run
    from megatron.core.distributed import DistributedDataParallelConfig
    from nemo.lightning.pytorch.callbacks.garbage_collection import GarbageCollectionCallback
    from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback

    recipe.trainer.plugins.grad_reduce_in_fp32 = False
    recipe.optim.config.use_precision_aware_optimizer = spec.precision == "bf16"
    recipe.model.config.cross_entropy_fusion_impl = "te"
    for fusion in FUSIONS:
        setattr(recipe.model.config, fusion, True)
    recipe.model.config.enable_cuda_graph = uses_cuda_graphs(spec, device_name)
    recipe.trainer.strategy.use_te_rng_tracker = recipe.model.config.enable_cuda_graph
    recipe.trainer.strategy.ddp = run.Config(
        DistributedDataParallelConfig,
        check_for_nan_in_grad=False,
        check_for_large_grads=False,
        grad_reduce_in_fp32=False,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        average_in_collective=True,
    )
    overlap = run.Config(MegatronCommOverlapCallback, tp_comm_overlap=False)
    overlap.overlap_param_gather_with_optimizer_step = False  # only with a virtual pipeline, which is not set here
    collection = run.Config(
        GarbageCollectionCallback, gc_interval_train=GARBAGE_COLLECTION_STEPS, gc_interval_val=GARBAGE_COLLECTION_STEPS
    )
    kept = [callback for callback in recipe.trainer.callbacks or [] if not _is_of(callback, (overlap, collection))]
    recipe.trainer.callbacks = [*kept, collection, overlap]


def _is_of(callback: Any, others: tuple[Any, ...]) -> bool:
    """Return True if a configured callback has the same class as one of the others."""
    kind = getattr(callback, "__fn_or_cls__", type(callback))
    return any(kind is other.__fn_or_cls__ for other in others)
