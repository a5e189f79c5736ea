"""Logs in which the work of a step changes midway, and only the rows show the change.

Whatever the format, a figure is that of one part, or of both by their own work; else it is unknown, or a warning about
it says that the log contradicts itself.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.core.errors import ContradictionError, NotALogError

FIRST = Job(last=60, startup=2.0)
CHANGES: dict[str, Mapping[str, int]] = {"batch": {"batch": 32}, "length": {"length": 1024}, "GPUs": {"gpus": 4}}
SILENT = "litgpt"
"""Format whose rows state neither their work nor a rate, so that equal step times hide a change."""
SPEED = "and no line says why"
"""Warning about the row from which on a step takes another time."""
WITHOUT_TOKENS = ("lightning", "mlperf", "timestamps", "modded-nanogpt", "deepspeed", "nemo")
"""Formats whose logs do not give tokens here."""


def tokens(job):
    return job.batch * job.length / job.seconds


@pytest.mark.parametrize("seconds", [2.0, pytest.param(1.0, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", sorted(ALL_JOBS.keys() - set(WITHOUT_TOKENS)))
def test_no_figure_mixes_the_work_of_two_parts(tmp_path, name, change, seconds):
    second = replace(FIRST, first=61, last=120, banner=False, seconds=seconds, startup=seconds, **CHANGES[change])
    rows = [line for line in ALL_JOBS[name](second) if "before the start" not in line]
    path = tmp_path / "a.log"
    path.write_text("\n".join(ALL_JOBS[name](FIRST) + rows) + "\n")
    try:
        result = logs.read(path)
    except (ContradictionError, NotALogError):
        return
    performance = result.performance_metrics
    both = (60 * tokens(FIRST) * FIRST.seconds + 60 * tokens(second) * seconds) / (60 * FIRST.seconds + 60 * seconds)
    for figure, gpus in {"tokens_per_second": (1, 1), "tokens_per_second_per_gpu": (FIRST.gpus, second.gpus)}.items():
        value = getattr(performance, figure)
        true = [tokens(FIRST) / gpus[0], tokens(second) / gpus[1], *([both / gpus[0]] if gpus[0] == gpus[1] else [])]
        is_told = any(
            SPEED in one or (one.startswith(figure) and "the framework reported" in one) for one in result.warnings
        )
        assert value is None or is_told or min(abs(value / one - 1) for one in true) < 0.02, value
        if len(result.steps) == 120 and not is_told and name != SILENT:
            assert value is None or abs(value / true[-1] - 1) < 0.02, f"{value} for both parts, {true}"
