"""TraceLens reports: how the wall time of a GPU divides, over ranks and processes, and two profiles side by side."""

import zipfile
from contextlib import suppress

import pytest
import scratch
from drawn import examples
from each import in_each
from hypothesis import given as property_given
from hypothesis import strategies as st

from tensorprimat import logs
from tensorprimat.cli import main
from tensorprimat.core import profile
from tensorprimat.core.errors import InputError, MissingPackageError, TensorPrimatError
from tensorprimat.logs import excel
from tensorprimat.reports import survey

openpyxl = pytest.importorskip("openpyxl")

TIMELINE = {
    "computation_time": 60.0, "exposed_comm_time": 20.0, "exposed_memcpy_time": 1.0, "busy_time": 81.0,
    "idle_time": 19.0, "total_time": 100.0, "total_comm_time": 45.0,
}  # fmt: skip
CATEGORIES = [("GEMM", 10, 40.0), ("elementwise", 30, 20.0)]


def workbook(path, sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def report(path, timeline=TIMELINE, factor=1.0):
    return workbook(
        path,
        {
            "gpu_timeline": [
                ("type", "time ms", "percent"),
                *((name, value * factor, value) for name, value in timeline.items()),
            ],
            "ops_summary_by_category": [
                ("op category", "Count", "total_direct_kernel_time_ms"),
                *((name, count, time * factor) for name, count, time in CATEGORIES),
            ],
        },
    )


def test_the_wall_time_divides_into_its_parts(tmp_path):
    (timeline,) = excel.read_profile([report(tmp_path / "p.xlsx")]).timelines
    assert timeline == profile.Timeline(
        rank="p.xlsx",
        total_seconds=0.1,
        busy_seconds=0.081,
        computation_seconds=0.06,
        exposed_communication_seconds=0.02,
        exposed_copy_seconds=0.001,
        idle_seconds=0.019,
        communication_seconds=0.045,
    )


def test_kernel_categories_come_with_their_share_of_all_kernels(tmp_path):
    kernels = excel.read_profile([report(tmp_path / "p.xlsx")]).kernels
    assert [(kernel.name, kernel.count, pytest.approx(kernel.seconds)) for kernel in kernels] == [
        ("GEMM", 10, 0.04),
        ("elementwise", 30, 0.02),
    ]
    assert [kernel.share for kernel in kernels] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_ranks_of_one_run_are_averaged(tmp_path):
    ranks = [report(tmp_path / f"run_rank{rank}.xlsx", factor=1 + rank) for rank in range(3)]
    assert excel.ranks_of_one_run(reversed(ranks)) == [tuple(ranks)]
    merged = excel.read_profile(ranks)
    assert merged.seconds("busy_seconds") == pytest.approx(0.081 * 2)
    assert merged.kernels[0].seconds == pytest.approx(0.04 * 2)
    assert [timeline.rank for timeline in merged.timelines] == [path.name for path in ranks]


def test_profiles_of_different_gpus_are_not_ranks_of_one_run(tmp_path):
    paths = [tmp_path / "h100_rank0.xlsx", tmp_path / "mi300x_rank0.xlsx"]
    assert excel.ranks_of_one_run(paths) == [(paths[0],), (paths[1],)]


def test_a_report_with_rows_per_process_gives_one_timeline_per_process(tmp_path):
    rows = [(pid, name, value * pid) for pid in (1, 3) for name, value in TIMELINE.items()]
    path = workbook(tmp_path / "p.xlsx", {"gpu_timeline": [("gpu_pid", "type", "time ms"), *rows]})
    seen = excel.read_profile([path])
    assert [timeline.total_seconds for timeline in seen.timelines] == [pytest.approx(0.1), pytest.approx(0.3)]
    assert seen.seconds("idle_seconds") == pytest.approx(0.019 * 2)


def test_a_report_of_collectives_alone_has_no_busy_time_and_a_note(tmp_path):
    names = ("Collective name", "dtype", "Group size", "Full msg size (MB)", "comm_latency_mean", "count",
             "bus bw (GB/s)_mean", "Total comm latency (ms)")  # fmt: skip
    rows = [names, ("allreduce", "Float", 8, 2.0, 500.0, 10, 100.0, 5.0)]
    seen = excel.read_profile([workbook(tmp_path / "p.xlsx", {"nccl_summary_implicit_sync": rows})])
    assert seen.seconds("busy_seconds") is None
    assert seen.collectives[0] == profile.ProfiledCollective(
        name="allreduce", dtype="Float", group_size=8, message_bytes=2 * 2**20, count=10, total_seconds=0.005,
        mean_seconds=0.0005, bus_bytes_per_second=100 * 2**30,
    )  # fmt: skip
    assert any("no sheet gpu_timeline" in warning for warning in seen.warnings)


def test_two_profiles_stand_side_by_side(tmp_path):
    one = excel.read_profile([report(tmp_path / "a.xlsx")])
    other = excel.read_profile([report(tmp_path / "b.xlsx", {**TIMELINE, "idle_time": 38.0})])
    rows = {row["name"]: row for row in survey.compare_profiles(one, other)}
    idle = rows["idle"]
    assert (idle["one_seconds"], idle["other_seconds"], idle["ratio"]) == (0.019, 0.038, 2.0)
    assert idle["one_share"] == pytest.approx(0.19)
    assert rows["GEMM kernels"]["ratio"] == pytest.approx(1.0)


def test_a_part_of_one_profile_only_has_no_ratio(tmp_path):
    timeline_only = workbook(tmp_path / "b.xlsx", {"gpu_timeline": [("type", "time ms"), ("total_time", 50.0)]})
    one, other = excel.read_profile([report(tmp_path / "a.xlsx")]), excel.read_profile([timeline_only])
    rows = {row["name"]: row for row in survey.compare_profiles(one, other)}
    assert rows["total"]["ratio"] == pytest.approx(0.5)
    assert (rows["GEMM kernels"]["other_seconds"], rows["GEMM kernels"]["ratio"]) == (None, None)


def test_times_that_are_not_positive_numbers_are_unmeasured(tmp_path):
    rows = [
        ("type", "time ms"), ("total_time", "n/a"), ("busy_time", -3), ("idle_time", None), ("computation_time", 4.0),
    ]  # fmt: skip
    (timeline,) = excel.read_profile([workbook(tmp_path / "p.xlsx", {"gpu_timeline": rows})]).timelines
    assert (timeline.total_seconds, timeline.busy_seconds, timeline.idle_seconds) == (None, None, None)
    assert timeline.computation_seconds == 0.004


def test_a_profile_is_recognised_by_content_and_never_becomes_a_result(tmp_path):
    path = report(tmp_path / "p.xlsx").rename(tmp_path / "report.dat")
    with pytest.raises(InputError, match="is a profile, not a training log; tprimat analyze"):
        logs.read(path)


@in_each(
    ("content", "says"),
    [
        (b"", "is not an Excel workbook"),
        (b"PK\x03\x04torn", "is not an Excel workbook"),
        (b"text", "not an Excel workbook"),
    ],
)
def test_a_file_that_is_not_a_workbook_is_refused(tmp_path, content, says):
    path = tmp_path / "p.xlsx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        excel.read_profile([path])


def test_a_workbook_of_something_else_is_refused_with_the_sheets_looked_for(tmp_path):
    with pytest.raises(InputError, match="not a TraceLens report: no sheet gpu_timeline"):
        excel.read_profile([workbook(tmp_path / "p.xlsx", {"budget": [("year", 1)]})])


def test_a_workbook_that_unpacks_to_more_than_any_report_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(excel, "MOST_UNPACKED_BYTES", 2**20)
    path = report(tmp_path / "p.xlsx")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/sharedStrings.xml", b"<t>" + b"0" * 2**21)
    with pytest.raises(InputError, match="unpacks to"):
        excel.read_profile([path])


def test_a_workbook_of_more_cells_than_any_report_is_refused_with_the_bound(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(excel, "MOST_CELLS", 29)
    path = workbook(
        tmp_path / "p.xlsx",
        {
            "gpu_timeline": [("type", "time ms"), *TIMELINE.items()],
            "ops_summary_by_category": [("op category", "Count", "total_direct_kernel_time_ms"), *CATEGORIES * 5],
        },
    )
    assert main(["analyze", str(path)]) == 2
    assert (
        "more than 29 cells up to row 7 of sheet ops_summary_by_category; trace fewer steps" in capsys.readouterr().out
    )


def test_the_screen_shows_the_largest_kernels_and_how_many_there_are_more(tmp_path, capsys):
    kernels = [(f"op {number}", 1, 100.0 - number) for number in range(90)]
    rows = [("op category", "Count", "total_direct_kernel_time_ms"), *kernels, ("tail", 1, 1e-3)]
    few = [(f"small {number}", 1, 1e-6) for number in range(40)]
    path = workbook(
        tmp_path / "p.xlsx",
        {"gpu_timeline": [("type", "time ms"), *TIMELINE.items()], "ops_summary_by_category": [*rows, *few]},
    )
    assert main(["analyze", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "op 89 kernels" in shown
    assert "small 39 kernels" not in shown
    assert "38 more categories of kernels: --json shows all" in shown


def test_without_openpyxl_the_package_is_named(tmp_path, monkeypatch):
    path = report(tmp_path / "p.xlsx")
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(MissingPackageError, match="pip install openpyxl"):
        excel.read_profile([path])


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Bytes of a whole report."""
    return report(tmp_path_factory.mktemp("report") / "p.xlsx").read_bytes()


@examples(20)
@property_given(position=st.integers(0, 9000), junk=st.binary(max_size=30))
def test_damaged_workbooks_raise_nothing_but_the_tools_own_errors(content, position, junk):
    damaged = content[:position] + junk + content[position + len(junk) :]
    with scratch.written(damaged, ending=".xlsx") as path, suppress(TensorPrimatError):
        excel.read_profile([path])


@examples(20)
@property_given(
    xml=st.text(max_size=200), member=st.sampled_from(["xl/worksheets/sheet1.xml", "xl/workbook.xml", "xl/styles.xml"])
)
def test_foreign_xml_inside_raises_nothing_but_the_tools_own_errors(tmp_path_factory, content, xml, member):
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "whole.xlsx").write_bytes(content)
    with zipfile.ZipFile(folder / "whole.xlsx") as whole, zipfile.ZipFile(folder / "p.xlsx", "w") as changed:
        for name in whole.namelist():
            changed.writestr(name, xml.encode("utf-8", "replace") if name == member else whole.read(name))
    with suppress(TensorPrimatError):
        excel.read_profile([folder / "p.xlsx"])


def test_real_reports_of_two_vendors_are_read(shared):
    folder = shared / "excel"
    h100, mi300x = (excel.read_profile([folder / f"{gpu}_qwen_rank0.xlsx"]) for gpu in ("h100", "mi300x"))
    assert h100.seconds("computation_seconds") == pytest.approx(31.903e-3, rel=1e-4)
    assert mi300x.seconds("computation_seconds") == pytest.approx(29.743e-3, rel=1e-4)
    assert mi300x.seconds("total_seconds") == pytest.approx(33.131e-3, rel=1e-4)
    total = next(row for row in survey.compare_profiles(h100, mi300x) if row["name"] == "total")
    assert total["ratio"] == pytest.approx(0.9495, rel=1e-3)
    nccl = excel.read_profile([folder / "mi300x_llama_70b_nccl.xlsx"])
    assert (nccl.timelines, len(nccl.collectives)) == ((), 5)


def test_a_whole_number_of_hundreds_of_digits_is_unmeasured():
    assert [excel._number(value) for value in (10**400, -(10**400), 10**18)] == [None, None, 1e18]
