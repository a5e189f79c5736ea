"""Every real log gives the figures that were found in it by hand, or is refused; no log is read as another format."""

import re
import shlex
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError
from tensorprimat.logs.format import UserFacts
from tensorprimat.logs.text import Log

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOGS = Path(__file__).resolve().parents[2] / "shared" / "logs"
ANSWERS: dict[str, dict[str, Any]] = tomllib.loads((LOGS / "expected.toml").read_text()) if LOGS.is_dir() else {}
RATES = ("reported_samples_per_second", "reported_tokens_per_second", "reported_tokens_per_second_per_gpu")
MEDIANS = {
    "median_step_seconds": "seconds",
    "median_samples_per_second": "reported_samples_per_second",
    "median_tokens_per_second": "reported_tokens_per_second",
    "median_tokens_per_second_per_gpu": "reported_tokens_per_second_per_gpu",
}


def logs_with(*verdicts):
    """Return the names of the real logs that have such a verdict; one skipped case where there are no real logs."""
    absent = pytest.mark.skip(f"needs real logs and expected.toml in {LOGS}, which are not part of the project")
    names = sorted(name for name, answer in ANSWERS.items() if answer["verdict"] in verdicts)
    return names if LOGS.is_dir() else [pytest.param("", marks=absent)]


def stated(answer):
    """Return the flags that the answer says a user must give."""
    flags = dict(zip(*[iter(answer.get("flags", []))] * 2, strict=True))
    values = {name.removeprefix("--").replace("-", "_"): int(value) for name, value in flags.items()}
    assert set(values) <= {field.name for field in fields(UserFacts)}, shlex.join(answer.get("flags", []))
    return UserFacts(**values)


def rows_with(result, *columns):
    return int(np.any([np.isfinite(result.steps.column(name)) for name in columns], axis=0).sum())


def median(result, column):
    """Return the median of the rows after the first that hold the value; of a rate without rows, the measured one."""
    if not result.steps.has(column):
        return float(getattr(result.performance_metrics, column.removeprefix("reported_")))
    values = result.steps.column(column)[1:]
    return float(np.median(values[np.isfinite(values)]))


@in_each("name", logs_with("benchmark"))
def test_a_real_log_gives_its_known_answer(name):
    answer = ANSWERS[name]
    result = logs.read(LOGS / name, facts=stated(answer))
    assert result.provenance.format == answer["format"]
    assert logs.assemble.has_content(result)
    config, performance = result.training_config, result.performance_metrics
    for field in ("global_batch_size", "sequence_length"):
        if field in answer:
            assert getattr(config, field) == answer[field]
    rows = answer.get("rows", answer.get("step_rows", answer.get("throughput_rows")))
    if isinstance(rows, list):
        columns = ("index", "reported_tokens_per_second_per_gpu", "reported_tflops_per_gpu")
        assert np.column_stack([result.steps.column(column) for column in columns]).tolist() == rows
    elif rows is not None:
        assert rows_with(result, "seconds", *RATES) == rows
    for key, column in MEDIANS.items():
        if key in answer:
            digits = 1e-4 if result.steps.has(column) else 5e-3  # else a formula of the answer's own
            assert median(result, column) == pytest.approx(answer[key], rel=digits)
    if "final_step_avg_seconds" in answer:
        assert result.steps.total_seconds() == pytest.approx(
            answer["final_step_avg_seconds"] * answer["rows"], rel=1e-4
        )
    if "tokens_per_second_per_gpu" in answer:
        assert performance.tokens_per_second_per_gpu == pytest.approx(answer["tokens_per_second_per_gpu"], rel=0.02)
    if "platform" in answer:
        assert result.platform == ("amd" if re.search(r"MI\d{3}", answer["platform"]) else "nvd")
    if "train_samples_per_second" in answer:
        assert performance.samples_per_second == pytest.approx(answer["train_samples_per_second"])
        assert performance.reported.runtime_seconds == pytest.approx(answer["train_runtime_seconds"], rel=1e-4)
        assert performance.std_step_time_seconds is None


@in_each("name", logs_with("refuse"))
def test_a_real_log_without_step_timing_is_refused(name):
    with pytest.raises(NotALogError, match=r"no step times|none to measure"):
        logs.read(LOGS / name)


@in_each("name", logs_with("benchmark", "refuse"))
def test_no_real_log_is_taken_for_one_of_another_format(name):
    found = {format.name for format in formats_found(name)[1]}
    if "format" in ANSWERS[name]:
        assert found <= {ANSWERS[name]["format"]}
    else:
        assert len(found) <= 1


@cache
def formats_found(name):
    log = Log(LOGS / name)
    return log, [format for format in logs.FORMATS if not format.last_resort and format.detect(log)]


@in_each("name", logs_with("benchmark", "refuse"))
def test_every_row_contains_the_text_that_its_format_is_searched_by(name):
    log, found = formats_found(name)
    for format in found:
        without = [line for line in log.lines() if not any(n.decode() in line[1] for n in format.needles)]
        assert format.detect(Log(log.path, window=without)) == 0


def test_the_artefact_of_asynchronous_dispatch_is_not_a_measurement(shared):
    result = logs.read(shared / "logs/maxtext/excerpts.md")
    assert 0.319 not in result.steps.column("seconds")
    assert np.nanmax(result.steps.column("reported_tokens_per_second_per_gpu")) < 10_000
    assert result.performance_metrics.median_step_time_seconds == pytest.approx(5.668)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(8672, rel=0.01)


def test_losses_that_are_nan_are_a_warning(shared):
    result = logs.read(shared / "logs/nanochat/sft_run_nan.log")
    assert "loss_nan" in [one.code for one in result.remarks]
