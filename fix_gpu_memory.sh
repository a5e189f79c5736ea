#!/usr/bin/env bash
# Show the processes that use GPU memory, and offer to end leftover Python training processes of yours.
#
#   ./fix_gpu_memory.sh [FLAG...]
#   ./fix_gpu_memory.sh
#   ./fix_gpu_memory.sh --dry-run
#   ./fix_gpu_memory.sh --pid 4711 --yes
#
# Flags: `python3 -m tensorprimat processes --help` lists them. Only a Python process of yours that has a GPU open can
# be ended, and only if it is named by --pid, or is a leftover: it has lost its parent and session, and uses neither
# CPU, files nor GPU. SIGTERM comes first; before SIGKILL it asks again, unless --yes. In doubt a process is listed
# and not ended.
#
# There is no step that "clears PyTorch's cache": torch.cuda.empty_cache() gives back what the calling process itself
# has cached. Called in another process it frees nothing; memory comes back when its owner ends.
#
# Exit codes: 0 shown, and selected processes have ended; 1 a process could not be ended; 2 usage, or --pid names a
# process that must not be ended.
set -euo pipefail

# shellcheck source=tools/primus.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/primus.sh"
command_script "${BASH_SOURCE[0]}" processes "$@"
