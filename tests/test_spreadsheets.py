"""Tables of spreadsheets: semicolons or tabs between cells, decimal commas, separators of thousands."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import InputError
from tensorprimat.core.result import Result

SECONDS = [0.512 + 0.0011 * (n % 7) for n in range(1, 41)]
RATES = [15145.31 + 3.17 * (n % 5) for n in range(1, 41)]
NAMES = ("step", "step_time_s", "tokens_per_second", "loss")
_SWAPPED = str.maketrans(",.", ".,")


def english(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}"


def english_thousands(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}"


def european(value: float, decimals: int) -> str:
    return english(value, decimals).translate(_SWAPPED)


def european_thousands(value: float, decimals: int) -> str:
    return english_thousands(value, decimals).translate(_SWAPPED)


def french(value: float, decimals: int) -> str:
    return english_thousands(value, decimals).replace(",", "\u202f").replace(".", ",")


def swiss(value: float, decimals: int) -> str:
    return english_thousands(value, decimals).replace(",", "'")


def table(
    separator: str,
    spelled: Callable[[float, int], str],
    *,
    decimals: int = 1,
    names: Sequence[str] = NAMES,
    ends: str = "\n",
) -> str:
    """Return a table of SECONDS and RATES. decimals: of the rates."""
    rows = [list(names)]
    for number, (seconds, rate) in enumerate(zip(SECONDS, RATES, strict=True), start=1):
        values = {
            "step": str(number),
            "step_time_s": spelled(seconds, 4),
            "tokens_per_second": spelled(rate, decimals),
            "loss": spelled(3 - number / 100, 3),
        }
        rows.append([values[name] for name in names])
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in rows]
    return "".join(separator.join(row) + ends for row in quoted)


def same_figures(result: Result, *, decimals: int = 1) -> None:
    assert result.steps.column("index").tolist() == list(range(1, 41))
    assert result.steps.column("seconds") == pytest.approx([round(one, 4) for one in SECONDS])
    rates = [round(one, decimals) for one in RATES]
    assert result.steps.column("reported_tokens_per_second") == pytest.approx(rates)
    assert result.steps.column("loss") == pytest.approx([3 - n / 100 for n in range(1, 41)])
    assert result.steps.column("line").tolist() == list(range(2, 42))


@in_each("decimals", [0, 1])
@in_each("spelled", [english, english_thousands, european, european_thousands, french, swiss])
@in_each("separator", [";", "\t", ","])
def test_a_table_with_other_separators_has_the_figures_of_a_plain_csv(
    read_text: Any, separator: str, spelled: Callable[[float, int], str], decimals: int
) -> None:
    same_figures(read_text(table(separator, spelled, decimals=decimals)), decimals=decimals)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_number_of_thousands_is_refused_if_no_other_number_shows_its_marks(read_text: Any, separator: str) -> None:
    text = table(separator, european_thousands, decimals=0, names=("step", "tokens_per_second"))
    with pytest.raises(InputError, match=r"15\.148 in the column tokens_per_second may have decimals or a separator"):
        read_text(text)


def test_a_quoted_number_with_a_comma_is_refused_if_no_other_number_shows_its_marks(read_text: Any) -> None:
    text = table(",", english_thousands, decimals=0, names=("step", "tokens_per_second"))
    with pytest.raises(InputError, match=r"15,148 in the column tokens_per_second may have decimals"):
        read_text(text)


def test_three_decimals_in_a_table_with_commas_are_decimals(read_text: Any) -> None:
    text = "step,tokens_per_second\n" + "".join(f"{n},15.14{n % 9}\n" for n in range(1, 41))
    assert read_text(text).performance_metrics.tokens_per_second == pytest.approx(15.144, rel=1e-3)


@in_each("cells", [("0.512", "2,51"), ("0,512", "2.51"), ("1.5e-05", "2,5")])
def test_a_table_with_decimal_points_and_decimal_commas_is_refused(read_text: Any, cells: tuple[str, str]) -> None:
    text = "step;step_time_s;loss\n" + "".join(f"{n};{cells[0]};{cells[1]}\n" for n in range(1, 41))
    with pytest.raises(InputError, match=r"has decimal points \(.*\) and the column .* decimal commas \("):
        read_text(text)


def test_one_number_with_another_mark_is_refused_wherever_it_is(read_text: Any) -> None:
    rows = [f"{n};0,512;15.145\n" for n in range(1, 9000)]
    rows[8500] = "8501;0,512;15.1\n"
    with pytest.raises(InputError, match=r"15\.1 in the column tokens_per_second is no number with decimal commas"):
        read_text("step;step_time_s;tokens_per_second\n" + "".join(rows))


def test_numbers_that_only_later_rows_explain_are_refused(read_text: Any) -> None:
    rows = [f"{n};512;3\n" for n in range(1, 9000)] + ["9000;1.024;3\n"]
    with pytest.raises(InputError, match=r"1\.024 in the column step_time_ms may have decimals"):
        read_text("step;step_time_ms;loss\n" + "".join(rows))


def test_decimal_commas_that_begin_in_a_later_row_are_read(read_text: Any) -> None:
    rows = [f"{n};512;3\n" for n in range(1, 9000)] + [f"{n};512,5;2,5\n" for n in range(9000, 9010)]
    result = read_text("step;step_time_ms;loss\n" + "".join(rows))
    assert result.steps.column("seconds")[[0, -1]].tolist() == pytest.approx([0.512, 0.5125])


def test_text_and_dates_of_other_columns_do_not_decide_the_marks(read_text: Any) -> None:
    rows = [f"{n};2.10;25.11.2026;0,51{n % 9};15.145\n" for n in range(1, 41)]
    result = read_text("step;driver_version;day;step_time_s;tokens_per_second\n" + "".join(rows))
    assert result.steps.column("reported_tokens_per_second")[0] == 15145
    assert result.steps.column("seconds")[0] == pytest.approx(0.511)


def test_a_column_that_no_figure_needs_decides_where_no_other_number_does(read_text: Any) -> None:
    rows = [f"{n};65,5;15.14{n % 9}\n" for n in range(1, 41)]
    result = read_text("step;fan;tokens_per_second\n" + "".join(rows))
    assert result.steps.column("reported_tokens_per_second")[0] == 15141


@in_each("form", ["sep", "marked", "utf-16", "gzip", "carriage returns", "quoted", "mail"])
def test_a_table_is_read_in_every_form_in_which_spreadsheets_store_it(tmp_path: Path, form: str) -> None:
    text = table("\t" if form == "utf-16" else ";", european_thousands)
    data = {
        "sep": "\r\n".join(["sep=;", *text.split("\n")]).encode(),
        "marked": text.encode("utf-8-sig"),
        "utf-16": text.encode("utf-16"),
        "gzip": gzip.compress(text.encode()),
        "carriage returns": text.replace("\n", "\r\n").encode(),
        "quoted": "".join(
            ";".join(f'"{cell}"' for cell in row.split(";")) + "\n" for row in text.splitlines()
        ).encode(),
        "mail": "".join(f"> {row}\n" for row in text.splitlines()).encode(),
    }[form]
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    result = logs.read(path)
    if form == "sep":
        assert result.steps.column("line")[0] == 3
        result = result.changed(steps=result.steps.replace(line=result.steps.column("line") - 1))
    same_figures(result)


def test_thousands_of_a_table_in_another_encoding_than_utf_8_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(table(";", french).replace("\u202f", "\u00a0").encode("cp1252"))
    same_figures(logs.read(path))


def test_rows_with_decimal_commas_between_commas_are_refused(read_text: Any) -> None:
    text = "step,step_time_s,loss\n" + "".join(f"{n},0,512,2,5{n % 10}\n" for n in range(1, 41))
    with pytest.raises(InputError, match=r"the header has 3 cells, the row 1,0,512,2,51 has 5, as if decimal commas"):
        read_text(text)


def test_the_number_at_the_end_of_a_cut_table_is_left_out(read_text: Any) -> None:
    result = read_text(table(";", european_thousands, names=("step", "step_time_s", "tokens_per_second"))[:-4])
    assert len(result.steps) == 39
    assert any("the last, is truncated and left out" in warning for warning in result.warnings)


def test_the_table_of_madengine_is_read_with_decimal_commas(read_text: Any) -> None:
    text = (
        "model;n_gpus;nnodes;gpu_architecture;performance;metric;status\nllama;8;1;gfx942;15.145,3;tokens/s;SUCCESS\n"
    )
    result = read_text(text)
    assert (result.provenance.format, result.performance_metrics.tokens_per_second) == ("madengine", 15145.3)


def test_lightnings_table_is_read_with_semicolons(read_text: Any) -> None:
    text = "epoch;step;train/time\n" + "".join(f"0;{n};{str(n * 0.25).replace('.', ',')}\n" for n in range(1, 41))
    result = read_text(text)
    assert result.provenance.format == "lightning"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.25)
