"""Rows of the Hugging Face Trainer that do not state their step, with and without a row of the first step."""

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from each import in_each
from test_huggingface_log import SUMMARY, row


def run_of_rows(total: int, every: int, *, first: bool, epochs: float, decimals: int, seconds: float = 0.0) -> str:
    """Return a log with a row every so many steps; first: and at step 1. seconds: of a step, as stamps before rows."""
    lines = ["***** Running training *****", f"  Total optimization steps = {total}"]
    if seconds:
        lines.append(f"TrainingArguments(logging_first_step={first}, logging_steps={every}, )")
    for step in range(1, total + 1):
        if step % every == 0 or (first and step == 1):
            moment = datetime(2026, 1, 5, 8, tzinfo=timezone.utc) + timedelta(seconds=step * seconds)
            stamp = f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z stdout F " if seconds else ""
            lines.append(stamp + row(3 - step / 1000, epoch=round(step / total * epochs, decimals)))
    if not seconds:
        lines.append(SUMMARY.replace("}", f", 'epoch': {epochs}}}"))
    return "\n".join(lines) + "\n"


@in_each("decimals", [0, 2, 6])
@in_each("first", [True, False])
@in_each(("total", "every"), [(200, 10), (205, 10), (99, 33), (40, 2), (1000, 100)])
def test_rows_without_numbers_are_at_the_steps_at_which_they_were_logged(
    read_text: Any, total: int, every: int, first: bool, decimals: int
) -> None:
    if decimals == 0 and first and total in (99, 1000):
        pytest.skip("4 rows of 99 steps may be 24 steps apart, and 11 rows of 1,000 steps 90, if no epoch denies it")
    result = read_text(run_of_rows(total, every, first=first, epochs=2.0, decimals=decimals))
    steps = [1] * first + list(range(every, total + 1, every))
    assert result.steps.column("index").tolist() == steps
    assert result.steps.column("covers").tolist() == [after - before for before, after in pairwise([0, *steps])]
    assert result.steps.column("loss") == pytest.approx([3 - step / 1000 for step in steps])


@pytest.mark.parametrize("first", [True, False])
def test_rows_after_a_logged_first_step_are_timed_over_the_steps_since_it(read_text: Any, first: bool) -> None:
    result = read_text(run_of_rows(200, 10, first=first, epochs=2.0, decimals=2, seconds=0.5))
    assert result.provenance.timing == "timestamps"
    assert result.steps.column("index")[-1] == 200
    assert result.steps.column("seconds")[1:] == pytest.approx([0.5] * (19 + first), rel=1e-3)


def test_a_single_step_of_all_is_a_row_at_every_step(read_text: Any) -> None:
    result = read_text(run_of_rows(40, 1, first=True, epochs=2.0, decimals=2))
    assert result.steps.column("index").tolist() == list(range(1, 41))
