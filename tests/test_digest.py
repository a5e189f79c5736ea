"""SHA-256 of logs, computed while they are read."""

import hashlib
import os

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.logs import assemble
from tensorprimat.system import digest

ROW = (
    "Training epoch 0, iteration {0}/99 | train_step_timing in s: 1.{0}0 | global_batch_size: 8 | consumed_samples: 8\n"
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("".join(ROW.format(number) for number in range(1, 9)))
    return path


@in_each("size", [0, 10, digest.WORTH_A_THREAD_BYTES, 3 * digest.DIGEST_BLOCK_BYTES // 2])
def test_a_digest_covers_all_bytes(tmp_path, size):
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "a").write_bytes(content[:size])
    assert digest.Digest(tmp_path / "a").done() == (hashlib.sha256(content[:size]).hexdigest(), size)


def test_a_missing_file_has_no_digest(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        digest.sha256(tmp_path / "missing")


def test_a_log_that_grew_while_it_was_read_has_the_digest_of_the_bytes_that_were_hashed(log, monkeypatch):
    content, audited = log.read_bytes(), assemble.audited

    def grow(*arguments):
        log.write_text(log.read_text() + ROW.format(9))
        os.utime(log, (1, 1))
        return audited(*arguments)

    monkeypatch.setattr(assemble, "audited", grow)
    (source,) = logs.read(log).provenance.sources
    assert (source.sha256, source.size_bytes) == (hashlib.sha256(content).hexdigest(), len(content))


def test_a_result_file_that_is_read_again_keeps_the_hash_of_its_log(log, tmp_path):
    assert main(["extract", str(log), "--output", str(tmp_path / "out.json")]) == 0
    (source,) = logs.read(tmp_path / "out.json").provenance.sources
    assert source.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()
