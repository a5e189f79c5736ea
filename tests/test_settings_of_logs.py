"""Settings that frameworks print, in their present spellings: each is read where it is stated, none is guessed."""

import json
from typing import Any

import pytest
from each import in_each

from tensorprimat.core.units import GIB

MEGATRON = (
    "iteration {0:8d}/    5000 | consumed samples: {0}28 | elapsed time per iteration (ms): 2701.3/2712.7 |"
    " global batch size:   128 | lm loss: 1.1{0:04d}E+01 |"
)
MAXTEXT = (
    "completed step: {0}, seconds: 5.4, TFLOP/s/device: 1.5, Tokens/s/device: 9.1, total_weights: 9, loss: 11.{0:03d}"
)
TORCHTITAN = "step: {0:2}  loss:  5.{0:04d}  memory: 1.00GiB(1.00%)  tps: 1,000"
PRIMUS_COLOURS = {
    "loguru": "[\x1b[32m20251202 06:26:00\x1b[0m][\x1b[36mrank-7/8\x1b[0m][\x1b[1mINFO \x1b[0m] \x1b[1m[--t.py:25] : ",
    "cut bracket": "\x1b[32m20251202 06:26:00\x1b[0m][\x1b[36mrank-7/8\x1b[0m][\x1b[1mINFO \x1b[0m] \x1b[1m[t.py:2] : ",
    "lost escapes": "[[32m20251202 06:26:45[0m][[36mrank-7/8[0m][[1mINFO [0m] [1m[--------trainer.py:2560] : ",
    "leading rank": "0[[32m20251202 06:26:45[0m][[36mrank-7/8[0m][[1mINFO [0m] [1m[--------trainer.py:2560] : ",
    "spelled out": r"\e[32m20251202 06:26:00\e[0m][\e[36mrank-7/8\e[0m][\e[1mINFO \e[0m] \e[1m[----trainer.py:2] : ",
    "plain": "[20251202 06:26:00][rank-7/8][INFO ] [--------trainer.py:2560] : ",
}


def log(row: str, prefix: str = "", count: int = 15) -> str:
    return "".join(f"{prefix}{row.format(n)}\n" for n in range(1, count + 1))


@in_each("colours", PRIMUS_COLOURS)
@in_each("row", [MEGATRON, TORCHTITAN])
def test_coloured_primus_prefixes_give_the_world_size_and_the_date(read_text: Any, row: str, colours: str) -> None:
    result = read_text(log(row, PRIMUS_COLOURS[colours]))
    assert (result.training_config.num_gpus, result.platform, len(result.steps)) == (8, "amd", 15)
    assert result.timestamp is not None
    assert result.timestamp.startswith("2025-12-02T06:26")


@in_each("colours", PRIMUS_COLOURS)
def test_coloured_primus_prefixes_are_taken_off_maxtexts_rows(read_text: Any, colours: str) -> None:
    assert read_text(log(MAXTEXT, PRIMUS_COLOURS[colours])).source == "Primus (MaxText backend)"


BRIDGE = """
======================================================================
Configuration Summary (Non-Default Values vs Megatron Core)
======================================================================

[optimizer] Non-default values (vs Mcore OptimizerConfig):
  bf16: True  (Mcore default: False)
  lr: 0.0003  (Mcore default: None)

[model] Non-default values (vs Mcore TransformerConfig):
  bf16: True  (Mcore default: False)
  ffn_hidden_size: 14336  (Mcore default: None)
  fp8: 'hybrid'  (Mcore default: None)
  gated_linear_unit: True  (Mcore default: False)
  hidden_size: 4096  (Mcore default: 0)
  kv_channels: 128  (Mcore default: None)
  num_attention_heads: 32  (Mcore default: 0)
  num_layers: 32  (Mcore default: 0)
  num_query_groups: 8  (Mcore default: None)
  tensor_model_parallel_size: 4  (Mcore default: 1)

----------------------------------------------------------------------
Other Configuration Values:
----------------------------------------------------------------------

[train]:
  global_batch_size: 128
  micro_batch_size: 2

[dataset]:
  sequence_length: 8192

[tokenizer]:
  vocab_size: 128256
"""


