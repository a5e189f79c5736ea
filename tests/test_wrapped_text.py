"""Text that was packed into something else: notebooks are read, other wrappings are refused or change no figure."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.core.errors import InputError
from tensorprimat.logs import files

SETTINGS = ["Config param model_name: qwen3-0.6b\n", "Config param opt_type: adamw\n",
            "Config param max_target_length: 1024\n"]  # fmt: skip
ROWS = [
    f"completed step: {n}, seconds: {0.25 + n % 3 / 1000:.3f}, TFLOP/s/device: 76.400, Tokens/s/device: 16384.000, "
    f"total_weights: 16384, loss: {12 - n / 100:.3f}\n"
    for n in range(30)
]


def notebook(*outputs: list[str], source: str = "train()", of_colab: bool = False, indent: int | None = 1) -> str:
    cell = {
        "cell_type": "code", "execution_count": 1, "metadata": {}, "source": [f"{source}\n"],
        "outputs": [{"name": "stdout", "output_type": "stream", "text": text} for text in outputs],
    }  # fmt: skip
    html = {"data": {"text/html": ["<td>completed step: 99, seconds: 99.0</td>\n"]}, "output_type": "display_data"}
    cell["outputs"].append(html)
    document = {"cells": [cell], "metadata": {"widgets": "w" * 70_000}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(dict(reversed(document.items())) if of_colab else document, indent=indent)


@in_each("of_colab", [False, True])
@in_each("indent", [1, None])  # Colab saves to GitHub on one line
def test_a_notebooks_output_is_read_as_the_log_that_was_printed(
    tmp_path: Path, of_colab: bool, indent: int | None
) -> None:
    plain, wrapped = tmp_path / "a.log", tmp_path / "a.ipynb"
    plain.write_text("".join([*SETTINGS, *ROWS]))
    wrapped.write_text(notebook(SETTINGS, ROWS, of_colab=of_colab, indent=indent))
    of_plain, of_notebook = logs.read(plain), logs.read(wrapped, cited=True)
    assert of_notebook.model.name == of_plain.model.name == "qwen3-0.6b"
    assert of_notebook.training_config == of_plain.training_config
    assert of_notebook.performance_metrics == of_plain.performance_metrics
    line = notebook(SETTINGS, ROWS, of_colab=of_colab).splitlines()[of_notebook.steps[4].line - 1]
    assert "completed step: 4," in line


def test_source_code_and_html_of_a_notebook_are_not_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(notebook(ROWS, source=ROWS[7].replace("0.251", "9.000").strip()))
    assert logs.read(path).performance_metrics.total_steps == len(ROWS)
    assert logs.read(path).performance_metrics.max_step_time_seconds < 1


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


ENTRY = {"stream": "stdout", "time": "2026-01-16T07:32:00Z", "insertId": "a"}
ENVELOPES = {
    "docker": lambda lines: "".join(json.dumps({"log": line + "\n", **ENTRY}) + "\n" for line in lines),
    "Cloud Logging": lambda lines: "".join(json.dumps({"jsonPayload": {"message": x}, **ENTRY}) + "\n" for x in lines),
    "gcloud, printed": lambda lines: json.dumps([{"textPayload": line, **ENTRY} for line in lines], indent=2),
    "CloudWatch": lambda lines: json.dumps({"events": [{"message": line, **ENTRY} for line in lines]}),
}


@in_each("envelope", ENVELOPES)
def test_a_log_inside_the_json_of_a_log_service_is_refused_with_the_remedy(read_text: Any, envelope: str) -> None:
    text = ENVELOPES[envelope]([line.rstrip() for line in (*SETTINGS, *ROWS)][:20])
    with pytest.raises(InputError, match=r"""are inside JSON, under the key "(log|message|textPayload)"; .*jq -r"""):
        read_text(text)


@in_each(
    "row", ['{"loss": 1.5, "step": 3, "timestamp": "2026"}', '{"log": 5, "stream": "a", "step": 1}', '{"msg": "a"}']
)
def test_json_of_other_kinds_is_not_taken_for_that_of_a_log_service(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(row + "\n")
    assert list(files.blocks(path)) == [f"{row}\n".encode()]


def test_rows_of_json_with_a_message_beside_their_numbers_are_a_table(read_text: Any) -> None:
    row = '{{"timestamp": "2026-01-05T08:00:{0:02}Z", "message": "row", "step": {0}, "step_time_s": 0.25, "loss": 2.5}}'
    result = read_text("\n".join(row.format(n) for n in range(1, 40)) + "\n")
    assert result.performance_metrics.avg_step_time_seconds == 0.25


MARKS = {
    "quoted": lambda lines: [f"> {line}" for line in lines],
    "indented": lambda lines: [f"    {line}" if line else "" for line in lines],
    "cat -n": lambda lines: [f"{number:6d}\t{line}" for number, line in enumerate(lines, 1)],
    "grep -n": lambda lines: [f"{number}:{line}" for number, line in enumerate(lines, 1)],
    "grep -Hn": lambda lines: [f"runs/train.log:{number}:{line}" for number, line in enumerate(lines, 1)],
    "hard spaces": lambda lines: [line.replace("  ", " \u00a0") for line in lines],
}


@in_each("mark", MARKS)
@in_each("format", ["megatron", "torchtitan", "nemo", "maxtext", "litgpt", "huggingface", "nanotron"])
def test_marks_of_a_copy_before_lines_may_hide_figures_but_change_none(format: str, mark: str, read_text: Any) -> None:
    lines = ALL_JOBS[format](Job())
    plain = read_text("\n".join(lines) + "\n").performance_metrics
    try:
        copied = read_text("\n".join(MARKS[mark](lines)) + "\n").performance_metrics
    except InputError:
        return
    for name in ("avg_step_time_seconds", "tokens_per_second", "samples_per_second"):
        if getattr(copied, name) is not None:
            assert getattr(copied, name) == pytest.approx(getattr(plain, name), rel=1e-4)


def table(separator: str, decimal: str) -> str:
    rows = [[str(n), f"{0.512 + n % 7 / 1000:.4f}", f"{15145.3 + n % 5:.1f}"] for n in range(1, 41)]
    cells = [[f'"{cell}"' if decimal == separator else cell for cell in row] for row in rows]
    lines = [separator.join(row).replace(".", decimal) for row in cells]
    return "\n".join([separator.join(("step", "step_time_s", "tokens_per_second")), *lines, ""])


@in_each("decimal", [".", ","])
@in_each("separator", [";", "\t"])
def test_a_table_with_other_separators_is_refused_with_the_remedy(read_text: Any, separator: str, decimal: str) -> None:
    with pytest.raises(InputError, match=r"separated by (semicolons|tabs); export it with commas .* decimal points"):
        read_text(table(separator, decimal))


def test_a_decimal_comma_in_quotes_is_no_number_and_its_column_is_named(read_text: Any) -> None:
    with pytest.raises(InputError, match=r"40 cells of the column step_time_s are not a number .* '0,5130' in line 2"):
        read_text(table(",", ","))


def test_a_decimal_comma_without_quotes_makes_no_row(read_text: Any) -> None:
    with pytest.raises(InputError, match=r"40 lines of the table are left out, .* '1,0,5130,15146,3'"):
        read_text(table(",", ",").replace('"', ""))


@in_each("cell", ["0,512", "15,145", "15.145,3"])
def test_a_figure_of_a_run_with_a_comma_is_no_number(read_text: Any, cell: str) -> None:
    text = f'model,gpu_architecture,performance,metric,status\nllama,gfx942,"{cell}",tokens/s,SUCCESS\n'
    with pytest.raises(InputError, match=f"1 cell of the column performance is not a number .* '{cell}'"):
        read_text(text)
