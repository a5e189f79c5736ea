"""Logs that change while they are read: no figure mixes two files, and the error names the change as the cause."""

import os
from pathlib import Path

import pytest
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.core.errors import InputError, InternalError
from tensorprimat.logs import assemble
from tensorprimat.system import regular


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("\n".join(ALL_JOBS["torchtitan"](Job(last=30))) + "\n")
    return path


def replaced(path):
    (path.parent / "other").write_bytes(path.read_bytes() + b"\n")
    (path.parent / "other").replace(path)


def grown(path):
    with path.open("a") as file:
        file.write("step: 31\n")


def changing(monkeypatch, change, *, fails):
    """Let a reader change its file before it begins, and then fail or not."""
    monkeypatch.delenv(regular.DEBUG, raising=False)
    join = assemble.join

    def changed(log, *stated, **named):
        result = join(log, *stated, **named)  # type: ignore[arg-type]
        change(log.path)  # type: ignore[operator]
        if fails:
            raise IndexError("array index out of range")
        return result

    monkeypatch.setattr(assemble, "join", changed)


@pytest.mark.parametrize("change", [replaced, lambda path: os.truncate(path, 2000), Path.unlink])
@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_is_cut_or_replaced_while_it_is_read_gives_no_figure(monkeypatch, log, change, fails):
    changing(monkeypatch, change, fails=fails)
    with pytest.raises(InputError, match="changed while it was read; read it again, or a copy") as refused:
        logs.read(log)
    assert not isinstance(refused.value, InternalError)


def test_a_growing_log_is_read_and_named_as_the_cause_only_if_its_reader_fails(monkeypatch, log):
    changing(monkeypatch, grown, fails=False)
    assert len(logs.read(log).steps) == 30
    monkeypatch.undo()
    changing(monkeypatch, grown, fails=True)
    with pytest.raises(InputError, match="changed while it was read"):
        logs.read(log)


def test_a_reader_that_fails_on_an_unchanged_log_is_an_internal_error(monkeypatch, log):
    changing(monkeypatch, lambda _: None, fails=True)
    with pytest.raises(InternalError, match="internal error in the reader of torchtitan"):
        logs.read(log)
