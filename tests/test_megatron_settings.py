"""Settings of Megatron's argument dump, of YAML, of rows and of DeepSpeed's configuration."""

from pathlib import Path

import job_logs
import pytest
from each import in_each
from test_megatron import GBS, PREFIXES, read, row

from tensorprimat import logs
from tensorprimat.core.result import TrainingConfig


def test_deepspeeds_batch_counts_where_neither_rows_nor_arguments_state_one(tmp_path: Path) -> None:
    prefix = "[2021-05-27 19:49:22,949] [INFO] [config.py:904:print]   "
    dump = [f"{prefix}train_batch_size ............. 1024", f"{prefix}train_micro_batch_size_per_gpu  4",
            "  world_size ...................... 64", "  seq_length ...................... 1024"]  # fmt: skip
    rows = [
        f" iteration {n:8d}/    1000 | elapsed time per iteration (ms): 145207.0 | learning rate: 3.750E-05 | "
        f"lm loss: 1.28E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        for n in range(1, 9)
    ]
    config = read(tmp_path, [*dump, *rows]).training_config
    assert (config.global_batch_size, config.micro_batch_size, config.num_gpus) == (1024, 4, 64)
    arguments = ["  global_batch_size ............... 512", "  micro_batch_size ................ 2"]
    config = read(tmp_path, [*dump, *arguments, *rows]).training_config
    assert (config.global_batch_size, config.micro_batch_size) == (512, 2)


@in_each("spelled", ["actual seqlen:  2048", "actual seq length: 2048", "seq_length: 2048"])
def test_the_length_on_a_row_is_the_length_of_its_sequences(tmp_path: Path, spelled: str) -> None:
    rows = [row("2021", n, 2700.0 + n).replace("| loss scale", f"| {spelled} | loss scale") for n in range(1, 9)]
    result = read(tmp_path, rows)
    assert result.training_config.sequence_length == 2048
    assert result.performance_metrics.tokens_per_second == pytest.approx(GBS * 2048 / 2.705, rel=0.01)


ARGUMENTS = {
    "bf16": True, "context_parallel_size": 1, "data_parallel_size": 8, "ffn_hidden_size": 14336, "fp8": None,
    "global_batch_size": 128, "group_query_attention": True, "hidden_size": 4096, "kv_channels": 128,
    "micro_batch_size": 2, "num_attention_heads": 32, "num_layers": 32, "num_query_groups": 8, "optimizer": "adam",
    "pipeline_model_parallel_size": 1, "seq_length": 8192, "swiglu": True, "tensor_model_parallel_size": 1,
    "train_iters": 50, "untie_embeddings_and_output_weights": True, "vocab_size": 128256, "world_size": 8,
}  # fmt: skip


def neox_argument(name: str, value: object, origin: str) -> str:
    """Return a line of gpt-neox's dump: dots up to column 64, and whether the value is the default."""
    line = f"  {name} {'.' * (32 - len(name))} {value}"
    return line + "." * (64 - len(line)) + origin


def test_the_dump_of_gpt_neox_states_batch_length_and_gpus(tmp_path: Path) -> None:
    updated = {
        "attention_config": ["flash"] * 12, "bf16": {"enabled": True}, "gradient_accumulation_steps": 2,
        "hidden_size": 768, "model_parallel_size": 2, "num_attention_heads": 12, "num_layers": 12,
        "optimizer": {"type": "Adam", "params": {"lr": 0.0006, "betas": [0.9, 0.95]}}, "precision": "bfloat16",
        "seq_length": 2048, "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "global_num_gpus": 16,
    }  # fmt: skip
    dump = [neox_argument(name, value, "updated") for name, value in updated.items()]
    dump += [neox_argument("pipe_parallel_size", 0, "default"), neox_argument("seed", 1234, "default")]
    rows = [
        f" samples/sec: 128.000 | iteration {n:8d}/  320000 | elapsed time per iteration (ms): 500.0 | learning rate: "
        f"1.500E-04 | approx flops per GPU: 54.9TFLOPS | lm_loss: 8.1E+00 | number of skipped iterations:   0 |"
        for n in range(10, 100, 10)
    ]
    result = read(tmp_path, [*dump, *rows])
    config = result.training_config
    assert (config.global_batch_size, config.micro_batch_size, config.sequence_length) == (64, 4, 2048)
    assert (config.num_gpus, config.tensor_model_parallel_size, config.gradient_accumulation_steps) == (16, 2, 2)
    assert (config.precision, config.optimizer, config.seed) == ("bf16", "adam", 1234)
    assert (config.pipeline_model_parallel_size, result.model.shape) == (None, None)
    assert result.performance_metrics.samples_per_second == pytest.approx(128)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(128 * 2048 / 16)


