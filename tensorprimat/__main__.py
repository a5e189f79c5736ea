"""`python3 -m tensorprimat …`: the command `tprimat` without installing it."""

import sys

if __name__ == "__main__":
    try:
        from tensorprimat.cli import main

        code = main()
    except KeyboardInterrupt:  # before the command line takes care of it
        code = 1
    sys.exit(code)
