"""Logs written from the newest line to the oldest are refused."""

from pathlib import Path

import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.core.errors import InputError
from tensorprimat.core.result import Result

NAMES_NO_ROW = ("lightning", "timestamps")
"""Formats whose readers find no row with a time from which an order could be seen; they refuse the log for that."""


def read(tmp_path: Path, content: str, name: str = "a.log") -> Result:
    """Return the result of a log with this content."""
    path = tmp_path / name
    path.write_text(content)
    return logs.read(path)


@in_each("name", sorted({*ALL_JOBS} - {*NAMES_NO_ROW}))
def test_a_log_from_the_newest_line_to_the_oldest_is_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    lines = ALL_JOBS[name](Job())
    head = lines[:1] if name == "metrics table" else []
    content = "\n".join([*head, *lines[: len(head) - 1 if head else None : -1]]) + "\n"
    with pytest.raises(InputError, match=r"from the newest to the oldest.*tac LOG"):
        read(tmp_path, content, "a.csv" if head else "a.log")


@pytest.mark.parametrize("name", NAMES_NO_ROW)
def test_a_log_from_the_newest_line_to_the_oldest_gives_no_figure(tmp_path: Path, name: str) -> None:
    lines = ALL_JOBS[name](Job())
    with pytest.raises(InputError):
        read(tmp_path, "\n".join([lines[0], *lines[:0:-1]]) + "\n", "a.csv")


def refusal_of(tmp_path: Path, lines: list[str]) -> str | None:
    """Return why a log of these lines is refused, or None for one whose rows give a result."""
    try:
        return None if len(read(tmp_path, "\n".join(lines) + "\n").steps) else "no rows"
    except InputError as error:
        return str(error)


def test_no_real_log_in_reverse_gives_a_figure_from_its_rows(shared: Path, tmp_path: Path) -> None:
    paths = [path for path in (shared / "logs").glob("*/*") if path.suffix in (".txt", ".log", ".out")]
    refused = {path.name: refusal_of(tmp_path, path.read_text(errors="replace").splitlines()[::-1]) for path in paths}
    assert None not in refused.values()
    of_rounds = [reason for name, reason in refused.items() if name.startswith(("v4", "v5", "v6"))]
    assert of_rounds
    assert all("from the newest to the oldest" in str(reason) for reason in of_rounds)


def test_restarts_with_few_rows_each_are_not_taken_for_a_reversed_log(tmp_path: Path) -> None:
    lines = ALL_JOBS["megatron"](Job())
    rows = [line for line in lines if "elapsed time" in line]
    banner = lines[: len(lines) - len(rows)]
    restarts = [line for first in (30, 20, 10) for line in (*banner, *rows[first : first + 3])]
    assert len(read(tmp_path, "\n".join(restarts) + "\n").steps) == 9
