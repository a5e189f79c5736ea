"""The table of formats: what it states agrees with the readers, and a reader is imported when it is needed."""

from tensorprimat.logs import deepspeed, formats, metric_names
from tensorprimat.logs.huggingface import rows as huggingface
from tensorprimat.logs.megatron import bridge, reader, rows
from tensorprimat.logs.mlperf import reader as mlperf
from tensorprimat.logs.nanogpt import clocks as nanogpt_clocks
from tensorprimat.logs.nanogpt import rows as nanogpt_rows
from tensorprimat.logs.text import Log


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
