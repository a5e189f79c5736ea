"""Numbers that are grouped, multiplied or cut: a number ends where its token ends; anything else is unknown."""

from collections.abc import Callable
from pathlib import Path

import pytest
from each import in_each
from job_logs import JOBS, Job

from tensorprimat import logs
from tensorprimat.core.errors import InputError
from tensorprimat.core.result import Result

ODD = ["2 048", "2\u00a0048", "2'048", "2**11", "2 * 1024", "2*1024", "3/4", "50%", "8x", "1e3x"]
SETTINGS = {
    "litgpt": ("max_seq_length=2048", "sequence_length"),
    "megatron": ("seq_length ...................................... 2048", "sequence_length"),
    "torchtitan": ("sequence length 2048", "sequence_length"),
}
Reader = Callable[[list[str]], Result]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def read(lines: list[str]) -> Result:
        path = tmp_path / "run.log"
        path.write_text("\n".join(lines) + "\n")
        return logs.read(path)

    return read


@in_each("number", ODD)
@in_each("name", SETTINGS)
def test_a_setting_that_is_not_wholly_a_number_is_unknown(name: str, number: str, read: Reader) -> None:
    spelled, field = SETTINGS[name]
    lines = JOBS[name](Job())
    assert getattr(read(lines).training_config, field) == 2048
    odd = [line.replace(spelled, spelled.replace("2048", number)) for line in lines]
    assert odd != lines
    assert getattr(read(odd).training_config, field) is None


@in_each("number", ["6 826.67", "6\u202f826.67", "6'826.67", "6_826.67", "2**11", "2 * 1024"])
def test_no_rate_is_read_from_the_beginning_of_a_number(number: str, read: Reader) -> None:
    for row in (
        "Step {} | loss:8.9 lr:2e-05 tokens_per_second_per_gpu:{} grad_norm:1.5 ",
        "step {} | loss 8.9 | {} tok/s",
    ):
        with pytest.raises(InputError, match=r"no step times|none to measure"):
            read([row.format(step, number) for step in range(1, 20)])


def test_an_unread_number_is_named(read: Reader) -> None:
    lines = [line.replace("max_seq_length=2048", "max_seq_length=2 048") for line in JOBS["litgpt"](Job())]
    (told,) = (warning for warning in read(lines).warnings if warning.startswith("numbers: "))
    assert "writes max_seq_length as '2 048'" in told
    row = "Step {} | loss:8.9 lr:2e-05 tokens_per_second_per_gpu:6 826.67 grad_norm:1.5 "
    with pytest.raises(InputError, match=r"writes tokens_per_second_per_gpu as '6 826\.67'"):
        read([row.format(step) for step in range(1, 20)])


@in_each("rate", ["32'768 tok/s", "32\u202f768 tokens/s", "tok/s 32 768.5", "tokens/s: 2 * 1024"])
def test_an_unread_rate_is_named_on_either_side_of_its_unit(rate: str, read: Reader) -> None:
    rows = [f"step {n} | loss 3.{n} | step time 2.01{n % 3} s | {rate}" for n in range(10, 40)]
    assert "number_unread" in [one.code for one in read(rows).remarks]
    usual = [f"step {n}, 300 tok/s | loss 3.{n} | step time 2.01{n % 3} s" for n in range(10, 40)]
    assert "number_unread" not in [one.code for one in read(usual).remarks]


def test_a_product_in_the_program_that_a_log_contains_is_no_unread_number(read: Reader) -> None:
    stage = "    TrainingStage(duration=1/3, batch_size=8 * 2048 * 8, lr_mul=1.0),"
    rows = JOBS["modded-nanogpt"](Job())
    for program, warned in ((["import torch", stage], False), ([stage], True)):
        assert any(warning.startswith("numbers: ") for warning in read([*program, *rows]).warnings) == warned


def test_a_sequence_of_a_few_tokens_is_called_improbable(read: Reader) -> None:
    for length, improbable in ((8, True), (9, False)):
        lines = [line.replace("max_seq_length=2048", f"max_seq_length={length}") for line in JOBS["litgpt"](Job())]
        assert ("short_sequence" in [one.code for one in read(lines).remarks]) == improbable
