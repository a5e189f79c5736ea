#!/usr/bin/env python3
"""Benchmark every model on this machine, or read its logs: the door to `tprimat run` (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]], program="benchmark.py"))
