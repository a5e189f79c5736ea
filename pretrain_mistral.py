#!/usr/bin/env python3
"""Command line of `tprimat pretrain` for Mistral 7B: train it with NeMo and measure it (--help is the manual).

python3 pretrain_mistral.py --steps 10
torchrun --nproc-per-node 8 pretrain_mistral.py --methodology identical

A flag wins over an environment variable, and that over DEFAULTS, which may hold every option of --help by its name,
such as "precision": "bf16"; what none of them sets is the methodology's.
"""

import sys

from tensorprimat.cli import main

DEFAULTS = {"model": "mistral", "steps": 20, "warmup_steps": 5}

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]], program="pretrain_mistral.py", defaults=DEFAULTS))
