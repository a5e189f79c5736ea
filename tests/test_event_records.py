"""Records of TensorBoard's event files: whole ones are read, and nothing after a damaged one."""

import random
import struct

import numpy as np
import pytest
from each import in_each

from tensorprimat.logs import tensorboard

crc = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").masked_crc32c


def framed(content):
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", crc(length)) + content + struct.pack("<I", crc(content))


@in_each("length", [0, 1, 2, 7, 60, 2047, 2048, 4095, 4096, 4097, 6143, 6145, 20001])
def test_checksums_are_those_of_tensorboard(length):
    rows = np.random.default_rng(length).integers(0, 256, (3, length), dtype=np.uint8)
    assert tensorboard.checksums(rows).tolist() == [crc(row.tobytes()) for row in rows]


@pytest.fixture
def contents():
    chance = random.Random(0)
    return [chance.randbytes(chance.choice((0, 5, 60, 60, 61, 900, 9000))) for _ in range(60)]


def read(folder, file):
    (folder / "events").write_bytes(file)
    return list(tensorboard.records(folder / "events"))


@pytest.mark.parametrize("chunk", [16, 100, 5000, 2**22])
def test_records_come_back_whatever_the_size_of_a_chunk(tmp_path, monkeypatch, contents, chunk):
    monkeypatch.setattr(tensorboard, "CHUNK_BYTES", chunk)
    assert read(tmp_path, b"".join(map(framed, contents))) == contents


@pytest.mark.parametrize("chunk", [100, 2**22])
@pytest.mark.parametrize("where", [3, 9, -1], ids=["length", "checksum of the length", "content or its checksum"])
def test_nothing_after_a_damaged_record_is_read(tmp_path, monkeypatch, contents, chunk, where):
    monkeypatch.setattr(tensorboard, "CHUNK_BYTES", chunk)
    pieces = [bytearray(framed(content)) for content in contents]
    pieces[40][where] ^= 1
    assert read(tmp_path, b"".join(pieces)) == contents[:40]


def test_records_of_many_lengths_are_checked_in_a_few_passes(tmp_path, monkeypatch):
    chance = random.Random(1)
    contents = [chance.randbytes(length) for length in (*range(300), *range(500, 4300, 7), 4096, 6144, 9000, 70_000)]
    chance.shuffle(contents)
    passes = []
    after = tensorboard._after
    monkeypatch.setattr(tensorboard, "_after", lambda crc, rows: passes.append(rows.shape) or after(crc, rows))
    assert read(tmp_path, b"".join(map(framed, contents))) == contents
    columns = sum(width for _, width in passes if width > 8)  # of the lengths themselves
    assert columns < 60_000


@in_each("number", [0, 250, 840])
def test_a_damaged_record_among_many_lengths_is_found(tmp_path, number):
    contents = [random.Random(2).randbytes(length) for length in (*range(300), *range(500, 4300, 7), 9000, 70_000)]
    pieces = [bytearray(framed(content)) for content in contents]
    pieces[number][-4] ^= 1
    assert read(tmp_path, b"".join(pieces)) == contents[:number]


def test_a_truncated_last_record_is_left_out(tmp_path, contents):
    whole = b"".join(map(framed, contents))
    for missing in (1, 4, 5, len(contents[-1]) + 10):
        assert read(tmp_path, whole[:-missing]) == contents[:-1]


def test_a_record_larger_than_any_scalar_is_skipped(tmp_path, monkeypatch, contents):
    monkeypatch.setattr(tensorboard, "LARGEST_RECORD_BYTES", 2000)
    monkeypatch.setattr(tensorboard, "CHUNK_BYTES", 1000)
    small = [content for content in contents if len(content) < 9000]
    assert len(small) < len(contents)
    assert read(tmp_path, b"".join(map(framed, contents))) == small


def test_a_forged_length_allocates_no_memory(tmp_path):
    length = struct.pack("<Q", 2**62)
    assert read(tmp_path, framed(b"one") + length + struct.pack("<I", crc(length)) + b"x" * 99) == [b"one"]
