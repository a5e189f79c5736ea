#!/usr/bin/env python3
"""Survey folders of old training data: the entry point of `tprimat analyze` (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["analyze", *sys.argv[1:]], program="analyze_existing_logs.py"))
