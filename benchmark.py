#!/usr/bin/env python3
"""Command line of `tprimat run`: benchmark every model on this machine, or read its logs (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]], program="benchmark.py"))