def test_the_dump_of_gpt_neox_states_the_shape(tmp_path: Path) -> None:
    stated = {
        "activation": "gelu", "checkpoint_activations": True, "hidden_size": 768, "no_weight_tying": True,
        "num_attention_heads": 12, "num_layers": 12, "padded_vocab_size": 50304, "zero_stage": 1,
    }  # fmt: skip
    rows = [
        f" iteration {n}/ 90 | elapsed time per iteration (ms): 500.0 | lm_loss: 8.{n}E+00 |" for n in range(10, 40)
    ]
    for other, layers in (({}, 12), ({"mlp_type": "llama"}, None), ({"activation": "swiglu"}, None)):
        dump = [neox_argument(name, value, "updated") for name, value in (stated | other).items()]
        result = read(tmp_path, [*dump, *rows])
        assert (result.training_config.strategy, result.training_config.recompute) == ("zero-1", "full")
        shape = result.model.shape
        assert (shape and (shape.num_layers, shape.gated_mlp, shape.ffn_hidden_size)) == (
            (layers, False, 3072) if layers else None
        )


def test_the_rate_of_gpt_neox_is_reported_and_compared_with_the_computed_one(tmp_path: Path) -> None:
    def rows(rate: float) -> list[str]:
        return [
            f"10.0.0.1:  samples/sec: {rate:.3f} | iteration {n:8d}/  320000 | elapsed time "
            "per iteration (ms): 500.0 | learning rate: 1.500E-04 | approx flops per GPU: 53.4TFLOPS | "
            f"lm_loss: {9 - n / 100:.6E} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
            for n in range(10, 40)
        ]

    dump = [neox_argument("train_batch_size", 64, "updated"), neox_argument("seq_length", 2048, "updated")]
    agrees = read(tmp_path, [*dump, *rows(128)])
    assert agrees.steps.column("loss").tolist() == pytest.approx([9 - n / 100 for n in range(10, 40)])
    assert agrees.performance_metrics.reported.samples_per_second == pytest.approx(128)
    assert agrees.performance_metrics.reported.tflops_per_gpu == pytest.approx(53.4)
    assert not any(warning.startswith("samples_per_second") for warning in agrees.warnings)
    off = read(tmp_path, [*dump, *rows(256)])
    assert off.performance_metrics.samples_per_second is None  # nothing decides between batch, time and rate
    assert any(
        warning.startswith("samples_per_second") and "--global-batch-size 128" in warning for warning in off.warnings
    )
    alone = read(tmp_path, rows(128)).performance_metrics
    assert alone.samples_per_second == alone.reported.samples_per_second == pytest.approx(128)


@pytest.mark.parametrize(("fp8", "recipe"), [("None", None), ("hybrid", "delayed")])
def test_the_default_of_the_fp8_recipe_is_no_setting_of_a_bf16_run(
    tmp_path: Path, fp8: str, recipe: str | None
) -> None:
    arguments = {"bf16": True, "fp16": False, "fp8": fp8, "fp8_recipe": "delayed"}
    dump = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    config = read(tmp_path, [*dump, *(row("2021", n, 2700.0) for n in range(1, 9))]).training_config
    assert (config.precision, config.fp8_recipe) == ("fp8" if recipe else "bf16", recipe)


