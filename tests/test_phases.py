"""Sides that were measured in different phases of a training."""

import numpy as np
import pytest

from tensorprimat.analysis.compare import compare
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.store import Loaded
from tensorprimat.core.summary import summarise
from tensorprimat.models.presets import find_preset


def side(tmp_path, platform, length, *, slow_from=40, slower=1.05, speed=1.0, seed=0):
    """Return three runs whose steps are slower from a step on, each 0.3 % apart."""
    random = np.random.default_rng(seed)
    steps = []
    for run in range(3):
        level = 0.5 / speed * (1 + 0.003 * random.standard_normal())
        for n in range(1, length + 1):
            seconds = level * (slower if n >= slow_from else 1.0) * (1 + 0.004 * random.standard_normal())
            steps.append(Step(index=n, seconds=seconds, run=run))
    config = TrainingConfig(num_gpus=8, global_batch_size=16, sequence_length=4096, precision="bf16")
    device = {"nvd": "NVIDIA H100 80GB HBM3", "amd": "AMD Instinct MI300X"}[platform]
    made = Result(
        platform=platform, gpu_info=GpuInfo(device_name=device, device_count=8), training_config=config,
        model=Model(name="llama", shape=find_preset("llama", "full").shape), steps=Steps.of(steps),
        performance_metrics=PerformanceMetrics(),
    )  # fmt: skip
    return Loaded(path=tmp_path / f"{platform}.json", result=summarise(made))


@pytest.mark.parametrize(
    ("changes", "verdict", "warned"),
    [
        ({}, "unsettled", True),
        ({"slower": 1.0}, "no_difference_shown", False),
        ({"speed": 1.5}, "faster", True),
        ({"length": 35}, "no_difference_shown", False),
    ],
)
def test_a_side_that_is_slower_in_steps_that_the_other_did_not_run_gives_no_verdict(tmp_path, changes, verdict, warned):
    long = side(tmp_path, "amd", **{"length": 200, "seed": 1, **changes})
    found = compare([side(tmp_path, "nvd", 35), long])
    assert found.pairs[0].ratio.verdict == verdict
    assert any("are measured, and 2 to 35 on the other side" in one for one in found.warnings) == warned
