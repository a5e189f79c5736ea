"""Lines that repeat the beginning of what a reader looks for are read in linear time, however long they are."""

import contextlib
import time

from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import TensorPrimatError
from tensorprimat.logs import starts

LENGTH = 160_000  # characters: what is quadratic takes ten seconds
REPEATED = (
    ("deepspeed", "step: 1 xloss: inf xiter time (s): 1.1E1 samples/sec: na"),
    ("deepspeed", "cmd = x-"),
    ("huggingface", "  "),
    ("huggingface", "1"),
    ("lightning", "Epoch 1 "),
    ("megatron", "a: 1 "),
    ("megatron", "using world size: 1, data parallel size: 1,tensor-mo"),
    ("megatron", "EXP=x.yam"),
    ("nemo", "Trainer.fitxmax_steps="),
    ("olmo", "[step=1/9,epoch=0]\n  "),
    ("torchtitan", "1,"),
    ("nemo_rl", "="),
    *((format.name, "[rank0]: ") for format in logs.FORMATS),
)


@in_each(("format", "text"), REPEATED)
def test_a_line_of_unfinished_rows_is_read_in_linear_time(tmp_path, format, text):
    path = tmp_path / "a.log"
    path.write_text(text * (LENGTH // len(text)) + "\n")
    begun = time.process_time()
    with contextlib.suppress(TensorPrimatError):
        logs.read(path, format=format)
    assert time.process_time() - begun < 3


class NoRows:
    """Stand-in for the search of rows of other formats."""

    def within(self, _block):
        return iter(())


def test_a_line_of_many_marks_is_read_in_linear_time():
    block = (b"torchrun " + b"x" * 91) * 100_000  # 10 MB without a line end
    begun = time.process_time()
    found = list(starts._marks_in(1, block, {b"torchrun": "launcher"}, NoRows(), ()))
    assert len(found) == 100_000
    assert time.process_time() - begun < 5
