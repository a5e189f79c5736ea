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

# settings_of CHECKOUT: set `settings` to the flags, and `iterations` to the TRAIN_ITERS, of config.env beside the scripts (CONFIG_ENV names another file), which
# both vendors' scripts read, so that they train the same work. The short names are those of earlier scripts.
settings_of() {
  local file=${CONFIG_ENV:-$1/config.env} name value flag unused=() mbs="" dp="" ga="" gbs=""
  settings=() iterations=""
  if [[ ! -f $file ]]; then
    [[ -z ${CONFIG_ENV:-} ]] && return 0
    echo "CONFIG_ENV=$file: no such file" >&2
    return 2
  fi
  while read -r name value || [[ -n $name ]]; do  # the last line may have no end
    flag=""
    case $name in
      MBS | MICRO_BATCH_SIZE) mbs=$value flag=micro-batch-size ;;
      GBS | GLOBAL_BATCH_SIZE) gbs=$value flag=global-batch-size ;;
      SL | SEQ_LEN | SEQUENCE_LENGTH) flag=sequence-length ;;
      TP | TENSOR_PARALLEL_SIZE) flag=tensor-parallel-size ;;
      PP | PIPELINE_PARALLEL_SIZE) flag=pipeline-parallel-size ;;
      CP | CONTEXT_PARALLEL_SIZE) flag=context-parallel-size ;;
      PRECISION | SEED | STEPS | METHODOLOGY | ACTIVATION_CHECKPOINTING) flag=${name,,} ;;
      DP) dp=$value ;;
      GA) ga=$value ;;
      TRAIN_ITERS) iterations=$value ;;
      *) unused+=("$name") ;;
    esac
    [[ -z $flag ]] || settings+=("--${flag//_/-}" "$value")
  done < <(sed -nE 's/^[[:space:]]*(export[[:space:]]+)?([A-Za-z_0-9]+)[[:space:]]*=[[:space:]]*["'\'']?([^#"'\'']*[^#"'\''[:space:]]).*$/\2 \3/p' "$file")
  if [[ -z $gbs && $mbs =~ ^[0-9]{1,6}$ && $dp =~ ^[0-9]{1,6}$ && $ga =~ ^[0-9]{1,6}$ ]]; then
    settings+=(--global-batch-size "$((10#$mbs * 10#$dp * 10#$ga))")
  fi
  echo "$file: ${settings[*]:-no setting}${unused:+; not used: ${unused[*]}}" >&2
}

# primus_train CHECKOUT MODEL [FLAG...]: train with Primus for TRAIN_ITERS iterations, read the log, name the next step.
primus_train() {
  local here=$1 model=$2 iterations settings
  shift 2
  settings_of "$here"
  iterations=${TRAIN_ITERS:-${iterations:-10}}
  if [[ ! $iterations =~ ^[0-9]{1,9}$ ]] || ((10#$iterations < 2)); then
    echo "TRAIN_ITERS=$iterations: must be a number of iterations, at least 2" >&2
    return 2
  fi
  export PRIMUS_PATH="${PRIMUS_PATH:-/workspace/Primus}"
  "$(python_of "$here")" "$here/benchmark.py" --engine primus --model "$model" --output "$here/output" \
    --warmup-steps 1 --steps "$((10#$iterations - 1))" "${settings[@]}" "$@"
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
