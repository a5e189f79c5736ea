"""The table of formats: what it states agrees with the readers, and a reader is imported when it is needed."""

import subprocess
import sys
from pathlib import Path

from tensorprimat.logs import deepspeed, formats, metric_names
from tensorprimat.logs.huggingface import rows as huggingface
from tensorprimat.logs.megatron import bridge, reader, rows
from tensorprimat.logs.mlperf import reader as mlperf
from tensorprimat.logs.nanogpt import clocks as nanogpt_clocks
from tensorprimat.logs.nanogpt import rows as nanogpt_rows
from tensorprimat.logs.text import Log

ROOT = Path(__file__).parents[1]

IMPORTED = """
import sys
from tensorprimat import logs
result = logs.read(sys.argv[1])
print(sorted(name for name in sys.modules if name.startswith("tensorprimat.logs.")))
"""


def needles(name):
    return {needle.decode() for needle in next(one for one in formats.FORMATS if one.name == name).needles}


def test_the_table_states_the_texts_that_the_readers_look_for():
    assert needles("deepspeed") == {mark for _, mark, _ in deepspeed._ROWS}
    assert needles("nanogpt") == {*(one.mark for one in nanogpt_rows.ROW_SPELLINGS), *nanogpt_clocks.CLOCK_MARKS}
    assert needles("megatron") == {rows.NEEDLE.decode(), reader.KEYED_NEEDLE, bridge.BRIDGE_NEEDLE.decode()}
    assert needles("mlperf") == {mlperf.MARK}
    assert needles("huggingface") == {f"'{huggingface.LOSS}'", f'"{huggingface.LOSS}"', huggingface.RUNTIME}
    looks_for = next(one for one in formats.FORMATS if one.name == "lightning").looks_for
    assert all(name in looks_for for name in (metric_names.LIGHTNING[0], metric_names.LIGHTNING[-1]))


def test_every_format_of_the_table_has_a_reader_that_finds_no_row_in_an_empty_log(tmp_path):
    path = tmp_path / "empty.log"
    path.write_text("nothing\n")
    for format in formats.FORMATS:
        assert format.detect(Log(path)) == 0, format.name


def test_a_log_of_one_framework_imports_the_reader_of_that_framework_only(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"Epoch 1 | iter {n} step {n} | loss train: 2.{n:03}, val: n/a | iter time: 250.00 ms (step) remaining "
            "time: 0:12:01\n"
            for n in range(1, 12)
        )
    )
    shown = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "tensorprimat.logs.litgpt" in shown.stdout, shown.stderr
    for other in ("megatron.reader", "huggingface.reader", "mlperf.reader", "keyvalue", "tensorboard", "olmo"):
        assert f"tensorprimat.logs.{other}'" not in shown.stdout