def test_megatron_bridges_summary_of_differences_is_the_configuration(read_text: Any) -> None:
    result = read_text(BRIDGE + log(MEGATRON.replace("/2712.7", "")), num_gpus=8)
    config = result.training_config
    assert (config.tensor_model_parallel_size, config.pipeline_model_parallel_size) == (4, 1)
    assert (config.context_parallel_size, config.expert_model_parallel_size) == (1, 1)
    assert (config.precision, config.learning_rate, config.sequence_length) == ("fp8", 0.0003, 8192)
    assert (config.global_batch_size, config.micro_batch_size, config.data_parallel_size) == (128, 2, 2)
    assert (result.model.name, result.model.preset) == ("llama", "full")
    assert result.model.shape.num_key_value_heads == 8


def test_a_value_that_no_summary_names_stays_unknown_without_one(read_text: Any) -> None:
    text = "\n".join(line for line in BRIDGE.splitlines() if "Non-default" not in line)
    assert read_text(text + "\n" + log(MEGATRON)).training_config.pipeline_model_parallel_size is None


DEEPSPEED = (
    "[2026-01-05 08:01:00,250] [INFO] [timer.py:199:stop] epoch=0/micro_step={0}/global_step={0},"
    " RunningAvgSamplesPerSec=99.9, CurrSamplesPerSec=16{0:02d}.5, MemAllocated=3.5GB, MaxMemAllocated=20.25GB"
)


def deepspeed(*settings: str) -> str:
    printed = (f"[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   {setting}\n" for setting in settings)
    return "".join(printed) + log(DEEPSPEED)


@in_each(
    ("setting", "precision"),
    [
        ("bfloat16_config .............. enabled=True immediate_grad_update=False check_grad_overflow=False", "bf16"),
        ("bfloat16_config .............. enabled=False immediate_grad_update=False", None),
        ("float16_config ............... enabled=True auto_cast=False loss_scale=0.0", "fp16"),
        ("bfloat16_enabled ............. True", "bf16"),
    ],
)
def test_deepspeeds_precision_is_read_in_both_spellings(read_text: Any, setting: str, precision: str | None) -> None:
    assert read_text(deepspeed(setting)).training_config.precision == precision


@in_each(
    "dump",
    [
        "  seq_length ...................................... 2048",
        "Namespace(data_path=['a'], max_seq_len=2048, per_device_train_batch_size=4)",
        "Namespace(model='opt', max_seq_length=2048)",
    ],
)
def test_deepspeeds_sequence_length_comes_from_dumps_of_arguments(read_text: Any, dump: str) -> None:
    result = read_text(dump + "\n" + deepspeed("train_batch_size ............. 64"), num_gpus=8)
    assert result.training_config.sequence_length == 2048
    assert result.performance_metrics.tokens_per_second_per_gpu is not None


NEMO = (
    "Training epoch 0, iteration {0}/99 | lr: 3e-07 | reduced_train_loss: 6.{0:03d} | train_step_timing in s: 1.5 |"
    " global_batch_size: 8"
)


@in_each(
    "dump",
    [
        "    data=<Config[MockDataModule(seq_length=8192, micro_batch_size=1, global_batch_size=8)]>,",
        "  encoder_seq_length: 8192",
        "│ seq_length │ 8192 │",
        "GPTConfig(num_layers=32, seq_length=8192, tensor_model_parallel_size=2)",
    ],
)
def test_nemos_sequence_length_comes_from_dumps_of_the_recipe(read_text: Any, dump: str) -> None:
    result = read_text(dump + "\n" + log(NEMO))
    assert result.training_config.sequence_length == 8192
    assert result.performance_metrics.tokens_per_second == pytest.approx(8 * 8192 / 1.5)


def test_axolotls_rate_and_memory_are_read_and_what_the_rate_counts_is_reported(read_text: Any) -> None:
    rows = "".join(
        str(
            {
                "loss": 1.0 + n / 100, "grad_norm": 0.5, "learning_rate": 1e-5, "memory/max_active (GiB)": 40.5,
                "memory/max_allocated (GiB)": 40.25, "memory/device_reserved (GiB)": 44.5,
                "tokens/train_per_sec_per_gpu": 4096.5, "epoch": n / 10,
            }
        )
        + "\n"
        for n in range(1, 15)
    )  # fmt: skip
    result = read_text(rows)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(4096.5)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(40.25 * GIB / 1e9)
    assert result.memory_metrics.peak_memory_reserved_gb == pytest.approx(44.5 * GIB / 1e9)
    assert "rate_of_loss_tokens" in [one.code for one in result.remarks]


