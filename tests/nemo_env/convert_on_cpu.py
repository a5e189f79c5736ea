"""`convert_checkpoint.py` without Transformer Engine: NeMo's real importer, with stand-ins for the layers.

    PYTHONPATH=<repository>:<shared>/nemo_on_cpu python tests/nemo_env/convert_on_cpu.py llama qwen

Every model named, each from the folder "from MODEL" to the folder "to MODEL", in one process, which imports NeMo once.

NeMo's importers write into layers that hold a norm and the linear after it together, as Transformer Engine's do.
Megatron's own hold them apart and keep norms in float32, so without Transformer Engine, which has to be built for a
GPU, an import stops at the first of them.
"""

import sys

import cpu_shim  # noqa: F401  first, before anything of NeMo
import torch
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from nemo.collections.llm.gpt.model import base

from tensorprimat.cli import main
from tensorprimat.engines.nemo import conversion


class NormAndLinear(ColumnParallelLinear):
    """Parameters named, shaped and typed as Transformer Engine's LayerNormColumnParallelLinear has them."""

    def __init__(self, input_size, output_size, *, config, **options):
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm_weight = torch.nn.Parameter(torch.zeros(input_size, dtype=config.params_dtype))


class Norm(torch.nn.RMSNorm):
    def __init__(self, config, hidden_size, eps):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)


def layers(config):
    """Return Megatron's own layers with those two in them."""
    spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization=config.normalization)
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
    parts.self_attention.submodules.linear_qkv = parts.mlp.submodules.linear_fc1 = NormAndLinear
    return TransformerBlockSubmodules(layer_specs=[spec] * config.num_layers, layer_norm=Norm)


if __name__ == "__main__":
    rope_utils.fused_apply_rotary_pos_emb = torch.nn.Identity()  # required; nothing is computed here
    base.local_layer_spec = layers
    conversion.LAYERS_OF = "megatron"
    for model in sys.argv[1:]:
        arguments = ["--model", model, "--source", f"from {model}", "--output", f"to {model}"]
        if code := main(["convert", *arguments], program="convert_checkpoint.py"):
            sys.exit(code)
