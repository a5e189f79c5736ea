#!/usr/bin/env bash
# Train Llama 3.1 8B, then Qwen 2.5 7B, with Primus on this machine's AMD GPUs and turn the logs into results.
#
#   ./run_primus_all.sh [FLAG...]
#   ./run_primus_all.sh
#   TRAIN_ITERS=50 PRIMUS_GPU_MODEL=MI355X ./run_primus_all.sh --precision fp8
#   ./run_primus_all.sh --dry-run
#
# Needs a Primus checkout and an AMD GPU. Flags go to benchmark.py (--help lists them); results go to output/ next to
# this script, the whole output of Primus to output/training_MODEL.log and a primus_training_MODEL_….log of this run.
#
# PRIMUS_PATH       the checkout (default /workspace/Primus)
# PRIMUS_GPU_MODEL  MI300X, MI325X, MI355X … (default: as rocm-smi, amd-smi or rocminfo report)
# TRAIN_ITERS       iterations of a run, warm-up included (default 10; take 50 or more, and --runs 3 for an interval)
# LLAMA_CONFIG, QWEN_CONFIG  a Primus configuration of your own instead of the one for this GPU
# HF_TOKEN          for the tokenizer of Llama 3.1, which Primus fetches
#
# Exit codes: 0 done, 1 the training failed (its log stays), 2 usage, or no checkout, GPU or configuration.
set -euo pipefail

# shellcheck source=tools/primus.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/primus.sh"
primus_script "${BASH_SOURCE[0]}" all "$@"
