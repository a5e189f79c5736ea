"""Logs written from the newest line to the oldest, as log services list them: put in order, or refused."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
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
BEGAN = datetime(2026, 1, 16, 7, 32, tzinfo=timezone.utc)


def entries(lines: list[str], *, text: str, time: str) -> list[dict[str, str]]:
    """Return the entries of a log service, the newest first."""
    stamps = [(BEGAN + timedelta(seconds=second)).isoformat() for second in range(len(lines))]
    return [{text: line, time: stamp} for line, stamp in zip(lines, stamps, strict=True)][::-1]


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


def test_entries_printed_over_several_lines_are_refused_with_the_order_to_export(tmp_path: Path) -> None:
    listed = entries(ALL_JOBS["megatron"](Job()), text="textPayload", time="timestamp")
    with pytest.raises(InputError, match="--order=asc"):
        read(tmp_path, json.dumps(listed, indent=2) + "\n")


@pytest.mark.parametrize("service", ["Cloud Logging", "CloudWatch"])
def test_a_document_in_one_line_is_read_from_its_oldest_entry(tmp_path: Path, service: str) -> None:
    lines = ALL_JOBS["megatron"](Job())
    if service == "Cloud Logging":
        document: object = entries(lines, text="textPayload", time="timestamp")
    else:
        document = {"events": entries(lines, text="message", time="timestamp")}
    expected = read(tmp_path, "\n".join(lines) + "\n", "plain.log")
    found = read(tmp_path, json.dumps(document) + "\n")
    assert found.performance_metrics.tokens_per_second_per_gpu == pytest.approx(8192)
    assert found.performance_metrics == expected.performance_metrics


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
