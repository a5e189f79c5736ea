"""SHA-256 of logs, begun before the readers are imported."""

import hashlib
import os

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.logs import assemble
from tensorprimat.storage import store
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


def test_extract_uses_the_digest_that_it_began_before_its_imports(log, tmp_path, monkeypatch):
    monkeypatch.setattr(digest, "usable_cores", lambda: 2)
    monkeypatch.setattr(digest, "WORTH_BEGINNING_BYTES", 1)
    made = []
    monkeypatch.setattr(digest, "Digest", lambda path, make=digest.Digest: made.append(path) or make(path))
    assert main(["extract", str(log), "--output", str(tmp_path / "out.json")]) == 0
    assert made == [log]
    (source,) = store.load(tmp_path / "out.json").provenance.sources
    assert source.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()


def test_no_digest_is_begun_on_a_single_core(log, monkeypatch):
    monkeypatch.setattr(digest, "WORTH_BEGINNING_BYTES", 1)
    monkeypatch.setattr(digest, "usable_cores", lambda: 1)
    digest.begin_first([str(log)])
    assert digest._begun == {}


def test_no_digest_is_begun_for_a_file_that_is_not_large(tmp_path, log, monkeypatch):
    monkeypatch.setattr(digest, "usable_cores", lambda: 2)
    digest.begin_first([str(log)])
    monkeypatch.setattr(digest, "WORTH_BEGINNING_BYTES", 0)
    os.mkfifo(tmp_path / "pipe")
    digest.begin_first(
        ["--segment", "", str(tmp_path), *(str(tmp_path / name) for name in ("missing", "pipe", "nul\0"))]
    )
    assert digest._begun == {}


def test_a_digest_that_was_begun_before_the_file_grew_is_not_used(log, monkeypatch):
    monkeypatch.setattr(digest, "usable_cores", lambda: 2)
    monkeypatch.setattr(digest, "WORTH_BEGINNING_BYTES", 1)
    digest.begin_first([str(log)])
    log.write_text(log.read_text() + ROW.format(9))
    assert digest.digest_of(log).done()[0] == hashlib.sha256(log.read_bytes()).hexdigest()


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
