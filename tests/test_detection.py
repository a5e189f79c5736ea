"""Formats are detected by content; a text that fits none is refused, and two that fit are named."""

import io
import json
import re
from types import SimpleNamespace

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import InputError, NotALogError, UsageError
from tensorprimat.facts import devices
from tensorprimat.logs import formats, model_names
from tensorprimat.system import digest

MEGATRON = (
    " iteration {0:8d}/     100 | elapsed time per iteration (ms): 250{0}.0 | lm loss: 2.5E+00 | loss scale: 1.0 |\n"
)
TORCHTITAN = (
    "[titan] 2025-01-02 03:04:0{0} - root - INFO - step:  {0}  loss:  5.7  memory: 1.0GiB(1.0%)  tps: 1,00{0}\n"
)


def written(tmp_path, content, name="a.log"):
    path = tmp_path / name
    path.write_text(content)
    return path


def lines(pattern, count=9):
    return "".join(pattern.format(number) for number in range(1, count + 1))


def test_the_table_of_formats_has_every_format_in_its_order():
    assert [format.name for format in logs.FORMATS] == [
        *("megatron", "nemo", "torchtitan", "huggingface", "nanogpt", "deepspeed", "litgpt"),
        *("xtuner", "lightning", "mlperf", "automodel", "nanotron", "lingua", "picotron", "internevo", "paddle"),
        *("mindformers", "composer", "torchtune", "verl", "slime", "tinygrad", "colossalai"),
        *("levanter", "nemo_rl", "mlx", "fairseq"),
        *("fms_fsdp", "neuronx", "aws", "t5x", "olmo", "maxtext"),
        *("metrics", "mlflow", "madengine", "tensorboard", "wandb", "excel", "result", "loop", "timestamps"),
    ]
    assert all(format.reads and format.looks_for for format in logs.FORMATS)


def test_the_name_of_a_file_does_not_decide_its_format(tmp_path):
    assert logs.read(written(tmp_path, lines(MEGATRON), "torchtitan_nemo.txt")).provenance.format == "megatron"


def test_rows_beyond_the_first_stretch_are_found(tmp_path):
    noise = "import torch  # source code before the log\n" * 60_000
    assert len(logs.read(written(tmp_path, noise + lines(MEGATRON))).steps) == 9


def test_prose_about_training_is_skipped_without_parsing_its_lines():
    prose = b"We take one step after the other: the loss of this iteration, step 4 of epoch 5, is 3; memory is fine.\n"
    assert not [format.name for format in logs.FORMATS if any(needle in prose for needle in format.needles)]


def test_a_setting_that_no_run_can_have_is_left_out_and_reported(tmp_path):
    row = "Training epoch 0, iteration {0}/99 | global_batch_size: 8e111 | train_step_timing in s: 1.{0}0\n"
    result = logs.read(written(tmp_path, lines(row)))
    assert result.training_config.global_batch_size is None
    assert any(warning.startswith("global_batch_size: the log says") for warning in result.warnings)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.55)


def test_a_second_format_that_fits_a_log_is_named_in_a_warning(tmp_path):
    result = logs.read(written(tmp_path, lines(MEGATRON) + lines(TORCHTITAN, 3)))
    assert result.provenance.format == "megatron"
    assert any(warning.startswith("format:") and "torchtitan (3)" in warning for warning in result.warnings)


def test_a_format_named_by_flag_is_used_or_refused(tmp_path):
    path = written(tmp_path, lines(MEGATRON) + lines(TORCHTITAN, 3))
    assert logs.read(path, format="torchtitan").provenance.format == "torchtitan"
    with pytest.raises(NotALogError, match="nemo"):
        logs.read(path, format="nemo")


@in_each(
    ("name", "near"),
    [
        ("nonsense", "; "),
        ("Megatron", "; did you mean megatron? "),
        ("megatron-lm", "; did you mean megatron? "),
        ("nemorl", "; did you mean nemo_rl or nemo? "),
    ],
)
def test_an_unknown_format_is_refused_with_near_names_and_the_flag_that_lists_all(tmp_path, name, near):
    path = written(tmp_path, lines(MEGATRON))
    with pytest.raises(UsageError) as refused:
        logs.read(path, format=name)
    says = str(refused.value)
    assert says.startswith(f"--format {name}: no such format{near}tprimat extract --formats lists all ")
    assert len(says) < 160


def test_noise_is_refused_with_what_can_be_read_instead(tmp_path):
    with pytest.raises(NotALogError) as refusal:
        logs.read(written(tmp_path, "loading data\nstep by step\n" * 50))
    printed = str(refusal.value).removeprefix(f"{tmp_path}/")
    assert f"`tprimat extract --formats` shows the rows of the {len(logs.FORMATS)} known formats" in printed
    assert len(printed) < 3 * 80, "three lines of a narrow terminal"
    assert "\n" not in printed
    columns = re.search(r"a CSV with the columns (\w+) and (\w+)", printed)
    table = written(tmp_path, ",".join(columns.groups()) + "\n" + "".join(f"{n},0.51{n}\n" for n in range(9)))
    assert logs.read(table).performance_metrics.avg_step_time_seconds == pytest.approx(0.5145, abs=0.001)
    row = re.search(r"rows like '(.*20.*512.*)'", printed)[1]
    rows = written(tmp_path, "".join(row.replace("20", str(n)).replace("512", f"51{n}") + "\n" for n in range(9)))
    assert logs.read(rows).performance_metrics.avg_step_time_seconds == pytest.approx(0.5145, abs=0.001)


