"""TraceLens reports (AMD-AGI/TraceLens): Excel workbooks on the activity of a GPU in a profiled stretch of training.

Sheet `gpu_timeline` divides the wall time of one rank: computation, communication and copies that computation does not
hide, idle; `ops_summary_by_category` and `kernel_summary` divide the kernels' time; `nccl_summary_implicit_sync` holds
collectives. Newer reports add `gpu_pid` and repeat the rows for every process. TraceLens counts messages in MiB and
bandwidth in GiB/s, although its labels differ.
"""

from __future__ import annotations

import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from tensorprimat.core.errors import InputError, MissingPackageError
from tensorprimat.core.profile import KernelCategory, Profile, ProfiledCollective, Timeline
from tensorprimat.core.quantities import count
from tensorprimat.core.units import GIB, MIB
from tensorprimat.logs import files
from tensorprimat.logs.fields import number_in
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

ZIP_MAGIC = b"PK\x03\x04"  # a zip archive, as every workbook is
MOST_COLUMNS = 200  # of a sheet
MOST_CELLS = 400_000  # of the sheets that are read; TraceLens writes some ten thousand
SHARED_STRINGS = "xl/sharedStrings.xml"
MOST_STRINGS = 500_000  # texts that sheets share
MOST_UNPACKED_BYTES = 2**28
MOST_EXPANSION = 300  # workbooks pack 5 to 50 times
FEWER = "trace fewer steps"
TIMELINE = "gpu_timeline"
CATEGORIES = "ops_summary_by_category"
KERNELS = "kernel_summary"
COLLECTIVES = "nccl_summary_implicit_sync"

TIMELINE_ROWS = {
    "total_time": "total_seconds",
    "busy_time": "busy_seconds",
    "computation_time": "computation_seconds",
    "exposed_comm_time": "exposed_communication_seconds",
    "exposed_memcpy_time": "exposed_copy_seconds",
    "idle_time": "idle_seconds",
    "total_comm_time": "communication_seconds",
}
"""Rows of gpu_timeline → field of Timeline."""

KERNEL_COLUMNS = (
    (CATEGORIES, "op category", "total_direct_kernel_time_ms", 1e-3, "Count"),
    (KERNELS, "Parent op category", "Kernel duration (µs)_sum", 1e-6, "Kernel duration (µs)_count"),
)
"""Sheet, its columns of category and time, the time's unit in seconds, and its column of calls."""

_DAMAGED = (
    zipfile.BadZipFile,
    *(zlib.error, ParseError, LookupError, ValueError, TypeError, AttributeError, EOFError),
    *(RuntimeError, ArithmeticError, AssertionError, OSError),
)  # errors that openpyxl, zipfile and the XML parser are known to raise on broken workbooks
_RANK = re.compile(r"(?<![A-Za-z0-9])rank[_-]?(\d{1,6})|(?<=[_-])rank(\d{1,6})", re.IGNORECASE)


