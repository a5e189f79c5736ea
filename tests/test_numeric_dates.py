"""Dates with the day or the month first: their order is taken from the dates of the log, or they are not used."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError
from tensorprimat.core.result import Result

LATE, NOVEMBER = datetime(2026, 11, 25, 8, 0, 0), datetime(2026, 11, 5, 23, 50, 0)
DAY_FIRST = ("%d/%m/%Y %H:%M:%S", "%d-%m-%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "[%d/%m/%Y, %H:%M:%S]", "%d/%m/%YT%H:%M:%S")
MONTH_FIRST = ("%m/%d/%Y %H:%M:%S", "%m-%d-%Y %H:%M:%S", "%m/%d/%Y, %I:%M:%S %p", "%m/%d/%Y %I:%M:%S%p")
NAMED = ("%d %b %Y %H:%M:%S", "%d/%b/%Y:%H:%M:%S +0000", "%a %b %d %H:%M:%S %Y")


def log(form: str, start: datetime, *, rows: int = 300, seconds: float = 7.5, short: bool = False) -> str:
    """Return rows of any training loop. short: without zeros before days, months and hours."""
    lines = []
    for n in range(1, rows + 1):
        stamp = (start + timedelta(seconds=seconds * n)).strftime(form)
        if short:
            stamp = "/".join(part.removeprefix("0") for part in stamp.split("/")).replace(" 0", " ")
        lines.append(f"{stamp} INFO step {n}/999 loss {9 - n / 100:.4f} lr 1e-05\n")
    return "".join(lines)


def is_timed(result: Result, start: datetime, seconds: float = 7.5) -> None:
    """Expect one training, timed over all rows, that begins after `start`."""
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(seconds, rel=0.01)
    assert result.steps.column("covers").sum() >= 290
    assert result.steps.column("segment").max() == 0
    assert result.timestamp == (start + timedelta(seconds=seconds)).replace(microsecond=0).isoformat()


@in_each("start", [LATE, NOVEMBER])
@in_each("form", [*DAY_FIRST, *MONTH_FIRST, *NAMED])
def test_dates_of_any_order_time_the_rows(read_text: Any, form: str, start: datetime) -> None:
    is_timed(read_text(log(form, start)), start)


@pytest.mark.parametrize("form", ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p"])
def test_days_months_and_hours_of_one_digit_are_read(read_text: Any, form: str) -> None:
    start = datetime(2026, 3, 9, 23, 50, 0)
    is_timed(read_text(log(form, start, short=True)), start)


def test_a_midnight_beyond_the_head_of_a_log_shows_the_order(read_text: Any) -> None:
    start = datetime(2026, 11, 5, 12, 0, 0)
    result = read_text(log("%d/%m/%Y %H:%M:%S", start, rows=5900))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(7.5, rel=0.01)
    assert (result.steps.column("segment").max(), result.timestamp) == (0, "2026-11-05T12:00:07")


def test_noon_and_midnight_of_twelve_hours_are_told_apart(read_text: Any) -> None:
    for start in (datetime(2026, 11, 25, 11, 50, 0), datetime(2026, 11, 25, 23, 50, 0)):
        is_timed(read_text(log("%m/%d/%Y %I:%M:%S %p", start)), start)


def test_slashes_without_a_sign_of_their_order_are_warned_about(read_text: Any) -> None:
    result = read_text(log("%d/%m/%Y %H:%M:%S", datetime(2026, 11, 5, 8, 0, 0)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(7.5)
    assert any(
        warning.startswith("dates: 05/11/2026 may have the day or the month first") for warning in result.warnings
    )


def test_hyphens_without_a_sign_of_their_order_are_refused_with_the_reason(read_text: Any) -> None:
    with pytest.raises(NotALogError, match=r"05-11-2026 may have the day or the month first, .* are not used"):
        read_text(log("%d-%m-%Y %H:%M:%S", datetime(2026, 11, 5, 8, 0, 0)))


def test_rows_with_their_own_time_keep_it_and_say_that_dates_are_not_used(read_text: Any) -> None:
    rows = [f"05-11-2026 08:00:{n:02} step {n}/99 | loss 2.5{n:02} | step time 512.0 ms\n" for n in range(1, 50)]
    result = read_text("".join(rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.512)
    assert not result.steps.has("ended_at")
    assert any("dates: 05-11-2026 may have the day or the month first" in warning for warning in result.warnings)


def test_dates_of_both_orders_are_not_used(read_text: Any) -> None:
    text = log("%d/%m/%Y %H:%M:%S", LATE) + log("%m/%d/%Y %H:%M:%S", LATE + timedelta(days=1))
    with pytest.raises(NotALogError, match=r"some dates such as 11/26/2026 have the day first and others the month"):
        read_text(text)


def test_a_date_that_no_calendar_has_is_not_read(read_text: Any) -> None:
    text = log("%d.%m.%Y %H:%M:%S", LATE).replace("25.11.2026", "31.11.2026")
    with pytest.raises(NotALogError):
        read_text(text)


def test_the_clock_of_a_spreadsheet_times_its_steps(read_text: Any) -> None:
    rows = [
        f"{n};{LATE + timedelta(seconds=7 * n):%d.%m.%Y %H:%M:%S};{n};{str(9 - n / 100).replace('.', ',')}\n"
        for n in range(1, 301)
    ]
    result = read_text("step;timestamp;_step;loss\n" + "".join(rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(7.0)
    assert not any("folded" in warning for warning in result.warnings)
    assert result.steps.column("ended_at")[0] == LATE.replace(tzinfo=timezone.utc).timestamp() + 7


def test_a_log_of_a_service_is_read_with_the_day_first(tmp_path: Path) -> None:
    path = tmp_path / "pod.log"
    lines = log("%d/%m/%Y %H:%M:%S", LATE).splitlines()
    path.write_text("".join(f'{{"log": "{line}\\n", "stream": "stdout"}}\n' for line in lines))
    is_timed(logs.read(path), LATE)
