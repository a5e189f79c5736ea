"""NVIDIA's performance settings for NeMo 2 recipes, copied as one block from NeMo's own performance scripts.

Source: NVIDIA/NeMo, scripts/performance (helpers.py, executors.py, llm/pretrain_llama3_8b.py), PerfEnvPlugin of
nemo.lightning.run.plugins and `pretrain_performance_optimizations` of the recipes, read at commit 8cfedd72 of
2025-09-20, and for the GPUs of the Hopper generation at v2.4.0rc2 (7ac5a8eb), the last version that trains there
without Megatron's FSDP; its block is the same. NVIDIA publishes the settings for Llama 3 8B; all three models get them,
because qwen's and mistral's recipes have no performance mode of their own. Only CUDA graphs, which NVIDIA's table
switches on by model and GPU, are for llama alone.

Fusions are those of Llama31Config8B, which qwen's and mistral's configurations leave off; Megatron-Bridge sets the
rotary one in every performance recipe (perf_recipes/_common.py, v0.6.0).
"""

from __future__ import annotations

from typing import Any

from tensorprimat.core.spec import RunSpec

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


def apply(recipe: Any, spec: RunSpec, device_name: str | None) -> None:
    """Set NVIDIA's performance settings in a recipe, a `nemo_run.Partial` that has its parallel sizes and precision.

    Raises ImportError without NeMo.
    """
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