@in_each("prefix", ["none", "v0.2", "lost escapes", "torchrun"])
def test_the_argument_dump_fills_configuration_and_shape(tmp_path: Path, prefix: str) -> None:
    dump = [f"{PREFIXES[prefix]}  {name} {'.' * (48 - len(name))} {value}" for name, value in ARGUMENTS.items()]
    result = read(tmp_path, dump + [PREFIXES[prefix] + row("P3", i, 2500.0) for i in range(1, 6)])
    config = result.training_config
    assert (config.sequence_length, config.micro_batch_size, config.num_gpus) == (8192, 2, 8)
    assert (config.tensor_model_parallel_size, config.gradient_accumulation_steps) == (1, 8)
    assert (config.precision, config.optimizer) == ("bf16", "adam")
    assert result.model.shape is not None
    assert (result.model.name, result.model.preset) == ("llama", "full")
    assert result.model.parameters == 8_030_261_248


def test_an_interleaved_pipeline_is_a_setting_and_a_plain_one_is_not(tmp_path: Path) -> None:
    name = "virtual_pipeline_model_parallel_size"
    stated = {
        value: read(tmp_path, [f"  {name} ............ {value}"] + [row("P3", i, 2500.0) for i in (1, 2, 3)])
        for value in ("5", "None")
    }
    assert {value: getattr(found.training_config, name) for value, found in stated.items()} == {"5": 5, "None": None}


def test_fp8_on_top_of_bf16_is_fp8(tmp_path: Path) -> None:
    dump = ["  bf16 ............................ True", "  fp8 ............................. hybrid"]
    assert read(tmp_path, dump + [row("P3", i, 2500.0) for i in (1, 2, 3)]).training_config.precision == "fp8"


def test_yaml_dumps_are_read_and_placeholders_are_reported(tmp_path: Path) -> None:
    dump = [
        "########## Begin Config File Dump ##########",
        "EXP=examples/megatron/configs/MI300X/llama3.1_8B-BF16-pretrain.yaml",
        "      seq_length: ${PRIMUS_SEQ_LENGTH:4096}",
        "      micro_batch_size: 2  # per GPU",
        "########## End Config File Dump ##########",
    ]
    result = read(tmp_path, dump + [row("P3", i, 2500.0) for i in (1, 2, 3)])
    assert result.training_config.sequence_length == 4096
    assert result.training_config.micro_batch_size == 2
    assert "default_of_variable" in [one.code for one in result.remarks]
    assert result.model.name == "llama"
    assert result.gpu_info.device_name == "MI300X"


COMMAND = (
    "+ python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --vocab-size 128256 --swiglu --use-flash-attn "
    "--untie-embeddings-and-output-weights --mock-data --bf16"
)


@in_each("follows", ["--lr 1e-4", "", "# no bias", "2>&1 | tee run.log", "| tee run.log", "> run.log"])
def test_a_switch_of_the_command_line_does_not_take_the_next_word_as_its_value(tmp_path: Path, follows: str) -> None:
    config = read(tmp_path, [f"{COMMAND} {follows}"] + [row("P3", i, 2500.0) for i in (1, 2, 3)]).training_config
    assert (config.precision, config.data) == ("bf16", "mock")


def test_a_command_line_without_the_arguments_that_megatron_prints_gives_no_shape(tmp_path: Path) -> None:
    """Arguments of experts may be in a variable of the shell, ${MOE_ARGS[@]}, on a line of its own."""
    result = read(tmp_path, [COMMAND] + [row("P3", i, 2500.0) for i in (1, 2, 3)])
    assert result.model.shape is None


def test_resolved_arguments_beat_the_yaml(tmp_path: Path) -> None:
    dump = ["seq_length: ${PRIMUS_SEQ_LENGTH:4096}", "  seq_length ............... 8192"]
    result = read(tmp_path, dump + [row("P3", i, 2500.0) for i in (1, 2, 3)])
    assert result.training_config.sequence_length == 8192
    assert "default_of_variable" not in [one.code for one in result.remarks]


