"""Tables whose later rows differ in form from the first: every row is read, or a warning counts it, or a refusal."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Result
from tensorprimat.logs import files

NAMES = ("note", "step", "step_time", "loss", "tokens_per_sec")
NOTE = "n" * 50  # so that few rows exceed the part of a file by which its form is recognised
ROWS, CHANGE = 1300, 1100
LATER = ROWS - CHANGE + 1

Cells = list[str]


def cells_of(step: int) -> Cells:
    return [str(step), f"{0.5 + step % 7 / 1000:.4f}", f"{4 - step / 10000:.4f}", f"{1234.5 + step % 5}"]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Result]:
    """A table whose rows change far below the part by which its form is recognised."""

    def read(change: Callable[[Cells], Cells], between: Sequence[str] = ()) -> Result:
        rows = [cells_of(step) if step < CHANGE else change(cells_of(step)) for step in range(1, ROWS + 1)]
        lines = [",".join(cells) for cells in (NAMES, *([NOTE, *row] for row in rows))]
        lines[CHANGE:CHANGE] = between
        assert sum(map(len, lines[:CHANGE])) > files.SNIFF_BYTES
        (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
        return logs.read(tmp_path / "metrics.csv")

    return read


def left_out(result: Result) -> list[Notice]:
    codes = ("lines_torn", "cells_left_out", "last_row_truncated", "rows_truncated", "damaged_values")
    return [one for one in result.remarks if one.code in codes]


def test_cells_in_quotes_are_read(read):
    result = read(lambda c: [f'"{cell}"' for cell in c])
    assert result.steps.column("index").tolist() == list(range(1, ROWS + 1))
    assert not left_out(result)


@in_each("change", [lambda c: [*c, "7"], lambda c: c[:3], lambda c: ["|".join(c)]])
def test_rows_of_another_width_are_counted(change, read):
    result = read(change)
    assert len(result.steps) == CHANGE - 1
    (told,) = left_out(result)
    assert (told.code, told.field, told.values["lines"]) == ("lines_torn", "steps", LATER)
    assert f"in line {CHANGE + 1}" in told.values["place"]


def test_decimal_commas_between_commas_are_counted(read):
    (told,) = left_out(read(lambda c: [cell.replace(".", ",") for cell in c]))
    assert (told.code, told.values["lines"]) == ("lines_torn", LATER)


@in_each("spelled", ["{} s", "0,5", '"1,234.5"', "1 024", "1'024"])
def test_cells_that_are_no_numbers_are_counted_by_column(spelled, read):
    result = read(lambda c: [c[0], spelled.format(c[1]), *c[2:]])
    (told,) = left_out(result)
    if spelled == "0,5":
        assert (told.code, told.values["lines"]) == ("lines_torn", LATER)
    else:
        assert (told.code, told.values["column"], told.values["cells"]) == ("cells_left_out", "step_time", LATER)


@in_each("nothing", ["", "N/A", "NaN", "null"])
def test_cells_without_a_value_are_rows_without_it(nothing, read):
    result = read(lambda c: [*c[:2], nothing, c[3]])
    assert len(result.steps) == ROWS
    assert not left_out(result)


def test_rows_below_another_header_are_read_by_its_names(read):
    header = "note,step,loss,step_time,learning_rate,tokens_per_sec"
    result = read(lambda c: [str(int(c[0]) - CHANGE + 1), c[2], c[1], "1e-5", c[3]], between=[header])
    assert len(result.steps) == ROWS
    assert result.steps.column("seconds").tolist() == pytest.approx(
        [float(cells_of(step)[1]) for step in range(1, ROWS + 1)]
    )
    assert not left_out(result)


def test_rows_of_a_second_training_that_has_no_readable_row_are_counted(read):
    result = read(lambda c: [str(int(c[0]) - CHANGE + 1), *c[1:], "7"], between=[",".join(NAMES)])
    (told,) = left_out(result)
    assert (told.code, told.values["lines"]) == ("lines_torn", LATER)


def test_the_last_line_of_a_table_that_is_still_written_is_not_counted(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join(",".join(cells) for cells in (NAMES[1:], *map(cells_of, range(1, 30)))) + "\n30,0.5")
    result = logs.read(path)
    assert len(result.steps) == 29
    assert not left_out(result)


def test_torn_lines_of_json_are_counted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [f'{{"step": {step}, "step_time": 0.5, "loss": 2.5}}' for step in range(1, 40)]
    rows[20] = rows[20][:20]
    path.write_text("\n".join(rows) + "\n")
    (told,) = left_out(logs.read(path))
    assert (told.code, told.values["lines"]) == ("lines_torn", 1)
    assert "in line 21" in told.values["place"]
