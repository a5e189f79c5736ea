# Functions that the shell scripts at the top share. Sourced, never run.
# shellcheck shell=bash

# The comment at the top of a script, as its manual.
manual_of() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$1"
}

# The Python of the checkout in $1, else the one on the path.
python_of() {
  local python="$1/.venv/bin/python"
  [[ -x $python ]] || python=python3
  printf '%s\n' "$python"
}

# primus_train CHECKOUT MODEL [FLAG...]: train with Primus for TRAIN_ITERS iterations, read the log, name the next step.
primus_train() {
  local here=$1 model=$2 iterations=${TRAIN_ITERS:-10}
  shift 2
  if [[ ! $iterations =~ ^[0-9]{1,9}$ ]] || ((10#$iterations < 2)); then
    echo "TRAIN_ITERS=$iterations: must be a number of iterations, at least 2" >&2
    return 2
  fi
  export PRIMUS_PATH="${PRIMUS_PATH:-/workspace/Primus}"
  "$(python_of "$here")" "$here/benchmark.py" --engine primus --model "$model" --output "$here/output" \
    --warmup-steps 1 --steps "$((10#$iterations - 1))" "$@"
}

# folder_of SCRIPT [ARGUMENT...]: set `here` to the script's folder; with --help print its manual and end.
folder_of() {
  here="$(cd -- "$(dirname -- "$1")" && pwd)"
  if [[ ${2:-} == -h || ${2:-} == --help ]]; then
    manual_of "$1"
    exit 0
  fi
}

# primus_script SCRIPT MODEL [ARGUMENT...]: all that a run_primus_*.sh does.
primus_script() {
  local script=$1 model=$2
  shift 2
  folder_of "$script" "$@"
  primus_train "$here" "$model" "$@"
}

# command_script SCRIPT COMMAND [ARGUMENT...]: all that the script of one command does.
command_script() {
  local script=$1 command=$2
  shift 2
  folder_of "$script" "$@"
  PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$(python_of "$here")" -m tensorprimat "$command" "$@"
}
