"""Primus checkouts as its versions lay them out, with configurations of our own, whose launcher only prints."""

from __future__ import annotations

import textwrap
from pathlib import Path

EXPERIMENT = """
work_group: ${FAKE_TEAM:nobody}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: MODEL.yaml
    overrides:
      train_iters: 50
      micro_batch_size: 2
      global_batch_size: 32
      seq_length: ${FAKE_LENGTH:4096}
      max_position_embeddings: 4096
      lr_warmup_iters: 2
      lr_decay_iters: null
      tensor_model_parallel_size: 1
"""
TRAINER = """
extends:
  - trainer_base.yaml
seq_length: 1024
global_batch_size: 16
"""
TRAINER_BASE = "bf16: true\nfp16: false\nfp8: null\nmicro_batch_size: 4\nlr_decay_iters: null\n"
MODEL = """
num_layers: 32
hidden_size: 4096
ffn_hidden_size: 14336
num_attention_heads: 32
pipeline_model_parallel_size: 1
context_parallel_size: 1
"""

LAUNCHER = r"""#!/usr/bin/env bash
# Prints what a training would: the command, then one line per iteration. FAKE_FAIL_AFTER=N fails after N iterations.
config="${EXP:-}"
while [[ $# -gt 0 ]]; do
  [[ $1 == --config ]] && config=$2
  [[ $1 == --dry-run ]] && dry=1
  shift
done
echo "[fake] GPUS_PER_NODE=$GPUS_PER_NODE config=$config"
echo "[NODE-0(there)] [INFO]     HSA_NO_SCRATCH_RECLAIM=1"
echo "[NODE-0(there)] [INFO]     NCCL_DEBUG=<unset>"
echo "[NODE-0(there)] GPU_MAX_HW_QUEUES: 2"
echo "[NODE-0(there)] [INFO]     HF_TOKEN=secret"
[[ -n ${dry:-} ]] && { pip install fake-requirement; echo "[fake] would train"; exit "${FAKE_DRY_RUN_EXIT:-0}"; }
iterations="$(sed -n 's/^ *train_iters: //p' "$config")"
batch="$(sed -n 's/^ *global_batch_size: //p' "$config")"
for ((i = 1; i <= iterations; i++)); do
  printf '[20260105 10:00:%02d][rank-7/8][INFO ] [--------trainer.py:2488] :  iteration %8d/%8d | ' \
    "$((i % 60))" "$i" "$iterations"
  printf 'consumed samples: %12d | elapsed time per iteration (ms): %d.5/2000.5 | ' \
    "$((i * batch))" "$((i == 1 ? 9000 : 2000 + i % 3))"
  printf 'hip mem usage/free/total/usage_ratio: 120.00GB/71.98GB/191.98GB/62.51%% | '
  printf 'throughput per GPU (TFLOP/s/GPU): 400.0/400.0 | tokens per GPU (tokens/s/GPU): 8190.0/8190.0 | '
  printf 'learning rate: 1.000000E-05 | global batch size: %5d | lm loss: 1.0%dE+01 |\n' "$batch" "$((i % 10))"
  if [[ $i == "${FAKE_FAIL_AFTER:-never}" ]]; then
    echo "${FAKE_LAST_WORDS:-RuntimeError: the fake was told to fail}"
    echo "torchrun exited with code 1"
    exit 1
  fi
  [[ -n ${FAKE_SLOW:-} ]] && sleep 0.2
done
exit 0
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def checkout(root: Path, *, gpus: tuple[str, ...] = ("MI300X",), old: bool = False) -> Path:
    """Return a checkout as of v26 (primus-cli, folders per GPU, precision in names) or, old, as of v0.2 (neither)."""
    configs = root / "primus" / "configs"
    write(
        configs / "modules" / "megatron" / "pre_trainer.yaml", TRAINER.replace("extends", "bases" if old else "extends")
    )
    write(configs / "modules" / "megatron" / "trainer_base.yaml", TRAINER_BASE)
    examples = root / "examples" / "megatron" / "configs"
    for stem in ("llama3.1_8B", "qwen2.5_7B"):
        experiment = EXPERIMENT.replace("MODEL", stem)
        write(configs / "models" / "megatron" / f"{stem}.yaml", MODEL)
        if old:
            write(examples / f"{stem}-pretrain.yaml", experiment)
        for gpu in () if old else gpus:
            write(examples / gpu / f"{stem}-BF16-pretrain.yaml", experiment)
            write(examples / gpu / f"{stem}-FP8-pretrain.yaml", experiment + "      fp8: hybrid\n")
    write(root / "examples" / "run_pretrain.sh", LAUNCHER)
    if not old:
        write(root / "primus-cli", LAUNCHER)
        write(root / "runner" / "primus-cli-direct.sh", LAUNCHER)
    return root


def program(folder: Path, name: str, body: str) -> Path:
    """Return an executable shell program of that name."""
    path = write(folder / name, "#!/usr/bin/env bash\n" + textwrap.dedent(body))
    path.chmod(0o755)
    return path
