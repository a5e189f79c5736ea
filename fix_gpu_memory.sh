#!/usr/bin/env bash
# Show the processes that use GPU memory, and offer to end leftover Python training processes of yours.
#
#   ./fix_gpu_memory.sh [FLAG...]
#   ./fix_gpu_memory.sh
#   ./fix_gpu_memory.sh --dry-run
#   ./fix_gpu_memory.sh --pid 4711 --yes
#
# Flags: `python3 -m tensorprimat processes --help` lists them. Only a process that holds a GPU, belongs to you, runs
# Python, has lost its parent and session and uses neither CPU nor GPU (or is named by --pid) is ever ended: SIGTERM
# first, then a second question. In doubt it lists and ends nothing.
#
# There is no step that "clears PyTorch's cache": torch.cuda.empty_cache() gives back what the calling process itself
# has cached. Called in another process it frees nothing; memory comes back when its owner ends.
#
# Exit codes: 0 nothing to do, or done, 1 a process could not be ended, 2 usage, or --pid names one that is left alone.
set -euo pipefail

# shellcheck source=tools/primus.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/primus.sh"
command_script "${BASH_SOURCE[0]}" processes "$@"
