"""`python3 -m tensorprimat …`: the command `tprimat` without installing it."""

import sys

from tensorprimat.cli import main

if __name__ == "__main__":
    sys.exit(main())