def test_noise_for_a_named_format_is_refused_with_the_text_of_its_rows(tmp_path):
    with pytest.raises(NotALogError, match="elapsed time per iteration"):
        logs.read(written(tmp_path, "loading data\n"), format="megatron")


def test_a_log_that_crashed_before_its_first_step_is_refused_with_the_cause(tmp_path):
    with pytest.raises(NotALogError, match="out of memory"):
        logs.read(written(tmp_path, "starting\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB\n"))


@in_each(("content", "reason"), [(b"", "is empty"), (bytes(range(256)) * 99, "binary"), (b"{}", "no step times found")])
def test_files_that_are_not_logs_are_refused(tmp_path, content, reason):
    path = tmp_path / "a.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        logs.read(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        logs.read(tmp_path)


def test_a_result_file_that_is_read_as_a_log_stays_unchanged(tmp_path):
    from tensorprimat.storage import store

    first = logs.read(written(tmp_path, lines(MEGATRON)))
    path = store.save(first, tmp_path / "output", stamp="1")
    again = logs.read(path)
    assert json.loads(store.to_json(again)) == json.loads(store.to_json(first))


def test_a_flag_amends_a_result_read_again(tmp_path):
    from tensorprimat.storage import store

    path = store.save(logs.read(written(tmp_path, lines(MEGATRON))), tmp_path / "output", stamp="1")
    stated = logs.UserFacts(num_gpus=2, global_batch_size=10, sequence_length=100, gpu="MI300X")
    result = logs.read(path, facts=stated)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(1000 / 2.5055 / 2, rel=1e-3)
    assert result.platform == "amd"


def test_the_file_of_a_result_is_named_with_its_digest(tmp_path):
    import hashlib

    path = written(tmp_path, lines(MEGATRON))
    (source,) = logs.read(path).provenance.sources
    assert (source.file, source.format) == ("a.log", "megatron")
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.size_bytes == path.stat().st_size
    assert source.modified_at is not None


@pytest.mark.parametrize("worth_a_thread", [0, 2**20])
def test_a_file_that_cannot_be_hashed_is_one_clear_error(tmp_path, monkeypatch, worth_a_thread):
    class Broken(io.BytesIO):
        def readinto(self, _):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(digest, "WORTH_A_THREAD_BYTES", worth_a_thread)
    monkeypatch.setattr(digest, "regular", SimpleNamespace(open_regular=lambda _: Broken()))
    with pytest.raises(InputError, match="Input/output error"):
        logs.read(written(tmp_path, lines(MEGATRON)))


def test_the_platform_comes_from_the_log_or_the_flag_never_from_this_machine(tmp_path):
    path = written(tmp_path, lines(MEGATRON))
    assert logs.read(path).platform is None
    result = logs.read(path, facts=logs.UserFacts(gpu="NVIDIA H100"))
    assert (result.platform, result.gpu_info.software_stack) == ("nvd", "cuda")
    assert result.provenance.assumed["device_name"] == "--gpu"


@in_each(
    ("name", "platform"),
    [
        ("NVIDIA H100 80GB HBM3", "nvd"),
        ("H200", "nvd"),
        ("NVIDIA GB200", "nvd"),
        ("Tesla V100-SXM2-32GB", "nvd"),
        ("AMD Instinct MI300X", "amd"),
        ("MI355X", "amd"),
        ("gfx942", "amd"),
        ("AMD EPYC 9654 96-Core Processor", "cpu"),
        ("Unit 7", None),
        ("TPU v5p", None),
        (None, None),
    ],
)
def test_every_device_name_gives_its_platform(name, platform):
    assert devices.platform_of(name) == platform


@in_each(
    ("spelled", "name"),
    [
        ("llama3.1_8B-BF16-pretrain", "llama"),
        ("meta-llama/Llama-3.1-8B", "llama"),
        ("examples/megatron/configs/MI300X/qwen2.5_7B-FP8-pretrain.yaml", "qwen"),
        ("mistralai/Mistral-7B-v0.1", "mistral"),
        ("llama3.1_70B-BF16-pretrain", "llama3.1_70B"),
        ("llama2_7B.yaml", "llama2_7B"),
    ],
)
def test_every_spelling_of_a_project_model_gives_its_name(spelled, name):
    assert model_names.model_name(spelled) == name


def test_detection_without_digits_finds_every_search_text():
    lines = [needle for format in logs.FORMATS for needle in format.needles if b"\n" not in needle]
    block = b"".join(b"7%d row 3 " % n + needle + b"1 2\n" for n, needle in enumerate(lines)) * 20
    assert formats._present(block) == set(lines)
    table = b"1767600000123 2.5 1\n" * 5000
    assert formats._present(table) == {b"\n17"}
