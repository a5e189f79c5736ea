#!/usr/bin/env bash
# Benchmark one model, or all, on this machine; results go to output/ next to this script.
#
#   ./run_benchmark.sh MODEL [RUNS] [FLAG...]
#   ./run_benchmark.sh llama 3
#   ./run_benchmark.sh all 1 --engine torch --steps 50
#
# MODEL is llama, qwen, mistral or all; RUNS defaults to 1; further flags go to benchmark.py (--help lists them).
# A config.env beside this script (CONFIG_ENV names another) sets flags, the same for run_primus_*.sh; flags override it.
# Exit codes are those of benchmark.py: 0 done, 1 a run failed, 2 usage.
set -euo pipefail

# shellcheck source=tools/primus.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/primus.sh"

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"

if [[ $# -eq 0 || $1 == -* ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
  [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
  exit 2
fi

python="$(python_of "$here")"
model=$1 runs=1
shift
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  runs=$1
  shift
fi
settings_of "$here"
if [[ $iterations =~ ^[0-9]{1,9}$ ]]; then # warm-up included, as on AMD
  settings+=(--warmup-steps 1 --steps "$((10#$iterations - 1))")
fi
exec "$python" "$here/benchmark.py" --model "$model" --runs "$runs" --output "$here/output" "${settings[@]}" "$@"
