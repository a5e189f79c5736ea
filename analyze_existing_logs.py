#!/usr/bin/env python3
"""Command line of `tprimat analyze`: survey folders of old training data (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["analyze", *sys.argv[1:]], program="analyze_existing_logs.py"))
