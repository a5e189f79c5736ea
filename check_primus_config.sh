#!/usr/bin/env bash
# Show what a Primus configuration really trains (parallel sizes, batch, sequence, precision; `extends` and
# ${VAR:default} resolved) and where that differs from the NVIDIA side's configuration.
#
#   ./check_primus_config.sh [CONFIG] [FLAG...]
#   ./check_primus_config.sh
#   ./check_primus_config.sh my_config.yaml --methodology identical
#
# Without CONFIG: those that run_primus_all.sh would use. Flags: `python3 -m tensorprimat primus --help` lists them.
# PRIMUS_PATH and PRIMUS_GPU_MODEL as in run_primus_llama.sh. Exit codes: 0 shown, 2 usage or a file that cannot be read.
set -euo pipefail

# shellcheck source=tools/primus.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/primus.sh"
command_script "${BASH_SOURCE[0]}" primus "$@"
