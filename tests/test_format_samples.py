"""Every format reads the rows in its own table, and no other format takes them for its own."""

import pytest
from each import in_each

from tensorprimat.logs.formats import FORMATS, detect_format
from tensorprimat.logs.text import Log

SAMPLES = [(format, sample) for format in FORMATS for sample in format.samples]
NOT_TEXT = {"tensorboard", "wandb", "excel", "result"}


def test_every_format_of_text_has_a_row_of_each_kind_it_reads():
    assert {format.name for format in FORMATS if not format.samples} == NOT_TEXT


@in_each("format, sample", SAMPLES)
def test_a_sample_is_detected_and_read_as_its_table_says(format, sample, tmp_path):
    (tmp_path / "train.log").write_text(sample.log(), encoding="utf-8")
    log = Log(tmp_path / "train.log")
    reading = format.read(log)
    read = dict(reading.training_config)
    if "index" in sample.gives:
        assert detect_format(log).format.name == format.name
        read |= {name: reading.steps.column(name)[-1] for name in sample.gives.keys() - read.keys()}
    assert {name: read[name] for name in sample.gives} == {
        name: value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
        for name, value in sample.gives.items()
    }
