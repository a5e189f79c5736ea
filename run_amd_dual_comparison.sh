#!/usr/bin/env bash
# Train with Primus under two methodologies: the vendor's best configuration (max), and the same configuration on both
# platforms to the letter (identical). The results carry the methodology's name and are never mixed.
#
#   ./run_amd_dual_comparison.sh [MODEL] [FLAG...]
#   ./run_amd_dual_comparison.sh
#   FAIR_CONFIG=1 TRAIN_ITERS=50 ./run_amd_dual_comparison.sh llama
#
# MODEL is llama, qwen or all (default); further flags go to benchmark.py. The matching commands for
# the NVIDIA machine are printed at the end: ./benchmark.py with --methodology max and with --methodology identical.
# Where the vendors' batch or sequence differ under max (Qwen, MI355X), steps are not compared: for the same batch with
# each vendor's tuning, run ./benchmark.py --methodology agreed on both machines.
#
# FAIR_CONFIG=1     only the identical configuration
# PRIMUS_PATH, PRIMUS_GPU_MODEL, TRAIN_ITERS, HF_TOKEN as in run_primus_llama.sh
#
# The identical configuration is a copy of Primus's own with the changed values, in output/; the checkout stays as it is.
# Exit codes: 0 done, 1 a training failed, 2 usage. After a failed methodology the other still runs.
set -euo pipefail

# shellcheck source=tools/primus.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/primus.sh"
folder_of "${BASH_SOURCE[0]}" "$@"
model=all
if [[ $# -gt 0 && $1 != -* ]]; then
  model=$1
  shift
fi
methodologies=(max identical)
[[ ${FAIR_CONFIG:-0} == 1 ]] && methodologies=(identical)
worst=0
for methodology in "${methodologies[@]}"; do
  echo "=== methodology: $methodology ==="
  primus_train "$here" "$model" --methodology "$methodology" "$@" || worst=$?
done
echo "Next, on the NVIDIA machine:"
for methodology in "${methodologies[@]}"; do
  echo "  ./benchmark.py --model $model --methodology $methodology"
done
echo "Then, with the results of both machines in one folder: python3 compare_results.py"
exit "$worst"
