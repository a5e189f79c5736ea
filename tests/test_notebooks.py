"""Outputs of notebook cells are read as the lines that were printed; source code is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.logs import files, notebooks

SETTINGS = ["Config param model_name: qwen3-0.6b\n", "Config param opt_type: adamw\n",
            "Config param max_target_length: 1024\n"]  # fmt: skip
ROWS = [
    f"completed step: {n}, seconds: {0.25 + n % 3 / 1000:.3f}, TFLOP/s/device: 76.400, Tokens/s/device: 16384.000, "
    f"total_weights: 16384, loss: {12 - n / 100:.3f}\n"
    for n in range(30)
]


def notebook(*outputs: list[str], source: str = "train()") -> str:
    cell = {
        "cell_type": "code", "execution_count": 1, "metadata": {}, "source": [f"{source}\n"],
        "outputs": [{"name": "stdout", "output_type": "stream", "text": text} for text in outputs],
    }  # fmt: skip
    html = {"data": {"text/html": ["<td>completed step: 99, seconds: 99.0</td>\n"]}, "output_type": "display_data"}
    cell["outputs"].append(html)
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def test_a_notebooks_output_is_read_as_the_log_that_was_printed(tmp_path: Path) -> None:
    plain, wrapped = tmp_path / "a.log", tmp_path / "a.ipynb"
    plain.write_text("".join([*SETTINGS, *ROWS]))
    wrapped.write_text(notebook(SETTINGS, ROWS))
    of_plain, of_notebook = logs.read(plain), logs.read(wrapped, cited=True)
    assert of_notebook.model.name == of_plain.model.name == "qwen3-0.6b"
    assert of_notebook.training_config == of_plain.training_config
    assert of_notebook.performance_metrics == of_plain.performance_metrics
    line = wrapped.read_text().splitlines()[of_notebook.steps[4].line - 1]
    assert "completed step: 4," in line


def test_source_code_and_html_of_a_notebook_are_not_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(notebook(ROWS, source=ROWS[7].replace("0.251", "9.000").strip()))
    assert logs.read(path).performance_metrics.total_steps == len(ROWS)
    assert logs.read(path).performance_metrics.max_step_time_seconds < 1


@in_each("text", ['{"cells": [1, 2]}', '{"cell_type": "code"}', "", '{"log_history": []}'])
def test_other_documents_are_not_notebooks(text: str) -> None:
    assert not notebooks.is_notebook(text.encode())


@in_each("size", [16, 64, 2**20])
def test_spans_of_a_packed_text_are_those_of_the_plain_one_in_any_order(tmp_path: Path, size: int) -> None:
    lines = [f"line {n} {'x' * (n % 7)}\n".encode() for n in range(60)]
    starts = [sum(map(len, lines[:n])) for n in range(61)]
    spans = [(starts[a], starts[b]) for a, b in ((3, 9), (9, 9), (12, 40), (41, 42), (5, 6), (20, 60), (0, 3))]
    plain, packed = tmp_path / "a.log", tmp_path / "a.log.gz"
    plain.write_bytes(b"".join(lines))
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    def texts(path: Path) -> list[tuple[int, bytes]]:
        whole: dict[int, bytes] = {}
        order = [place for place, block in files.blocks_of_spans(path, spans, size)]
        for place, block in files.blocks_of_spans(path, spans, size):
            whole[place] = whole.get(place, b"") + block
        assert order == sorted(order)
        return sorted(whole.items())

    assert texts(packed) == texts(plain)


def test_a_packed_text_is_unpacked_once_for_all_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"".join(b"line %d\n" % (n % 10) for n in range(5000))))
    opened = []
    real = files.blocks
    monkeypatch.setattr(files, "blocks", lambda *arguments: opened.append(1) or real(*arguments))
    spans = [(7 * n, 7 * n + 7) for n in range(0, 5000, 2)]
    assert len(list(files.blocks_of_spans(path, spans))) == 2500
    assert len(opened) == 1


def test_half_of_a_surrogate_pair_in_a_printed_line_becomes_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(notebook(["loss \ud83d 2.5\n"]))
    assert "loss ? 2.5" in b"".join(files.blocks(path)).decode().split("\n")
