"""The last printed digit: what it leaves of a figure, and that no verdict rests on it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import in_each
from test_tensorboard_log import Events

from tensorprimat import logs
from tensorprimat.analysis.compare import compare
from tensorprimat.audit.rounding import error_of_mean, printed_unit
from tensorprimat.logs.format import UserFacts
from tensorprimat.storage.store import Loaded

FACTS = UserFacts(model_name="llama", preset="full", sequence_length=4096, global_batch_size=8, num_gpus=8)


def rows(form: str, times: np.ndarray) -> str:
    return "".join(form.format(n=n, loss=2 - n / 1000, t=t, ms=1000 * t, rate=1 / t) for n, t in enumerate(times))


def times_of(level: float, spread: float, seed: int = 1) -> np.ndarray:
    return level * (1 + spread * np.random.default_rng(seed).standard_normal(200))


FORMS = {
    "a loop": "step {n}  loss={loss:.4f}  dt={t:.1f}s\n",
    "a rate of steps": "step {n} | loss {loss:.4f} | {rate:.1f} steps/s\n",
    "JSON lines": '{{"step": {n}, "loss": {loss:.4f}, "step_time_s": {t:.1f}}}\n',
}


@in_each("form", FORMS.values())
def test_a_time_that_is_printed_with_one_digit_may_be_half_of_it_off(read_text: Any, form: str) -> None:
    result = read_text(rows(form, times_of(0.94, 0.004)))
    assert result.provenance.rounding == pytest.approx(0.05 / 0.94, rel=0.15)
    assert "printed_coarsely" in [one.code for one in result.remarks]


@in_each(
    ("form", "times", "error"),
    [
        ("step {n} loss={loss:.4f} dt={t:.3f}s\n", np.full(100, 0.9), 0.0005 / 0.9),
        ("step {n} | loss {loss:.4f} | dt: {ms:.2f}ms\n", np.full(100, 0.009), 0.005 / 9),
        ("step {n} loss={loss:.4f} dt={t:.2f}s\n", times_of(0.9, 0.05), 0.0),
        ('{{"step": {n}, "loss": {loss:.4f}, "step_time_s": {t!r}}}\n', times_of(0.9, 0.004), 0.0),
    ],
)
def test_a_time_that_is_printed_finely_has_its_own_error(read_text: Any, form: str, times: Any, error: float) -> None:
    result = read_text(rows(form, [float(t) for t in times]))
    assert (result.provenance.rounding or 0.0) == pytest.approx(error)
    assert "printed_coarsely" not in [one.code for one in result.remarks]


@in_each(
    ("row", "told"),
    [
        ("step {n} | loss 3.1 | 12K tok/s", "tokens_per_second: printed to the nearest 1000"),
        ("step {n} | loss 3.1 | 12.31K tok/s", None),
        ("iter {n}: loss 3.1000, time 12ms", "step_time: printed to the nearest 0.001 s"),
        ('{{"step": {n}, "loss": 3.1, "tokens_per_second_per_gpu": 1.2e3}}', "per_gpu: printed to the nearest 100"),
        (
            '{{"step": {n}, "step_time_s": 0.913, "mem": 1{odd}}}',
            "memory_allocated_peak: printed to the nearest 1.07 GB",
        ),
        ('{{"step": {n}, "step_time_s": 0.913, "mem": 1{odd}.25}}', None),
        ('{{"step": {n}, "step_time_s": 0.913, "mfu(%)": 4{odd}}}', "mfu: printed to the nearest 0.01"),
    ],
)
def test_whole_numbers_with_a_unit_and_levels_are_known_to_half_a_digit(
    read_text: Any, row: str, told: str | None
) -> None:
    result = read_text("".join(row.format(n=n, odd=n % 2) + "\n" for n in range(1, 60)))
    coarse = [str(one) for one in result.remarks if one.code == "printed_coarsely"]
    assert [told in one for one in coarse] == [True] * (told is not None)


@in_each(
    ("row", "error"),
    [
        ('{{"step": {n}, "loss": 3.1, "step_time_s": 12}}', 0.5 / 12),
        ('{{"step": {n}, "loss": 3.1, "step_time_s": 12, "layers": 12}}', 0.5 / 12),
        ('{{"step": {n}, "loss": 3.1, "step_time_s": 12.000, "layers": 12}}', 0.0005 / 12),
        ('{{"step": {n}, "loss": 3.1, "samples_per_second": 12}}', 0.5 / 12),
        ('{{"step": {n}, "loss": 3.1, "step_time_ms": 812}}', 0.5 / 812),
        ('{{"step": {n}, "loss": 3.1, "tokens": 98304, "tokens_per_second": 65536, "layers": 12}}', 0.5 / 65536),
        ('{{"step": {n}, "loss": 3.1, "tokens": 786432, "tokens_per_second": 65536, "layers": 12}}', 0.5 / 65536),
    ],
)
def test_a_whole_number_that_all_rows_repeat_is_known_to_half_a_unit(read_text: Any, row: str, error: float) -> None:
    result = read_text("".join(row.format(n=n) + "\n" for n in range(1, 60)))
    assert result.provenance.rounding == pytest.approx(error, rel=0.01)


@in_each(
    ("tag", "value", "error"),
    [
        ("step_time_s", 0.9, 0.05 / 0.9),
        ("step_time_s", 0.94123, 0.000005 / 0.94123),
        ("step_time_ms", 900, 0.5 / 900),
        ("step_time_ms", 812.3, 0.05 / 812.3),
        ("samples_per_second", 1.5, 0.05 / 1.5),
    ],
)
def test_a_number_that_every_row_of_a_container_repeats_is_known_to_half_a_digit(
    tmp_path: Path, read_text: Any, tag: str, value: float, error: float
) -> None:
    events = Events(tmp_path / "events")
    table = [{"step": n, "loss": 3 - n / 100, tag: value} for n in range(1, 60)]
    for n, row in enumerate(table, 1):
        events.log(n, n * (value / 1000 if tag.endswith("ms") else value), row)
    texts = json.dumps(table), "\n".join(map(json.dumps, table))
    for result in (logs.read(events.close()), *map(read_text, texts)):
        assert result.provenance.rounding == pytest.approx(error, rel=0.01)


def test_errors_cancel_only_where_several_neighbouring_values_are_frequent() -> None:
    two, three = np.repeat([0.9, 1.0], [2, 198]), np.repeat([0.9, 1.0, 1.1], [20, 160, 20])
    assert error_of_mean(two, 0.1) == pytest.approx(0.05)
    assert error_of_mean(np.repeat([0.9, 1.0], 100), 0.1) > 0.05
    assert error_of_mean(three, 0.1) == 0
    assert error_of_mean(np.repeat([0.9, 1.0, 1.1], [1, 198, 1]), 0.1) == pytest.approx(0.05)


@in_each(
    ("values", "unit"),
    [([0.9, 1.0], 0.1), ([0.009, 0.01], 0.001), ([12_300, 12_500], 100), ([0.94123456789], None), ([1.0004, 2], 1e-4)],
)
def test_the_printed_unit_is_the_largest_that_writes_all_values(values: list[float], unit: float | None) -> None:
    assert printed_unit(np.array(values)) == pytest.approx(unit)


def test_no_verdict_rests_on_the_last_digit(tmp_path: Path) -> None:
    sides = []
    for gpu, level in (("H100", 0.94), ("A100", 0.96)):
        for run in range(3):
            path = tmp_path / f"{gpu}_{run}.log"
            path.write_text(rows(FORMS["a loop"], times_of(level, 0.012, seed=run)), encoding="utf-8")
            sides.append(Loaded(path=path, result=logs.read(path, facts=replace(FACTS, gpu=gpu))))
    assert [round(one.result.performance_metrics.avg_step_time_seconds, 1) for one in sides] == [0.9] * 3 + [1.0] * 3
    (pair,) = compare(sides).pairs
    ratio = pair.ratio
    assert ratio.verdict == "no_difference_shown"
    assert ratio.estimate.low < 0.94 / 0.96 < ratio.estimate.high


CASES = ["run.log", "run_b.log", "json.jsonl", "keyval.log", "ms.log", "nemo.log", "table.csv"]


@in_each("name", CASES)
def test_the_cases_are_known_to_half_a_digit(shared: Path, name: str) -> None:
    result = logs.read(shared / "cases/B-rounded-dt" / name)
    assert result.provenance.rounding == pytest.approx(0.05, abs=0.006)


def test_a_finer_rate_is_the_measurement_where_times_are_coarse(shared: Path) -> None:
    result = logs.read(shared / "cases/B-rounded-dt/fms.log", facts=UserFacts(num_gpus=1))
    performance = result.performance_metrics
    assert performance.avg_step_time_seconds == pytest.approx(8192 / performance.tokens_per_second_per_gpu)
    assert (result.provenance.rounding, result.provenance.timer) == (0, "reported_tokens_per_second_per_gpu")
