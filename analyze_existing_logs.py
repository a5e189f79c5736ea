#!/usr/bin/env python3
"""What folders of old training data hold: the door to `tprimat analyze` (--help is the manual)."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main(["analyze", *sys.argv[1:]], program="analyze_existing_logs.py"))
