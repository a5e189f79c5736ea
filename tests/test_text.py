"""Text of logs in every packing is read as numbered clean lines, and dangerous input is refused in bounded memory."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import scratch
from each import in_each
from hypothesis import given
from hypothesis import strategies as st

from tensorprimat.core.errors import InputError
from tensorprimat.logs import failures, files, packing, prefixes
from tensorprimat.logs.text import Log, window_of, without_colours


def written(tmp_path: Path, content: bytes, name: str = "a.log") -> Log:
    path = tmp_path / name
    path.write_bytes(content)
    return Log(path)


@in_each(
    ("content", "lines"),
    [
        (b"one\n\nthree", [(1, "one"), (2, ""), (3, "three")]),
        (b"one\r\ntwo\r\n", [(1, "one"), (2, "two")]),  # a line end is no part of a line, whichever it is
        (b"start\n 10%\r100%\nend\n", [(1, "start"), (2, " 10%"), (2, "100%"), (3, "end")]),  # a progress bar
        (b"ok \xff\xfe\xc3 ok\n", [(1, "ok \ufffd\ufffd\ufffd ok")]),
        (b"one\n" + b"\0" * 40_000 + b"two\n", [(1, "one"), (2, "two")]),  # a crashed file system left zeros
        (b"BZh9 is a sensor\n", [(1, "BZh9 is a sensor")]),  # and no packed file
    ],
)
def test_lines_are_numbered_from_one_whatever_separates_and_breaks_them(
    tmp_path: Path, content: bytes, lines: list[tuple[int, str]]
) -> None:
    assert list(written(tmp_path, content).lines()) == lines


def test_lines_that_end_in_carriage_returns_alone_are_numbered_like_others(tmp_path: Path) -> None:
    log = written(tmp_path, b"one\rtwo\r\rfour")
    assert list(log.lines()) == [(1, "one"), (2, "two"), (3, ""), (4, "four")]
    assert log.tail(100) == ["one", "two", "", "four"]
    assert log.count_lines() == 3


def test_numbers_stay_right_over_blocks(tmp_path: Path) -> None:
    lines = [f"line {i} {'x' * (i % 97)}" for i in range(1, 4000)]
    log = written(tmp_path, ("\n".join(lines) + "\n").encode())
    blocks = list(files.blocks(log.path, size=1000))
    assert len(blocks) > 100
    assert b"".join(blocks) == log.path.read_bytes()
    assert list(log.lines()) == list(enumerate(lines, start=1))
    windows = [window_of(*block) for block in log.numbered_blocks(1000)]
    assert [line for window in windows for line in window] == list(enumerate(lines, start=1))


@in_each("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings_are_recognised(tmp_path: Path, encoding: str) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    log = written(tmp_path, mark + "iteration 5 | straße\nzweite Zeile\n".encode(encoding))
    assert [text for _, text in log.lines()] == ["iteration 5 | straße", "zweite Zeile"]


def test_utf16_without_a_mark_is_refused_as_binary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a binary file"):
        list(written(tmp_path, "iteration 5 | loss 2.5\n".encode("utf-16-le")).lines())


@in_each("length", [1000, 200_000, 3_000_000])
def test_a_log_that_was_cut_while_its_writer_went_on_begins_with_zeros_and_is_text(tmp_path: Path, length: int) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"\0" * length + b"one\ntwo\n")
    assert not files.is_binary(path)
    assert [text for _, text in Log(path).lines()][-1] == "two"
    path.write_bytes(b"\0" * length)
    assert files.is_binary(path)


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def zstandard_compress(content: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard_compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zip": lambda content: zipped(**{"__MACOSX/._a": b"\0\1", "logs/a.log": content}),
}
each_compression = pytest.mark.parametrize("compression", COMPRESSIONS)


@each_compression
def test_every_compression_is_unpacked_without_a_word_about_it(tmp_path: Path, compression: str) -> None:
    log = written(tmp_path, COMPRESSIONS[compression](b"one\ntwo\n"))
    assert list(log.lines()) == [(1, "one"), (2, "two")]
    assert log.count_lines() == 2
    assert log.tail(100)[-2:] == ["two", ""]
    assert not log.is_binary


@in_each("compression", ["gzip", "xz", "bzip2", "zstd"])
def test_several_packed_parts_in_one_file_are_one_text(tmp_path: Path, compression: str) -> None:
    compress = COMPRESSIONS[compression]
    log = written(tmp_path, compress(b"one\n") + compress(b"two\n"))
    assert [text for _, text in log.lines()] == ["one", "two"]


@in_each("compression", ["gzip", "xz", "bzip2", "zip", "zstd"])
@in_each("cut", [12, 30, -4])
def test_broken_packed_data_is_one_clear_error(tmp_path: Path, compression: str, cut: int) -> None:
    content = COMPRESSIONS[compression](os.urandom(2000))
    with pytest.raises(InputError, match=rf"broken {compression} data|binary"):
        list(written(tmp_path, content[:cut]).lines())


@each_compression
def test_damaged_packed_data_is_one_clear_error(tmp_path: Path, compression: str) -> None:
    content = COMPRESSIONS[compression](b"".join(b"iteration %d\n" % (n * 7919) for n in range(2000)))
    middle = len(content) // 2
    broken = content[: middle - 12] + b"\xff" * 12 + content[middle:]
    with pytest.raises(InputError, match=rf"broken {compression} data|binary|cannot be unpacked"):
        list(written(tmp_path, broken).lines())


@each_compression
def test_a_decompression_bomb_is_refused_before_it_expands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setattr(packing, "EXPANSION_ALLOWED_BYTES", 2**20)
    log = written(tmp_path, COMPRESSIONS[compression](b"a" * 2**24))
    with pytest.raises(InputError, match="expands to more than 300 times"):
        list(log.lines())


def test_a_zip_archive_of_several_files_is_refused_with_their_names(tmp_path: Path) -> None:
    log = written(tmp_path, zipped(**{"a.log": b"one\n", "b.log": b"two\n"}))
    with pytest.raises(InputError, match=r"zip archive of 2 files \(a.log, b.log\); unpack it and name one of them"):
        list(log.lines())


def test_an_office_document_is_not_a_packed_log(tmp_path: Path) -> None:
    log = written(tmp_path, zipped(**{"[Content_Types].xml": os.urandom(3000), "xl/workbook.xml": b"<x/>"}))
    assert log.is_binary


def test_a_single_endless_line_is_cut_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2**20)
    log = written(tmp_path, b"x" * (48 * 2**20) + b"\nlast\n")
    tracemalloc.start()
    lengths = [(number, len(text)) for number, text in log.lines()]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lengths[0] == (1, 2**20)
    assert lengths[-1] == (2, 4)
    assert peak < 40 * 2**20


def test_a_line_of_ten_megabytes_is_read_whole(tmp_path: Path) -> None:
    lengths = [len(text) for _, text in written(tmp_path, b"x" * 10**7 + b"\nend\n").lines()]
    assert lengths == [10**7, 3]


def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in (("pipe", "pipe"), ("loop", "cannot be read"), ("absent", "No such file"), (".", "folder")):
        with pytest.raises(InputError, match=reason):
            list(Log(tmp_path / name).lines())


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="binary"):
        list(written(tmp_path, bytes(range(256)) * 100).lines())


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    with files.spooled_stdin() as spool:
        log = Log(spool, called="standard input")
        assert [text for _, text in log.lines()] == [text for _, text in log.lines()] == ["one", "two"]
        assert log.name == "standard input"
    assert not spool.exists()


@in_each(
    ("coloured", "plain"),
    [
        ("\x1b[38;2;180;60;0mstep: 1\x1b[0m", "step: 1"),
        ("[1mstep: 1[0m", "step: 1"),
        ("^[[32mstep: 1^[[0m", "step: 1"),
        ("\\x1b[32mstep: 1\\x1b[0m", "step: 1"),
        ("\x1b]0;title\x07step: 1\x1b[K", "step: 1"),
        ("0[[32m20251202 06:26:45[0m]", "0[20251202 06:26:45]"),
        ("x[0] and [rank0]: stay", "x[0] and [rank0]: stay"),
        ("[main] loss [m] took [5ms], [10mins]", "[main] loss [m] took [5ms], [10mins]"),
        ("[mstep: 1[32ms:1[m", "[mstep: 1s:1"),
    ],
)
def test_colours_are_removed_with_or_without_their_escape(coloured: str, plain: str) -> None:
    assert without_colours(coloured) == plain


@in_each(
    ("line", "rank", "world"),
    [
        ("[default3]:step", 3, None),
        ("[rank12]: step", 12, None),
        (" 7: step", 7, None),
        ("[1,5]<stdout>:step", 5, None),
        ("(TrainWorker pid=55, ip=10.1.2.3) step", None, None),
        ("worker-0: step", None, None),
        ("10.0.0.7: step", None, None),
        ("2025-01-02T03:04:05.123456789Z stdout F step", None, None),
        ("[20251121 12:10:29][rank-31/32][INFO ] [--------trainer.py:2488] :  step", 31, 32),
        ("[20251202 06:26:45][rank-7/8][INFO]     [------trainer.py:25] : step", 7, 8),
        ("4: [default2]: [20251202 06:26:45][rank-7/8][DEBUG]    [--utils.py:425] : step", 7, 8),
        ("step", None, None),
    ],
)
def test_launcher_prefixes_are_removed_and_name_the_rank(line: str, rank: int | None, world: int | None) -> None:
    origin, text = prefixes.split(line)
    assert text == "step" == prefixes.strip(line)
    assert (origin.rank, origin.world_size) == (rank, world)


@in_each("line", ["step: 8 loss: 2", "[2026-01-16 07:32:24] iteration 5", "{'loss': 1.2}", "node: up"])
def test_the_beginning_of_a_row_is_not_taken_for_a_launcher_prefix(line: str) -> None:
    assert prefixes.strip(line) == line


@in_each(
    ("last", "before", "cut"),
    [
        ("step 2 | loss: 1.25", "step 1 | loss: 1.27", False),
        ("step 2 | loss: 1.2", "step 1 | loss: 1.27", True),
        ("step 10 | loss: 11.25 |", "step 9 | loss: 1.27 |", False),
        ("step 10 | los", "step 9 | loss: 1.27 |", True),
        ("lr: 1.0E-0", "lr: 1.0E-05", True),
        ("tokens: 12", "tokens: 1234", True),
        ("tokens: 4321", "tokens: 1234", False),
        ("tokens: 1,234", "tokens: 12,345", True),
        ("2,7.8,15", "1,7.9,15163", True),
        ("2,7.8,15170", "1,7.9,15163", False),
        ("step 2 |", None, False),
        ("step 2", None, True),
    ],
)
def test_a_cut_row_is_recognised_by_the_row_before_it(last: str, before: str | None, cut: bool) -> None:
    assert failures.is_cut(last, before) == cut


@given(st.binary(max_size=2000))
def test_any_bytes_are_lines_or_an_error_of_the_tool(content: bytes) -> None:
    with scratch.written(content) as path:
        try:
            lines = list(Log(path).lines())
        except InputError:
            return
    assert [number for number, _ in lines] == sorted(number for number, _ in lines)
