#!/usr/bin/env python3
"""Convert a Hugging Face checkpoint to a NeMo checkpoint: the door to `tprimat convert` (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]], program="convert_checkpoint.py"))