def llama_factory(step: int, seconds: float = 2.5, tokens: int = 65536) -> str:
    clock = step * seconds + 7.0  # start-up
    return json.dumps(
        {
            "current_steps": step,
            "total_steps": 100,
            "loss": 1.9 - step / 1000,
            "lr": 5e-05,
            "epoch": step / 100,
            "percentage": float(step),
            "elapsed_time": f"0:{int(clock) // 60:02}:{int(clock) % 60:02}",
            "remaining_time": "0:09:00",
            "throughput": round(step * tokens / clock, 2),
            "total_tokens": step * tokens,
        }
    )


def test_llama_factorys_trainer_log_has_an_exact_clock_in_its_tokens(read_text: Any) -> None:
    result = read_text("".join(llama_factory(n) + "\n" for n in range(5, 101, 5)), num_gpus=8)
    performance = result.performance_metrics
    assert result.provenance.format == "huggingface"
    assert performance.avg_step_time_seconds == pytest.approx(2.5, rel=1e-4)
    assert performance.tokens_per_second == pytest.approx(65536 / 2.5, rel=1e-4)
    assert result.steps.column("covers").tolist()[1:] == [5] * 19
    assert result.steps[3].learning_rate == 5e-05


def test_ms_swifts_batch_follows_from_its_parts(read_text: Any) -> None:
    header = (
        "[INFO:swift] rank: 0, local_rank: 0, world_size: 8, local_world_size: 8\n"
        "[INFO:swift] args: TrainArguments(model='a', per_device_train_batch_size=2, gradient_accumulation_steps=4)\n"
    )
    rows = "".join(
        str({"loss": 1.5, "learning_rate": 1e-5, "global_step/max_steps": f"{n}/99", "tokens_per_gpu_per_sec": "256.8"})
        + "\n"
        for n in range(1, 9)
    )
    config = read_text(header + rows).training_config
    assert (config.global_batch_size, config.micro_batch_size, config.num_gpus) == (64, 2, 8)


OLMO_CORE = (
    "2026-01-05 08:00:0{n}.009 node-3:0 olmo_core:72 INFO [step={n}/99,epoch=1,eta=1h2m]\n    train/CE loss=2.5\n"
    "    throughput/device/BPS={bps}\n    throughput/device/BPS (actual avg)=0.1111\n    throughput/device/TPS=12,345\n"
    "    throughput/device/flopsPS=415,000,000,000,000\n"
)


def test_olmo_cores_batches_per_second_are_step_times_and_its_batch_counts_tokens(read_text: Any) -> None:
    config = "INFO ExperimentConfig(dataset=D(sequence_length=4096), loader=L(global_batch_size=524288), x=1)\n"
    result = read_text(config + "".join(OLMO_CORE.format(n=n, bps="0.8000") for n in range(1, 9)), num_gpus=8)
    performance = result.performance_metrics
    assert performance.avg_step_time_seconds == pytest.approx(1.25)
    assert performance.reported.tflops_per_gpu == pytest.approx(415)
    assert result.training_config.global_batch_size == 128
    assert performance.tokens_per_second == pytest.approx(524288 / 1.25)


