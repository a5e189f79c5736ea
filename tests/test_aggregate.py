"""Tests of tprimat aggregate: a folder of cells as tables, pivots, user-defined columns, and a data frame."""

import csv
import itertools
import json
from functools import partial

import pytest
from each import in_each

import tensorprimat
from tensorprimat.analysis import aggregate
from tensorprimat.analysis.expressions import evaluate
from tensorprimat.cli import main
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.reports import aggregate as reports
from tensorprimat.reports.html import tables_page
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots import micro as cell_plots
from tensorprimat.storage import cell_rows
from tensorprimat.storage.cell_rows import frame_of, load_rows, plain

SIZES = {"small": (768, 128_625_408), "medium": (1024, 423_183_360)}


def row(size="small", context=128, *, forward_only=False, mean=100.0, **more):
    """Return the keys that every tool of this kind writes, and no more."""
    width, parameters = SIZES[size]
    return {
        "model_size": size, "vocab": 10_000, "context_length": context, "d_model": width, "d_ff": 4 * width,
        "num_layers": 12, "num_heads": 12, "batch_size": 4, "num_steps": 1, "num_warmups": 5, "num_trials": 2,
        "forward_only": forward_only, "mean_time_ms": mean, "std_time_ms": 1.0, "device": "cuda",
        "trial_times_ms": [] if mean is None else [mean - 1, mean + 1], "num_parameters": parameters, **more,
    }  # fmt: skip


ROWS = [
    row("medium", 256, mean=400.0),
    row("small", 128),
    row("small", 256, mean=200.0),
    row("medium", 128, mean=200.0),
    row("small", 128, forward_only=True, mean=40.0),
]
CELLS = frame_of(ROWS)


def value(text, **cell):
    """Return the value of an expression for one cell; None for NA."""
    (found,) = plain(evaluate(text, frame_of([row(**cell)]), flag="--add"))
    return found


@pytest.fixture
def folder(tmp_path):
    """A folder of cells and other files."""
    cells = tmp_path / "cells"
    cells.mkdir()
    for number, one in enumerate(ROWS):
        (cells / f"bench_{number}.json").write_text(json.dumps(one))
    (cells / "other.json").write_text('{"performance_metrics": {}}')
    return cells


def test_load_cells_returns_the_cells_of_a_folder_as_a_data_frame(folder):
    frame = tensorprimat.load_cells(folder)
    assert len(frame) == 5
    assert frame.query("model_size == 'small'").mean_time_ms.tolist() == [100.0, 200.0, 40.0]
    assert frame.trial_times_ms[1] == [99.0, 101.0]


def test_load_cells_warns_of_a_file_that_it_leaves_out(folder):
    (folder / "half.json").write_text('{"model_size": "sma')
    with pytest.warns(UserWarning, match=r"left out: .*half\.json") as caught:
        assert len(tensorprimat.load_cells(folder)) == 5
    assert caught[0].filename == __file__


def test_a_column_of_one_kind_has_its_type_and_a_missing_value_is_unmeasured():
    kinds = {
        "whole": ([4, None], "Int64"), "times": ([100.0, 200.0], "Float64"), "both": ([1, 2.5], "Float64"),
        "counts": ([1, 4.0], "Int64"), "flag": ([True, None], "boolean"), "name": (["small", None], "string"),
        "nothing": ([None, None], "Float64"),
        "mixed": ([True, "max-autotune"], "object"), "lists": ([[1.0], None], "object"),
        "beyond": ([2**70, 1], "Float64"), "infinite": ([float("inf"), 1.5], "Float64"),
    }  # fmt: skip
    rows = [{name: values[number] for name, (values, _) in kinds.items()} for number in (0, 1)]
    cells = frame_of([*rows, {}])
    assert {name: str(kind) for name, kind in cells.dtypes.items()} == {name: kind for name, (_, kind) in kinds.items()}
    assert plain(cells["whole"]) == [4, None, None]
    assert plain(cells["infinite"]) == [None, 1.5, None]
    assert cells.iloc[2].isna().all()
    assert cell_rows.columns_of(cells) == [name for name in kinds if name != "lists"]


