"""Tests of tprimat aggregate: a folder of cells as tables, pivots, user-defined columns, and a data frame."""

import itertools
import json

import pytest

import tensorprimat
from tensorprimat.analysis import aggregate
from tensorprimat.analysis.expressions import Expression
from tensorprimat.cli import main
from tensorprimat.core import cell_rows
from tensorprimat.core.cell_rows import load_rows
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.reports import aggregate as reports
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots import micro as cell_plots

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


def test_importing_tensorprimat_imports_no_pandas():
    assert "pandas" not in vars(tensorprimat)


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
    table = aggregate.pivot(ROWS, rows="context_length", columns="model_size", values="mean_time_ms")
    assert table.means[0] == (70.0, 200.0)
    assert "Means of up to 2 cells" in reports.pivot_table(table).note


def test_cells_of_different_passes_are_never_averaged_together():
    tables = aggregate.pivots(ROWS, rows="context_length", columns="model_size", values="mean_time_ms")
    assert {table.pass_name for table in tables} == {aggregate._pass_of(row) for row in ROWS}
    assert len(tables) > 1
    assert all(table.most_cells == 1 for table in tables)
    by_pass = aggregate.pivots(ROWS, rows="context_length", columns="forward_only", values="mean_time_ms")
    assert [table.pass_name for table in by_pass] == [None]


def test_each_setting_in_which_cells_differ_gets_a_column():
    rows = [row(), row(attention="eager")]
    titles = [column.title for column in reports.all_cells_table(rows).columns]
    assert "Attention" in titles
    assert "Vocabulary" not in titles


def test_pivots_and_the_complete_table_show_oom_in_place_of_a_time():
    rows = [row(), row("medium", mean=None, status="oom")]
    table = aggregate.pivot(rows, rows="context_length", columns="model_size", values="mean_time_ms")
    assert table.means == ((100.0, "OOM"),)
    assert reports.all_cells_table(rows).rows[1][-1].text == "OOM"


def test_the_document_names_the_tables_that_it_leaves_out_and_the_flag_that_shows_one():
    many = aggregate.sort([row(context=128 + number, mean=100.0 + number) for number in range(reports.MOST_TABLES + 1)])
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
    tables = reports.aggregate_tables(rows, added=(), pivots=(), fits=())
    assert "<script>" not in reports.render_html(tables, heading="h")
    assert "<script>" not in reports.render_markdown(tables, heading="h")