def test_olmo_cores_rate_of_few_digits_is_a_step_time_with_its_error(read_text: Any) -> None:
    result = read_text("".join(OLMO_CORE.format(n=n, bps="0.0041") for n in range(1, 9)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1 / 0.0041)
    assert result.provenance.rounding == pytest.approx(0.00005 / 0.0041)
    assert result.performance_metrics.basis == "reported_rates"


def test_nanochats_gpus_are_the_tokens_of_all_ranks_over_those_of_one(read_text: Any) -> None:
    header = (
        "Number of parameters: 560,988,160\nTokens / micro-batch / rank: 32 x 2048 = 65,536\n"
        "Tokens / micro-batch: 524,288\nTotal batch size 1,048,576 => gradient accumulation steps: 2\n"
        "✓ FP8 training enabled (tensorwise scaling) - converted 120/120 linear layers to Float8Linear\n"
    )
    row = "step {0:05d}/16704 (0.06%) | loss: 2.8 | lrm: 1.00 | dt: 64{0}.81ms | tok/sec: 808,077 | mfu: 50.51"
    result = read_text(header + log(row, count=9))
    config = result.training_config
    assert (config.num_gpus, config.global_batch_size, config.sequence_length) == (8, 512, 2048)
    assert (config.micro_batch_size, config.gradient_accumulation_steps, config.precision) == (32, 2, "fp8")
    assert result.model.parameters == 560_988_160


def test_modded_nanogpts_batch_is_the_product_in_its_own_source(read_text: Any) -> None:
    source = "class Hyperparameters:\n    train_batch_size: int = 2048 * 24 * 8\n    val_batch_size: int = 4\n"
    smi = "".join(
        [f"|   {n}  NVIDIA H100 80GB HBM3          On  |   0{n}:00.0 Off |\n" for n in range(2)]
        + [f"|    {n}   N/A  N/A     5194{n}      C   /usr/bin/python         0MiB |\n" for n in range(2)]
    )
    row = "step:{0}/1670 train_time:{0}500ms step_avg:141.57ms"
    result = read_text(source + smi + log(row))
    assert result.performance_metrics.tokens_per_step == 393_216
    assert result.training_config.num_gpus == 2
    scheduled = source + "    train_bs_schedule: tuple = (131072, 262144)\n"
    assert read_text(scheduled + log(row)).performance_metrics.tokens_per_step is None


def test_a_timer_named_like_a_setting_is_not_a_setting(read_text: Any) -> None:
    timers = "time (ms) | forward-compute: 193.77 | optimizer: 63.01 | batch-generator: 25.27\n"
    rows = log(MEGATRON.replace("/2712.7", ""))
    assert read_text(rows + timers).training_config.optimizer is None
    settings = "  optimizer: adam\n"
    assert read_text(settings + timers + rows).training_config.optimizer == "adam"


NOT_WHOLE = {"1.6000e+01": 16, "4,09": None, "16x2": None, "16": 16, "1,024": 1024, "16.0": 16}
WORLD_SIZES = {
    "nanogpt": (
        "Distributed world size: {}",
        "step {0:05d}/16704 (0.03%) | loss: 3.{0:06d} | lrm: 1.00 | dt: 250.00ms | tok/sec: 524,288 | mfu: 42.5",
    ),
    "deepspeed": (
        "[2026-01-05 08:00:00,100] [INFO] [launch.py:163:main] dist_world_size={}",
        "[2026-01-05 08:00:00,250] [INFO] [timer.py:199:stop] epoch=0/micro_step={0}/global_step={0}, "
        "RunningAvgSamplesPerSec=32.0, CurrSamplesPerSec=32.{0}, MemAllocated=3.5GB, MaxMemAllocated=20.25GB",
    ),
    "maxtext": ("Num_devices: {}, shape (8,)", MAXTEXT),
    "torchtitan": (
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard={}, cp=1, tp=1, ep=1, etp=1",
        TORCHTITAN,
    ),
}


@in_each("printed", NOT_WHOLE)
@in_each("name", WORLD_SIZES)
def test_the_beginning_of_a_longer_number_is_not_read(read_text: Any, name: str, printed: str) -> None:
    setting, row = WORLD_SIZES[name]
    found = read_text(setting.format(printed) + "\n" + log(row, count=30)).training_config.num_gpus
    assert found in (None, NOT_WHOLE[printed])
    if printed == "16":
        assert found == 16


def test_a_truncated_device_mesh_gives_no_number_of_gpus(read_text: Any) -> None:
    mesh = "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1"
    assert read_text(mesh + "\n" + log(TORCHTITAN, count=30)).training_config.num_gpus is None


@pytest.mark.parametrize("setting", ["global_train_batch_size='64'", "global_train_batch_size=None"])
def test_an_olmo_batch_that_is_not_a_number_is_unknown(read_text: Any, setting: str) -> None:
    config = f"TrainConfig(run_name='small', {setting}, device_train_batch_size=4)\n"
    rows = "".join(
        f"[step={n}/1000,epoch=0]\n    train/CrossEntropyLoss=3.{n:03d}\n"
        f"    throughput/device/tokens_per_second=8,19{n % 10}.0\n"
        for n in range(1, 31)
    )
    assert read_text(config + rows).training_config.num_gpus in (None, 16)


MEGATRON_SHAPE = {
    "bf16": "True", "fp16": "False", "group_query_attention": "True", "num_query_groups": 8, "kv_channels": 128,
    "hidden_size": 4096, "ffn_hidden_size": 14336, "num_layers": 32, "num_attention_heads": 32, "vocab_size": 128256,
    "swiglu": "True", "untie_embeddings_and_output_weights": "True",
}  # fmt: skip


DEEPSPEED_SHAPE = {"num_experts": "[1]", "num_key_value_heads": 8} | {
    name: value for name, value in MEGATRON_SHAPE.items() if name not in ("group_query_attention", "num_query_groups")
}


@in_each(
    ("printed", "lost"),
    [
        *((MEGATRON_SHAPE, lost) for lost in ("", "swiglu", "untie_embeddings_and_output_weights")),
        *((DEEPSPEED_SHAPE, lost) for lost in ("", "num_key_value_heads")),
    ],
)
def test_a_megatron_shape_of_which_a_line_was_lost_is_unknown(
    read_text: Any, printed: dict[str, Any], lost: str
) -> None:
    dump = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in printed.items() if name != lost)
    dump = f"----------------- arguments -----------------\n{dump}-------------- end of arguments ---------------\n"
    model = read_text(dump + log(MEGATRON, count=30)).model
    assert (model.parameters or None) == (None if lost else 8030261248)


