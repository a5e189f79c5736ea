"""Shrinks the project's own NeMo recipe so far that it trains on a CPU; run as a script it is one training.

    PYTHONPATH=<repository>:<shared>/nemo_on_cpu python tests/nemo_env/tiny.py llama result.json [steps]

`cpu_shim` (from the shared folder) stands in for the CUDA calls that Megatron makes unconditionally.
"""

import sys
from pathlib import Path

import cpu_shim  # noqa: F401  first, before anything of NeMo
import nemo_run as run
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from nemo import lightning as nl
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
from nemo.collections.llm.gpt.model.base import gpt_data_step, local_layer_spec

from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.nemo import engine as nemo
from tensorprimat.engines.nemo import recipe as nemo_recipe

TINY_MODEL = {
    "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "num_query_groups": 2,
    "apply_rope_fusion": False, "bias_dropout_fusion": False, "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False, "bias_activation_fusion": False, "cross_entropy_loss_fusion": False,
    "cross_entropy_fusion_impl": "native", "persist_layer_norm": False, "use_cpu_initialization": True,
}  # fmt: skip
VOCABULARY = 512


def data_step_with_mask(iterator):
    """Provide the attention mask that NeMo's mock data drop; without Transformer Engine the layers need one."""
    batch = gpt_data_step(iterator)
    length = batch["tokens"].shape[1]
    batch["attention_mask"] = torch.tril(torch.ones(length, length)).lt(0.5)[None, None]
    return batch


def shrink(recipe):
    """Reduce the recipe to a few layers, fp32 and gloo, without fusion. Batch, sequence, steps and callback stay."""
    config = recipe.model.config
    for name, value in TINY_MODEL.items():
        setattr(config, name, value)
    config.transformer_layer_spec = local_layer_spec
    config.data_step_fn = data_step_with_mask
    for holder in (recipe.data, recipe.model):
        holder.tokenizer = run.Config(NullTokenizer, vocab_size=VOCABULARY)
    recipe.data.num_workers, recipe.data.pin_memory = 0, False
    recipe.data.num_train_samples, recipe.data.num_val_samples, recipe.data.num_test_samples = 256, 8, 8
    strategy = recipe.trainer.strategy
    strategy.process_group_backend = "gloo"
    strategy.ckpt_async_save = False
    strategy.ddp = run.Config(
        DistributedDataParallelConfig, overlap_grad_reduce=False, overlap_param_gather=False,
        grad_reduce_in_fp32=False, average_in_collective=False,
    )  # fmt: skip
    recipe.optim.config.use_distributed_optimizer = recipe.optim.config.use_precision_aware_optimizer = False
    recipe.trainer.callbacks = [c for c in recipe.trainer.callbacks if "Overlap" not in c.__fn_or_cls__.__name__]
    recipe.optim.config.clip_grad = 0.0
    recipe.optim.config.bf16 = False
    recipe.trainer.plugins = run.Config(nl.MegatronMixedPrecision, precision="32")
    recipe.trainer.accelerator = "cpu"
    return recipe


def spec(model, output_dir, *, steps=4, devices=1):
    """Return the spec of the tiny training; precision is bf16 for the recipe and fp32 in the shrunk model."""
    return RunSpec(
        model=model, preset="full", engine="nemo", steps=steps, warmup_steps=1, micro_batch_size=1,
        global_batch_size=4, sequence_length=64, precision="bf16", num_gpus=devices, platform="cpu",
        output_dir=str(output_dir),
    )  # fmt: skip


if __name__ == "__main__":
    model, result, *rest = sys.argv[1:]
    devices = int(rest[1]) if len(rest) > 1 else 1
    tiny = spec(model, Path(result).parent, steps=int(rest[0]) if rest else 4, devices=devices)
    nemo.execute(shrink(nemo_recipe.build_recipe(tiny, result_file=result)), tiny)
