#!/usr/bin/env python3
"""Command line of `tprimat enhance`: results with MFU, memory, energy, cost and time to train (see --help)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["enhance", *sys.argv[1:]], program="compare_with_enhanced_metrics.py"))