BEHIND_ROWS = {
    "torchtitan": (
        "Trainer is initialized with local batch size {0}, global batch size {1}, gradient accumulation steps 1, "
        "sequence length {2}, total steps 100 (warmup 2)",
        TORCHTITAN,
    ),
    "huggingface": (
        "  Instantaneous batch size per device = {0}\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = {1}",
        "{{'loss': 2.{0:04d}, 'grad_norm': 0.5, 'epoch': 0.{0}, 'train_runtime': {0}0.5, 'step': {0}}}",
    ),
}


@pytest.mark.parametrize("name", BEHIND_ROWS)
def test_settings_of_a_job_that_died_after_the_last_row_are_not_those_of_the_rows(read_text: Any, name: str) -> None:
    banner, row = BEHIND_ROWS[name]
    text = banner.format(2, 64, 4096) + "\n" + log(row, count=30) + banner.format(4, 256, 8192) + "\n"
    config = read_text(text).training_config
    assert (config.micro_batch_size, config.global_batch_size) == (2, 64)
    assert config.sequence_length in (None, 4096)


@in_each(
    ("quantization", "precision"),
    [("fp8", "fp8"), ("nanoo_fp8", "fp8"), ("int8", None), ("", "bf16"), ("None", "bf16")],
)
def test_maxtexts_quantization_is_its_precision_and_loses_no_other_setting(
    read_text: Any, quantization: str, precision: str | None
) -> None:
    settings = {
        "dtype": "bfloat16", "global_batch_size_to_train_on": 64, "learning_rate": 0.0003, "max_target_length": 4096,
        "model_name": "llama3.1-8b", "quantization": quantization, "steps": 100,
    }  # fmt: skip
    banner = "".join(f"Config param {name}: {value}\n" for name, value in settings.items())
    result = read_text(banner + "Num_devices: 16, shape (16,)\n" + log(MAXTEXT, count=30))
    config = result.training_config
    assert (config.global_batch_size, config.sequence_length, config.learning_rate) == (64, 4096, 0.0003)
    assert (config.num_gpus, result.model.name, config.precision) == (16, "llama", precision)


DIED = "Traceback (most recent call last):\nRuntimeError: out of memory\n"


def test_settings_of_an_attempt_to_start_that_died_are_not_those_of_the_next(read_text: Any) -> None:
    banner = "{{'devices': {0},\n 'num_nodes': 1,\n 'train': TrainArgs(global_batch_size={1},\n micro_batch_size=2,\n"
    row = "Epoch 1 | iter {0} step {0} | loss train: 2.{0:03d}, val: n/a | iter time: 250.00 ms (step)"
    text = banner.format(32, 512) + DIED + banner.format(8, 64) + log(row, count=30)
    config = read_text(text).training_config
    assert (config.num_gpus, config.global_batch_size) == (8, 64)


def test_one_setting_of_an_attempt_that_died_is_not_kept_with_those_of_the_next(read_text: Any) -> None:
    row = "[batch={0}/500]:\n\t Train throughput/tokens_per_sec: 8192.0\n\t Train time/secs_per_step: 2.0000"
    banner = "max_seq_len: 4096\nprecision: amp_bf16\nglobal_train_batch_size: 64\n"
    config = read_text("max_seq_len: 2048\n" + DIED + banner + log(row, count=30)).training_config
    assert (config.sequence_length, config.global_batch_size, config.precision) == (4096, 64, "bf16")