def test_whole_numbers_stay_whole_in_the_files_and_an_unmeasured_one_is_empty(tmp_path):
    for number, batch in enumerate((4, None)):
        (tmp_path / f"bench_{number}.json").write_text(json.dumps(row(batch_size=batch, compile=batch or "reduce")))
    assert main(["aggregate", str(tmp_path), "--add", "twice=batch_size", "--output", str(tmp_path / "all")]) == 0
    (first, second) = csv.DictReader((tmp_path / "all" / "cells.csv").read_text().splitlines())
    assert [first[key] for key in ("batch_size", "compile", "twice", "mean_time_ms")] == ["4", "4", "4", "100.0"]
    assert [second[key] for key in ("batch_size", "compile", "twice")] == ["", "reduce", ""]
    assert "trial_times_ms" not in first
    stored = json.loads((tmp_path / "all" / "cells.json").read_text())
    assert [one["batch_size"] for one in stored] == [4, None]
    assert stored[0]["trial_times_ms"] == [99.0, 101.0]


def test_tables_go_to_stdout_as_markdown(folder, capsys):
    assert main(["aggregate", str(folder)]) == 0
    out = capsys.readouterr().out
    for heading in ("All cells", "Model small", "Model medium", "Context 128", "Context 256", "Forward only against"):
        assert f"## {heading}" in out
    assert "| small | 128 | 4 | – | 40 | 100 | 60 | 2.50 |" in out