def is_workbook(path: Path) -> bool:
    """Return True if a file is an Excel workbook, judged by its content."""
    try:
        if files.first_bytes(path, len(ZIP_MAGIC)) != ZIP_MAGIC:
            return False
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (InputError, OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def read_profile(paths: Sequence[Path]) -> Profile:
    """Return the reports of one run, one file per rank, as one profile; times of kernels are means over the files.

    Raises InputError for a file that is not a TraceLens report, MissingPackageError without openpyxl.
    """
    timelines: list[Timeline] = []
    kernels: list[list[KernelCategory]] = []
    collectives: list[ProfiledCollective] = []
    remarks: list[str] = []
    for path in paths:
        sheets = _sheets(path)
        timelines += _timelines(path, sheets.get(TIMELINE, []))
        kernels.append(_kernels(sheets))
        collectives += _collectives(sheets.get(COLLECTIVES, []))
        if TIMELINE not in sheets:
            remarks.append(f"{path.name}: no sheet {TIMELINE}, so busy and idle time are unknown")
    if not timelines and not any(kernels) and not collectives:
        raise InputError(
            f"is a workbook, but not a TraceLens report: no sheet {TIMELINE}, {CATEGORIES}, {KERNELS} or {COLLECTIVES}",
            path=paths[0] if len(paths) == 1 else paths[0].parent,
        )
    return Profile(
        files=tuple(path.name for path in paths),
        timelines=tuple(timelines),
        kernels=_mean_of(kernels),
        collectives=tuple(collectives),
        warnings=tuple(remarks),
    )


def ranks_of_one_run(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Return files grouped by run: those of one folder whose names differ in the number of the rank alone.

    >>> ranks_of_one_run([Path("a/p_rank1.xlsx"), Path("a/p_rank0.xlsx"), Path("a/q.xlsx")])
    [(PosixPath('a/p_rank0.xlsx'), PosixPath('a/p_rank1.xlsx')), (PosixPath('a/q.xlsx'),)]
    """
    runs: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        runs.setdefault((path.parent, _RANK.sub("rank", path.name)), []).append(path)
    return [tuple(sorted(ranks, key=_rank_number)) for ranks in runs.values()]


def _rank_number(path: Path) -> tuple[int, str]:
    match = _RANK.search(path.name)
    return int(match[1] or match[2]) if match else -1, path.name


SheetRow = dict[str, Any]


def _sheets(path: Path) -> dict[str, list[SheetRow]]:
    """Return the rows of the sheets that matter, by the names in their first row."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise MissingPackageError("openpyxl", needed_for="Excel profiles") from error
    if not is_workbook(path):
        raise InputError("is not an Excel workbook", path=path)
    try:
        _refuse_bombs(path)
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # openpyxl's remarks about styles and extensions that it leaves out
            book = load_workbook(file, read_only=True, data_only=True)
            names = [name for name in (TIMELINE, CATEGORIES, KERNELS, COLLECTIVES) if name in book.sheetnames]
            return _with_few_cells({name: _rows(book[name]) for name in names}, path)
    except _DAMAGED as error:
        raise InputError(f"is a damaged workbook: {type(error).__name__}", path=path) from error


def _refuse_bombs(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
        has_strings = unpacked <= MOST_UNPACKED_BYTES and SHARED_STRINGS in archive.namelist()
        strings = archive.read(SHARED_STRINGS).count(b"<si>") if has_strings else 0
    if strings > MOST_STRINGS:
        raise InputError(
            f"holds {count(strings)} different texts; a report with at most {count(MOST_STRINGS)} is read; {FEWER}",
            path=path,
        )
    if unpacked > MOST_UNPACKED_BYTES or unpacked > MOST_EXPANSION * max(path.stat().st_size, MIB):
        raise InputError(
            f"unpacks to {count(unpacked / MIB)} MiB; one of at most {MOST_UNPACKED_BYTES // MIB} MiB is read; {FEWER}",
            path=path,
        )


def _with_few_cells(sheets: dict[str, Iterator[SheetRow]], path: Path) -> dict[str, list[SheetRow]]:
    """Return the rows of all sheets. Raises InputError for more cells than are read in seconds."""
    found: dict[str, list[SheetRow]] = {}
    left = MOST_CELLS
    for name, rows in sheets.items():
        found[name] = []
        for row in rows:
            left -= max(1, len(row))
            if left < 0:
                row_number = count(len(found[name]) + 2)
                raise InputError(
                    f"more than {count(MOST_CELLS)} cells up to row {row_number} of sheet {name}; {FEWER}", path=path
                )
            found[name].append(row)
    return found


def _rows(sheet: Any) -> Iterator[SheetRow]:
    names: list[str] = []
    for cells in sheet.iter_rows(max_col=min(sheet.max_column or 1, MOST_COLUMNS), values_only=True):
        if not names:
            names = [str(cell) if cell is not None else "" for cell in cells]
        else:
            yield dict(zip(names, cells, strict=False))


def _timelines(path: Path, rows: list[SheetRow]) -> list[Timeline]:
    """Return one timeline for each process of the file."""
    by_process: dict[str, dict[str, float]] = {}
    for row in rows:
        process = row.get("gpu_pid")
        name, milliseconds = TIMELINE_ROWS.get(str(row.get("type"))), _number(row.get("time ms"))
        if name and milliseconds is not None:
            rank = path.name if process is None else f"{path.name} process {process}"
            by_process.setdefault(rank, {})[name] = milliseconds / 1e3
    return [Timeline(rank=rank, **parts) for rank, parts in by_process.items()]


def _kernels(sheets: dict[str, list[SheetRow]]) -> list[KernelCategory]:
    """Return the kernels' time by category; in reports without that table from the one of single kernels."""
    for sheet, category, time, unit, calls in KERNEL_COLUMNS:
        rows = sheets.get(sheet, [])
        found = _summed(
            (_label(row.get(category)), _number(row.get(time)), unit, _number(row.get(calls))) for row in rows
        )
        if found:
            return found
    return []


def _summed(rows: Iterable[tuple[str, float | None, float, float | None]]) -> list[KernelCategory]:
    """Return categories with their rows added up. rows: (name, time, its unit in seconds, count)."""
    seconds: dict[str, float] = {}
    counts: dict[str, float] = {}
    for name, time, unit, number in rows:
        if time is not None:
            seconds[name] = seconds.get(name, 0.0) + time * unit
            counts[name] = counts.get(name, 0.0) + (number or 0.0)
    total = sum(seconds.values())
    return [
        KernelCategory(name=name, seconds=time, count=counts[name] or None, share=time / total if total else None)
        for name, time in sorted(seconds.items(), key=lambda pair: -pair[1])
    ]


def _mean_of(ranks: list[list[KernelCategory]]) -> tuple[KernelCategory, ...]:
    """Return the categories averaged over the ranks that have any."""
    known = [rank for rank in ranks if rank]
    if len(known) <= 1:
        return tuple(known[0]) if known else ()
    return tuple(
        _summed(
            (kernel.name, kernel.seconds, 1 / len(known), (kernel.count or 0) / len(known))
            for rank in known
            for kernel in rank
        )
    )


def _collectives(rows: list[SheetRow]) -> list[ProfiledCollective]:
    return [
        ProfiledCollective(
            name=_label(row.get("Collective name")),
            dtype=_label(row.get("dtype")),
            group_size=_whole(row.get("Group size")),
            message_bytes=_scaled(row.get("Full msg size (MB)"), MIB),
            count=_whole(row.get("count")),
            total_seconds=_scaled(row.get("Total comm latency (ms)"), 1e-3),
            mean_seconds=_scaled(row.get("comm_latency_mean"), 1e-6),
            bus_bytes_per_second=_scaled(row.get("bus bw (GB/s)_mean"), GIB),
        )
        for row in rows
        if row.get("Collective name") is not None
    ]


def _label(cell: object) -> str:
    return "unknown" if cell is None else str(cell)


def _number(cell: object) -> float | None:
    value = number_in(cell)
    return value if value is not None and value >= 0 else None


def _scaled(cell: object, factor: float) -> float | None:
    value = _number(cell)
    return None if value is None else value * factor


def _whole(cell: object) -> int | None:
    value = _number(cell)
    return None if value is None else int(value)


def detect(log: Log) -> int:
    return 1 if not log.is_folder and is_workbook(log.path) else 0


def read(log: Log) -> Reading:
    read_profile([log.path])  # raises InputError for a damaged or foreign workbook
    raise InputError("is a profile, not a training log", path=log.name, remedy="tprimat analyze shows it")
