#!/usr/bin/env python3
"""Command line of `tprimat convert`: Hugging Face checkpoint to NeMo checkpoint (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]], program="convert_checkpoint.py"))
