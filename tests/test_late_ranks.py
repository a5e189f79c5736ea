"""Ranks whose output comes late: a start line after the first rows of another rank does not begin a training."""

import random
from itertools import cycle
from typing import Any

from each import in_each
from job_logs import JOBS, Job
from test_segments import assert_figures_of

JOB = Job()
PREFIXES = {"torchrun": "[default{}]:", "torchrun with tags": "[rank{}]: ", "srun": "{}: "}
FORMATS = ["megatron", "nemo", "maxtext", "nanochat", "litgpt", "deepspeed"]


def of_all_ranks(lines: list[str], prefix: str, lag: int, ranks: int = 8) -> str:
    """Return the lines as every rank prints them, none more than so many lines behind another."""
    order, printed, text = random.Random(7), [0] * ranks, ""
    while min(printed) < len(lines):
        able = [rank for rank in range(ranks) if printed[rank] < len(lines) and printed[rank] - min(printed) < lag]
        rank = order.choice(able)
        text += prefix.format(rank) + lines[printed[rank]] + "\n"
        printed[rank] += 1
    return text


@in_each("name, prefix", list(zip(FORMATS, cycle(PREFIXES), strict=False)))
def test_a_banner_that_a_rank_prints_after_rows_begins_no_training(read_text: Any, name: str, prefix: str) -> None:
    result = read_text(of_all_ranks(JOBS[name](JOB), PREFIXES[prefix], lag=5))
    assert_figures_of(result, JOB)
    assert result.provenance.segments == ()
    assert len(result.steps) == JOB.last


@in_each("name", FORMATS)
def test_a_restart_of_all_ranks_begins_a_training(read_text: Any, name: str) -> None:
    other = Job(batch=128, length=4096, seconds=0.5, last=20)
    texts = [of_all_ranks(JOBS[name](job), PREFIXES["torchrun"], lag=3, ranks=4) for job in (JOB, other)]
    result = read_text("".join(texts))
    assert_figures_of(result, JOB)
    assert not result.provenance.segments[-1].same_benchmark