def test_a_wrong_sequence_length_is_named_with_the_length_that_reconciles_it(tmp_path: Path) -> None:
    result = read(tmp_path, [row("P7", i, 9763.0) for i in range(1, 30)], num_gpus=8, sequence_length=2048)
    assert any("--sequence-length 8192" in warning for warning in result.warnings)


def test_flags_override_and_conflicts_are_warnings(tmp_path: Path) -> None:
    result = read(tmp_path, [row("P0", i, 2500.0) for i in (1, 2, 3)], global_batch_size=64, sequence_length=100)
    assert result.training_config.global_batch_size == 64
    assert result.performance_metrics.tokens_per_second == pytest.approx(64 * 100 / 2.5)
    assert any("--global-batch-size 64" in w and "128" in w for w in result.warnings)
    assert result.provenance.assumed == {
        "global_batch_size": "--global-batch-size",
        "sequence_length": "--sequence-length",
    }


def configuration(path: Path, lines: list[str]) -> TrainingConfig:
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path).training_config


@pytest.mark.parametrize("name", ["megatron_deepspeed_3d.out", "megatron_deepspeed_zero.out"])
def test_settings_of_a_log_whose_lines_are_written_twice_are_read(tmp_path: Path, shared: Path, name: str) -> None:
    lines = (shared / "logs" / "bigscience" / name).read_text().splitlines()
    once = configuration(tmp_path / "a.log", lines)
    assert once.num_gpus == 64
    assert configuration(tmp_path / "b.log", [each for line in lines for each in (line, line)]) == once
    assert configuration(tmp_path / "c.log", [f"{rank}: {line}" for line in lines for rank in (0, 1)]) == once


@in_each(
    "name, printed",
    [
        ("megatron_deepspeed_3d.out", 52.005e9),
        ("megatron_deepspeed_zero.out", 52.005e9),
        ("megatron_lm_2021.out", 207e9),
    ],
)
def test_a_dump_of_2021_states_shape_and_recomputation(shared: Path, name: str, printed: float) -> None:
    result = logs.read(shared / "logs" / "bigscience" / name)
    assert result.training_config.recompute == "full"
    assert result.model.parameters == pytest.approx(printed, rel=0.002)


def test_the_world_size_of_deepspeeds_configuration_is_not_the_number_of_gpus(tmp_path: Path) -> None:
    lines = job_logs.megatron(job_logs.Job(banner=False))
    lines.insert(0, "[2021-06-10 20:47:51,887] [INFO] [config.py:904:print]   world_size ................... 1")
    assert configuration(tmp_path / "a.log", lines).num_gpus is None


def test_an_argument_that_is_stated_twice_with_other_values_is_unknown(tmp_path: Path) -> None:
    lines = job_logs.megatron(job_logs.Job())
    dumped = next(number for number, line in enumerate(lines) if "  seq_length ...." in line)
    lines.insert(dumped, "  seq_length ......................................... 144")
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines) + "\n")
    result = logs.read(path)
    assert result.training_config.sequence_length is None
    warning = next(warning for warning in result.warnings if "the log's arguments state 144 and 2048" in warning)
    assert warning.startswith("sequence_length: ")
    assert warning.endswith("; give --sequence-length")


@pytest.mark.parametrize(
    "other", ["deepspeed wheel compiled w. ...... torch 0.0, cuda 0.0", "apex was built for torch 2.1"]
)
def test_a_version_that_something_was_built_for_is_not_the_installed_one(other: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    for installed, version in (([], None), (["torch version .................... 2.4.1+cu121"], "2.4.1+cu121")):
        opens, *rest = job_logs.megatron(job_logs.Job())
        path.write_text("\n".join([opens, other, *installed, *rest]) + "\n")
        assert logs.read(path).gpu_info.pytorch_version == version
