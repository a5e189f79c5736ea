"""Tables whose names no rule knows: the message lists them, and --map states what they are."""

from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError, UsageError
from tensorprimat.logs import metric_names

TABLES = {
    "lines.jsonl": "".join(f'{{"step": {n}, "loss": {9 - n / 100}, "perf/one": {512 + n % 7}}}\n' for n in range(40)),
    "table.csv": "step,loss,perf/one\n" + "".join(f"{n},{9 - n / 100},{512 + n % 7}\n" for n in range(40)),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_a_known_time_lists_its_names_and_is_read_by_a_stated_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(TABLES[name], encoding="utf-8")
    with pytest.raises(
        NotALogError, match=r"the table has step, loss(?:,| and) perf/one; state which one.*tprimat extract --map"
    ):
        logs.read(path)
    with metric_names.mapped(["step_time=perf/one:ms"]):
        result = logs.read(path)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.515, abs=0.001)
    with pytest.raises(NotALogError):
        logs.read(path)


def test_a_table_of_rates_without_the_number_of_the_step_says_that_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"epoch": 1, "tokens_per_second": {900 + n}}}\n' for n in range(9)))
    with pytest.raises(NotALogError, match=r"the table has epoch(?:,| and) tokens_per_second; name the .* 'step'"):
        logs.read(tmp_path / "rows.jsonl")


@in_each("line", ["2026-02-25 19:42:16,238 INFO worker.py:1841 -- Started.", "Step {n:5d}, Loss: {n}.25, LR: 1e-4"])
def test_lines_of_text_with_commas_are_no_table(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.log").write_text("".join(line.format(n=n) + "\n" for n in range(8, 14)))
    with pytest.raises(NotALogError, match=r"no step times found; (?!the table has)"):
        logs.read(tmp_path / "run.log")


@in_each("typed", ["step_time", "step_time=", "speed=x", "step_time=x:days"])
def test_a_wrong_mapping_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--map"), metric_names.mapped([typed]):
        pass
