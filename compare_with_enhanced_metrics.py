#!/usr/bin/env python3
"""Results with MFU, memory, energy, cost and time to train: the door to `tprimat enhance` (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["enhance", *sys.argv[1:]], program="compare_with_enhanced_metrics.py"))