def test_a_pivot_shows_means_in_the_order_of_sizes(folder, capsys):
    flags = ["--rows", "context_length", "--columns", "model_size", "--values", "mean_time_ms"]
    assert main(["aggregate", str(folder), "--filter", "forward_only=false", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("## mean_time_ms by context_length and model_size")
    assert lines[start + 2 : start + 6] == [
        "| context_length / model_size | small | medium |",
        "| :--- | ---: | ---: |",
        "| 128 | 100 | 200 |",
        "| 256 | 200 | 400 |",
    ]


def test_a_pivot_that_averages_unlike_cells_has_a_note():
    table = aggregate.pivot(CELLS, rows="context_length", columns="model_size", values="mean_time_ms")
    assert plain(table.means)[0] == [70.0, 200.0]
    assert "Means of up to 2 cells" in reports.pivot_table(table).note


def test_cells_of_different_passes_are_never_averaged_together():
    tables = aggregate.pivots(CELLS, rows="context_length", columns="model_size", values="mean_time_ms")
    assert {table.pass_name for table in tables} == set(aggregate._passes(CELLS))
    assert len(tables) > 1
    assert all(table.most_cells == 1 for table in tables)
    by_pass = aggregate.pivots(CELLS, rows="context_length", columns="forward_only", values="mean_time_ms")
    assert [table.pass_name for table in by_pass] == [None]


def test_a_pivot_of_one_cell_or_by_one_column_twice_has_its_mean():
    (one,) = aggregate.pivots(CELLS[:1], rows="batch_size", columns="device", values="mean_time_ms")
    assert (plain(one.means), one.most_cells, one.pass_name) == ([[400.0]], 1, None)
    twice = aggregate.pivot(CELLS[:4], rows="context_length", columns="context_length", values="mean_time_ms")
    assert plain(twice.means) == [[150.0, None], [None, 300.0]]


def test_rows_and_columns_of_a_pivot_can_be_unmeasured_or_of_several_kinds():
    rows = [row(mean=1.0, compile=True), row(mean=2.0, compile="reduce"), row(mean=4.0), row(mean=8.0, compile=True)]
    table = aggregate.pivot(frame_of(rows), rows="compile", columns="model_size", values="mean_time_ms")
    assert list(table.means.index) == [None, True, "reduce"]
    assert plain(table.means) == [[4.0], [4.5], [2.0]]
    assert table.most_cells == 2


def test_cells_that_state_no_setting_but_their_size_have_tables(tmp_path, capsys):
    for number, time in enumerate((1.5, None)):
        (tmp_path / f"{number}.json").write_text(json.dumps({"model_size": "a", "mean_time_ms": time}))
    assert main(["aggregate", str(tmp_path)]) == 0
    assert "| a | 1.5 |\n| a | – |" in capsys.readouterr().out


def test_each_setting_in_which_cells_differ_gets_a_column():
    rows = [row(), row(attention="eager")]
    titles = [column.title for column in reports.all_cells_table(frame_of(rows)).columns]
    assert "Attention" in titles
    assert "Vocabulary" not in titles


def test_pivots_and_the_complete_table_show_oom_in_place_of_a_time():
    rows = [row(), row("medium", mean=None, status="oom")]
    table = aggregate.pivot(frame_of(rows), rows="context_length", columns="model_size", values="mean_time_ms")
    assert plain(table.means) == [[100.0, "OOM"]]
    assert reports.all_cells_table(frame_of(rows)).rows[1][-1].text == "OOM"


def test_a_cell_without_a_status_is_measured_only_if_it_has_a_time():
    rows = [row(), row(mean=None), row(mean=None, status="failed"), row(status=None)]
    texts = [cells[-1].text for cells in reports.all_cells_table(frame_of(rows)).rows]
    assert texts == ["measured", "not measured", "failed", "measured"]


def test_the_document_names_the_tables_that_it_leaves_out_and_the_flag_that_shows_one():
    rows = [row(context=128 + number, mean=100.0 + number) for number in range(reports.MOST_TABLES + 1)]
    many = aggregate.sort(frame_of(rows))
    found = reports.aggregate_tables(many, added=(), pivots=(), fits=())
    assert [table.title for table in found] == ["All cells"]
    text = reports.render_markdown(found, heading="Cells")
    assert "101 values of context_length are more than 100, so none has a table of its own; --filter selects" in text
    fewer = reports.aggregate_tables(many[1:], added=(), pivots=(), fits=())
    assert len(fewer) == 1 + reports.MOST_TABLES
    assert fewer[0].note is None


def test_files_are_written_and_reported(folder, tmp_path, capsys):
    expected = {
        flag: tmp_path / name for flag, name in (("--output", "t.md"), ("--csv", "t.csv"), ("--html", "t.html"))
    }
    flags = [word for flag, path in expected.items() for word in (flag, str(path))]
    assert main(["aggregate", str(folder), "--add", "throughput=1000/mean_time_ms", *flags]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Files: ")
    assert "| throughput |" in expected["--output"].read_text()
    header, first, *_ = expected["--csv"].read_text().splitlines()
    cells = dict(zip(header.split(","), first.split(","), strict=True))
    assert (cells["model_size"], cells["throughput"]) == ("small", "10.0")
    assert "<td>small</td>" in expected["--html"].read_text()


def test_a_script_in_a_model_name_is_escaped_in_html_and_markdown():
    rows = [row() | {"model_size": "<script>alert(1)</script>|=1"}]
    tables = reports.aggregate_tables(frame_of(rows), added=(), pivots=(), fits=())
    assert "<script>alert" not in tables_page(tables, heading="h")
    assert "<script>" not in reports.render_markdown(tables, heading="h")


@in_each(
    ("text", "expected"),
    [
        ("1000/mean_time_ms", 10.0),
        ("batch_size*context_length/(mean_time_ms/1e3)", 5120.0),
        ("min(d_model, d_ff) + -1", 767.0),
        ("round(log2(context_length))", 7),
        ("round(mean_time_ms / 3, 2)", 33.33),
        ("1 < batch_size < 10 < mean_time_ms", True),
        ("2 < 1 < 1/0", False),
        ("mean_time_ms > 50 and batch_size == 4", True),
        ("model_size == 'small'", True),
        ("1/0", None),
        ("10**10**10", None),
        ("round(9)**round(9)**round(9)", None),
        ("(True+True+True)**(True+True+True)**(True+True+True)**(True+True+True)", None),
        ("round(batch_size, -999999999)", 0.0),
        ("9" * 400, None),
        ("abs((0-8)**0.5)", None),
        ("'%1000000000d' % 1", None),
        ("round('12')", None),
        ("missing + 1", None),
        ("model_size * 10", None),
        ("sqrt(0-1)", None),
    ],
)
def test_an_expression_gives_its_value_or_none_if_it_cannot_be_evaluated(text, expected):
    assert value(text, missing=None) == expected


@in_each(
    ("text", "expected"),
    [
        ("time < 300", [True, None, False]),
        ("not (time < 300)", [False, None, True]),
        ("not flag", [False, None, True]),
        ("time < 300 or whole == 4", [True, None, False]),
        ("time > 300 and whole == 4", [False, None, False]),
        ("time > 0 or 1/0", [True, None, True]),
        ("time == None", [False, True, False]),
        ("time != None", [True, False, True]),
        ("note != 'a'", [False, None, True]),
        ("1**time", [1.0, None, 1.0]),
        ("time**0", [1.0, None, 1.0]),
        ("max(time, 200)", [200.0, None, 400.0]),
        ("min(whole, 3)", [3, None, 3]),
        ("whole // 0", [None, None, None]),
        ("1 / (1e308 * 10) + time", [None, None, None]),
        ("nothing + 1", [None, None, None]),
        ("nothing == 1", [None, None, None]),
        ("mixed * 2", [2.0, None, 6.0]),
        ("mixed == true", [True, False, False]),
        ("mixed > 1", [False, None, True]),
        ("mixed < 'b'", [None, True, None]),
        ("mixed == note", [False, None, False]),
        ("mixed and true", [True, True, True]),
        ("flag + flag", [2.0, None, 0.0]),
        ("round(time, whole)", [100.0, None, 400.0]),
        ("round(8.345, 2)", [8.35, 8.35, 8.35]),
        ("round(1.7e308, -308)", [None, None, None]),
        ("10**10**10 > time", [None, None, None]),
        ("'a'", ["a", "a", "a"]),
    ],
)
def test_an_unmeasured_value_stays_unmeasured_and_is_never_true(text, expected):
    rows = [
        {"time": 100.0, "whole": 4, "flag": True, "note": "a", "mixed": True, "nothing": None},
        {"time": None, "whole": None, "flag": None, "note": None, "mixed": "a", "nothing": None},
        {"time": 400.0, "whole": 5, "flag": False, "note": "b", "mixed": 3, "nothing": None},
    ]
    assert plain(evaluate(text, frame_of(rows), flag="--add")) == expected
    assert plain(evaluate(text, frame_of(rows)[1:], flag="--add")) == expected[1:], "also of a part of the cells"


@in_each("text", ["abs(1, 2)", "sqrt()", "round(1, 2, 3)", "min()"])
def test_a_function_of_too_many_or_too_few_values_is_refused(text):
    with pytest.raises(UsageError, match=r"--add .*: \w+ does not take \d values; use columns"):
        value(text)


@in_each("text", ["batch_size", "max(batch_size, 4)", "-(-batch_size)", "round(batch_size / 1)"])
def test_a_whole_number_without_arithmetic_stays_whole(text):
    assert repr(value(text)) == "4"


@in_each(
    "text",
    [
        "__import__('os').system('true')", "mean_time_ms.real", "(lambda: 1)()", "[1][0]", "open('x')", "f'{1}'",
        "exit()", "1 if 1 else 2", "x := 1", "{**{}}", "1 +", "", "(" * 60 + "1" + ")" * 60 + "+" * 0, "-" * 60 + "1",
        "9" * 600, "a @ b", "1 << 9", "print(1)", "max(*[1])", "max(1, key=abs)", "max()(1)",
        "1 in (1, 2)", "model_size is None", "~1",
    ],
)  # fmt: skip
def test_an_expression_other_than_arithmetic_is_refused(text):
    if text.startswith("(" * 60):
        assert value(text) == 1.0  # brackets alone nest nothing
        return
    with pytest.raises(UsageError, match="--add"):
        value(text)


def test_an_added_column_may_use_another_added_column():
    cells = aggregate.with_columns(frame_of([row()]), ["seconds=mean_time_ms/1000", "rate=1/seconds"])
    assert cells["rate"].tolist() == pytest.approx([10.0])


@in_each(
    ("conditions", "left"),
    [
        (["model_size=small"], 3),
        (["model_size==small"], 3),
        (["num_layers == num_heads"], 5),
        (["model_size = 'small'", "context_length=128"], 2),
        (["context_length >= 256"], 2),
        (["not forward_only and mean_time_ms < 300"], 3),
        (["forward_only=true"], 1),
        (["context_length=128.0"], 3),
    ],
)
def test_filters_keep_the_cells_that_meet_them(conditions, left):
    assert len(aggregate.filtered(CELLS, conditions)) == left


@in_each(
    ("flags", "says"),
    [
        (["--filter", "model_size=huge"], "--filter 'model_size=huge': none of 5 rows is left"),
        (["--filter", "nothing=1"], "--filter nothing: no row has such a column; columns: model_size,"),
        (["--add", "x=nothing+1"], "--add nothing: no row has such a column"),
        (["--add", "mean_time_ms=1"], "--add 'mean_time_ms=1': cells have a column mean_time_ms already"),
        (["--add", "x=1", "--add", "x=2"], "--add 'x=2': cells have a column x already; give it another name"),
        (["--add", "1000/mean_time_ms"], "write it as name=expression"),
        (["--rows", "nothing"], "--rows nothing: no row has such a column"),
        (["--values", "device"], "--values device: no cell has a number there"),
    ],
)
def test_a_wrong_flag_is_reported_in_one_line(folder, flags, says, capsys):
    assert main(["aggregate", str(folder), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(folder, capsys):
    assert main(["aggregate", str(folder), "--html", str(folder)]) == 2
    assert capsys.readouterr().err == f"tprimat aggregate: --html {folder}: a folder, not a file; choose another name\n"


def test_a_folder_without_cells_names_the_remedy(tmp_path, capsys):
    assert main(["aggregate", str(tmp_path)]) == 2
    assert "no cells in it; run tprimat sweep first" in capsys.readouterr().err
    with pytest.raises(InputError, match="no such folder"):
        load_rows(tmp_path / "absent")


def test_broken_files_are_named_and_left_out(folder, capsys):
    (folder / "bench_9.json").write_text('{"model_size": ')
    (folder / "bench_nan.json").write_text(json.dumps(row(mean=float("nan"))))
    assert main(["aggregate", str(folder)]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert "bench_9.json" in line
    cells, _ = load_rows(folder)
    assert cells["mean_time_ms"].isna().sum() == 1, "NaN is unmeasured, and its cell is kept"


def test_a_fit_finds_the_exponent_of_a_power_law():
    rows = [row(context=context, mean=0.5 * context**1.5) for context in (64, 128, 256)]
    (found,) = aggregate.size_scalings(frame_of(rows), "context_length")
    assert found.exponent == pytest.approx(1.5)
    assert found.factor == pytest.approx(0.5)


def test_two_points_are_too_few_to_fit_an_exponent():
    rows = [row(context=context, mean=float(context)) for context in (64, 128)]
    (found,) = aggregate.size_scalings(frame_of(rows), "context_length")
    assert (found.exponent, found.factor) == (None, None)


def test_sizes_of_one_label_and_several_shapes_are_distinguished():
    rows = [row(), row(d_model=256, num_layers=4, num_heads=4, num_parameters=20_000_000, mean=20.0)]
    document = reports.render_markdown(
        reports.aggregate_tables(frame_of(rows), added=(), fits=(), pivots=aggregate.pivots(frame_of(rows),
        rows="model_size", columns="context_length", values="mean_time_ms")), heading="x",
    )  # fmt: skip
    for name in ("small 768x12x12", "small 256x4x4"):
        assert document.count(name) >= 2
    header = next(line for line in document.splitlines() if "Width" in line)
    assert [title for title in ("Width", "Layers", "Heads") if title in header] == ["Width", "Layers", "Heads"]


def pair(*, alone, both, **more):
    rows = [row(forward_only=True, mean=40.0, trial_times_ms=alone), row(trial_times_ms=both, **more)]
    (found,) = aggregate.pass_pairs(frame_of(rows))
    return found


def test_the_backward_time_of_two_cells_is_the_difference_of_equally_numbered_trials():
    found = pair(alone=[40.0, 42.0, 38.0], both=[100.0, 105.0, 99.0])
    assert found.backward_ms == pytest.approx((60 + 63 + 61) / 3)
    assert found.backward_std_ms == pytest.approx(1.5275, rel=1e-3)
    assert found.backward_cv_percent == pytest.approx(100 * 1.5275 / 61.333, rel=1e-3)
    assert "of the same trial" in found.method


def test_a_backward_time_measured_directly_is_preferred_to_a_difference():
    found = pair(alone=[40.0, 42.0], both=[100.0, 105.0], backward_time_ms=58.0, backward_std_ms=0.5)
    assert (found.backward_ms, found.backward_std_ms) == (58.0, 0.5)
    assert "timed directly" in found.method


@in_each("both", [[100.0], [], None, [100.0, None]])
def test_trials_that_cannot_be_paired_give_no_deviation(both):
    found = pair(alone=[40.0, 42.0], both=both)
    assert (found.backward_ms, found.backward_std_ms, found.backward_cv_percent) == (60.0, None, None)
    assert "without a deviation" in found.method


def test_of_cells_with_one_configuration_the_last_is_paired():
    rows = [row(forward_only=True, mean=40.0), row(mean=90.0), row(mean=100.0, backward_time_ms=58.0)]
    (found,) = aggregate.pass_pairs(frame_of(rows))
    assert (found.forward_ms, found.forward_backward_ms, found.backward_ms) == (40.0, 100.0, 58.0)


def test_equal_values_of_two_kinds_are_shown_each_in_its_own_form():
    table = reports.all_cells_table(frame_of([row(compile=True), row(compile=1), row(compile="reduce")]))
    place = [column.title for column in table.columns].index("Compiled")
    assert [texts[place].text for texts in table.rows] == ["yes", "1", "reduce"]


def test_cells_of_one_scaling_curve_differ_only_in_the_scaled_setting():
    found = aggregate.size_scalings(CELLS, "context_length")
    assert sorted(len(one.points) for one in found) == [2, 2]
    (by_size, other) = aggregate.size_scalings(CELLS, "num_parameters")
    assert {by_size.label, other.label} == {"context 128", "context 256"}


def test_the_ending_of_a_plot_selects_its_format(folder, tmp_path):
    for name, start in (("s.png", b"\x89PNG"), ("s.svg", b"<?xml")):
        assert main(["aggregate", str(folder), "--plot", str(tmp_path / name), "--csv", str(tmp_path / "s.csv")]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)


@in_each(
    ("flag", "name", "remedy"),
    [
        ("--plot", "s.pdf", "must end in .png or .svg"),
        ("--roofline", "s.jpg", "must end in .png or .svg"),
        ("--output", "s.html", "use --html"),
        ("--output", "s.png", "use --plot"),
    ],
)
def test_a_name_that_promises_another_format_is_refused_before_the_work(folder, tmp_path, capsys, flag, name, remedy):
    assert main(["aggregate", str(folder), flag, str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert f"{flag} {tmp_path / name}: " in printed.err
    assert remedy in printed.err
    assert printed.out == ""
    assert not (tmp_path / name).exists()


def test_ticks_of_the_scaling_plot_are_numbers_in_millions():
    seen = []

    def draw(figure):
        cell_plots.size_scaling_plot(figure, aggregate.size_scalings(CELLS, "num_parameters"))
        figure.canvas.draw()
        seen.extend(label.get_text() for label in figure.axes[0].get_xticklabels())

    canvas.picture(draw)
    assert seen == ["128.6 M", "423.2 M"]


def test_the_legend_of_many_curves_is_inside_the_picture_and_the_title_counts_them():
    settings = itertools.product((128, 256, 512), range(1, 9), ("bf16", "fp32"))
    rows = [
        {
            **ROWS[0], "context_length": context, "batch_size": batch, "precision": precision,
            "mean_time_ms": 9.0 + number, "autocast": precision == "bf16",
            "device_name": f"NVIDIA H{batch}00 with a long name of its system",
        }
        for number, (context, batch, precision) in enumerate(settings)
    ]  # fmt: skip
    fits = aggregate.size_scalings(frame_of(rows), "context_length")
    figure = canvas.laid_out(partial(cell_plots.size_scaling_plot, found=fits))
    figure.canvas.draw()
    (axes,) = figure.axes
    legend, whole = axes.get_legend().get_window_extent(), figure.bbox
    assert 0 <= legend.x0 < legend.x1 <= whole.x1
    assert 0 <= legend.y0 < legend.y1 <= whole.y1
    assert axes.get_title() == "Time against context length (12 of 16 curves; the table has all)"


@pytest.mark.filterwarnings("error")
def test_names_that_the_plots_font_lacks_are_drawn_without_a_warning():
    rows = [
        {**ROWS[0], "model_size": "日本\x1b[31m", "context_length": length, "mean_time_ms": 9.0} for length in (1, 2)
    ]
    other = [{**row, "model_size": "b"} for row in rows]
    fits = aggregate.size_scalings(frame_of([*rows, *other]), "context_length")
    assert canvas.picture(partial(cell_plots.size_scaling_plot, found=fits)).startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "most"), [("LARGEST_FOLDER_BYTES", 1000), ("MOST_ROWS", 4)])
def test_a_folder_of_more_cells_than_a_table_can_hold_is_refused_in_one_line(folder, monkeypatch, capsys, name, most):
    monkeypatch.setattr(cell_rows, name, most)
    assert main(["aggregate", str(folder)]) == 2
    printed = capsys.readouterr().err
    assert "too many for one table; move them into several folders" in printed.replace("\n", " ")


def test_large_files_without_cells_do_not_count_towards_the_size_limit(folder, monkeypatch):
    monkeypatch.setattr(cell_rows, "LARGEST_FOLDER_BYTES", 5000)
    (folder / "result.json").write_text(json.dumps({"raw_step_times": [1.5] * 5000}))
    assert len(load_rows(folder)[0]) == 5
