#!/usr/bin/env python3
"""Command line of `tprimat extract`: read a training log into a result file (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["extract", *sys.argv[1:]], program="extract_primus_metrics.py"))