@pytest.mark.parametrize(
    ("text", "value"),
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
def test_an_expression_gives_its_value_or_none_if_it_cannot_be_evaluated(text, value):
    assert Expression(text, flag="--add").value(row()) == value


@pytest.mark.parametrize("text", ["batch_size", "max(batch_size, 4)", "-(-batch_size)", "round(batch_size / 1)"])
def test_a_whole_number_without_arithmetic_stays_whole(text):
    assert repr(Expression(text, flag="--add").value(row())) == "4"


@pytest.mark.parametrize(
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
        assert Expression(text, flag="--add").value({}) == 1.0  # brackets alone nest nothing
        return
    with pytest.raises(UsageError, match="--add"):
        Expression(text, flag="--add")


def test_an_added_column_may_use_another_added_column():
    (first, *_) = aggregate.with_columns([row()], ["seconds=mean_time_ms/1000", "rate=1/seconds"])
    assert first["rate"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        (["model_size=small"], 3),
        (["model_size==small"], 3),
        (["num_layers == num_heads"], 5),
        (["model_size = 'small'", "context_length=128"], 2),
        (["context_length >= 256"], 2),
        (["not forward_only and mean_time_ms < 300"], 3),
        (["forward_only=true"], 1),
    ],
)
def test_filters_keep_the_cells_that_meet_them(conditions, left):
    assert len(aggregate.filtered(ROWS, conditions)) == left


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--filter", "model_size=huge"], "--filter 'model_size=huge': none of 5 cells is left"),
        (["--filter", "nothing=1"], "--filter nothing: no cell has such a column; columns: model_size,"),
        (["--add", "x=nothing+1"], "--add nothing: no cell has such a column"),
        (["--add", "mean_time_ms=1"], "--add 'mean_time_ms=1': cells have a column mean_time_ms already"),
        (["--add", "x=1", "--add", "x=2"], "--add 'x=2': cells have a column x already; give it another name"),
        (["--add", "1000/mean_time_ms"], "write it as name=expression"),
        (["--rows", "nothing"], "--rows nothing: no cell has such a column"),
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
    rows, _ = load_rows(folder)
    assert [one["mean_time_ms"] for one in rows].count(None) == 1, "NaN is unmeasured, and its cell is kept"


def test_a_fit_finds_the_exponent_of_a_power_law():
    rows = [row(context=context, mean=0.5 * context**1.5) for context in (64, 128, 256)]
    (found,) = aggregate.size_scalings(rows, "context_length")
    assert found.exponent == pytest.approx(1.5)
    assert found.factor == pytest.approx(0.5)


def test_two_points_are_too_few_to_fit_an_exponent():
    rows = [row(context=context, mean=float(context)) for context in (64, 128)]
    (found,) = aggregate.size_scalings(rows, "context_length")
    assert (found.exponent, found.factor) == (None, None)


def test_sizes_of_one_label_and_several_shapes_are_distinguished():
    rows = [row(), row(d_model=256, num_layers=4, num_heads=4, num_parameters=20_000_000, mean=20.0)]
    document = reports.render_markdown(
        reports.aggregate_tables(rows, added=(), fits=(), pivots=aggregate.pivots(aggregate.with_distinct_labels(rows),
        rows="model_size", columns="context_length", values="mean_time_ms")), heading="x",
    )  # fmt: skip
    for name in ("small 768x12x12", "small 256x4x4"):
        assert document.count(name) >= 2
    header = next(line for line in document.splitlines() if "Width" in line)
    assert [title for title in ("Width", "Layers", "Heads") if title in header] == ["Width", "Layers", "Heads"]


def pair(*, alone, both, **more):
    rows = [row(forward_only=True, mean=40.0, trial_times_ms=alone), row(trial_times_ms=both, **more)]
    (found,) = aggregate.pass_pairs(rows)
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


@pytest.mark.parametrize("both", [[100.0], [], None, [100.0, None]])
def test_trials_that_cannot_be_paired_give_no_deviation(both):
    found = pair(alone=[40.0, 42.0], both=both)
    assert (found.backward_ms, found.backward_std_ms, found.backward_cv_percent) == (60.0, None, None)
    assert "without a deviation" in found.method


def test_cells_of_one_scaling_curve_differ_only_in_the_scaled_setting():
    found = aggregate.size_scalings(ROWS, "context_length")
    assert sorted(len(one.points) for one in found) == [2, 2]
    (by_size, other) = aggregate.size_scalings(ROWS, "num_parameters")
    assert {by_size.label, other.label} == {"context 128", "context 256"}


def test_aggregate_writes_the_scaling_plot_as_png(folder, tmp_path):
    assert main(["aggregate", str(folder), "--plot", str(tmp_path / "s.png"), "--csv", str(tmp_path / "s.csv")]) == 0
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_the_ending_of_a_plot_selects_its_format(folder, tmp_path):
    assert main(["aggregate", str(folder), "--plot", str(tmp_path / "s.svg"), "--csv", str(tmp_path / "s.csv")]) == 0
    assert (tmp_path / "s.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
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
        cell_plots.size_scaling_plot(aggregate.size_scalings(ROWS, "num_parameters"))(figure)
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
    figure = canvas.laid_out(cell_plots.size_scaling_plot(aggregate.size_scalings(rows, "context_length")))
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
    fits = aggregate.size_scalings([*rows, *other], "context_length")
    assert canvas.picture(cell_plots.size_scaling_plot(fits)).startswith(b"\x89PNG")


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
