#!/usr/bin/env python3
"""Command line of `tprimat pretrain` for Qwen 2.5 7B: train it with NeMo and measure it (--help is the manual).

python3 pretrain_qwen.py --steps 10
torchrun --nproc-per-node 8 pretrain_qwen.py --methodology identical

A flag overrides an environment variable, which overrides DEFAULTS. DEFAULTS may hold every option of --help by name,
such as "precision": "bf16". The methodology sets all other values.
"""

import sys

from tensorprimat.cli import main

DEFAULTS = {"model": "qwen", "steps": 20, "warmup_steps": 5}

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]], program="pretrain_qwen.py", defaults=DEFAULTS))
