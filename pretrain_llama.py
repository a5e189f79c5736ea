#!/usr/bin/env python3
"""Command line of `tprimat pretrain` for Llama 3.1 8B: train it with NeMo and measure it (--help is the manual).

python3 pretrain_llama.py --steps 10
torchrun --nproc-per-node 8 pretrain_llama.py --methodology identical

A flag wins over an environment variable, and that over the constants below; None leaves a value to the methodology.
"""

import sys

from tensorprimat.cli import main

DEFAULTS = {
    "model": "llama",
    "steps": 20,
    "warmup_steps": 5,
    "methodology": None,  # agreed where the catalogue knows the GPU
    "tensor_parallel_size": None,
    "pipeline_parallel_size": None,
    "context_parallel_size": None,
    "micro_batch_size": None,
    "global_batch_size": None,
    "sequence_length": None,
    "precision": None,  # bf16 or fp8
    "num_gpus": None,  # all of this machine
    "num_nodes": 1,
    "output": "output",
}

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]], program="pretrain_llama.py", defaults=DEFAULTS))
