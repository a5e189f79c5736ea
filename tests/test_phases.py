"""Sides that were measured in different phases of a training."""

import numpy as np
from each import in_each

from tensorprimat.analysis.compare import compare
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import summarise
from tensorprimat.models.presets import find_preset
from tensorprimat.reports import formatting
from tensorprimat.reports.formatting import headline
from tensorprimat.storage.store import Loaded


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


COMMON = "steps 2 to 35 of both sides"


@in_each(
    ("changes", "verdict", "steps"),
    [
        ({}, "no_difference_shown", COMMON),
        ({"speed": 1.05}, "faster", COMMON),
        ({"speed": 0.95}, "slower", COMMON),
        ({"slower": 1.0}, "no_difference_shown", None),
        ({"length": 35}, "no_difference_shown", None),
    ],
)
def test_a_side_that_is_slower_after_the_others_last_step_is_compared_over_the_steps_of_both(
    tmp_path, changes, verdict, steps
):
    long = side(tmp_path, "amd", **{"length": 200, "seed": 1, **changes})
    found = compare([side(tmp_path, "nvd", 35), long])
    ratio = found.pairs[0].ratio
    assert (ratio.verdict, ratio.steps) == (verdict, steps)
    told = [one for one in found.warnings if getattr(one, "code", "") == "common_steps"]
    assert len(told) == (steps is not None)
    assert all(one.values["label"] == "MI300X" and 0.04 <= one.values["apart"] < 0.06 for one in told)
    assert (COMMON in headline(found.pairs[0]).limits) == (steps is not None)


def test_sides_without_a_phase_in_common_get_no_verdict_and_the_reason(tmp_path):
    """The shorter side slows down too, so late that it has no level to be compared."""
    found = compare([side(tmp_path, "nvd", 35, slow_from=30), side(tmp_path, "amd", 200, slow_from=30, seed=1)])
    (pair,) = found.pairs
    assert (pair.ratio.verdict, pair.ratio.steps) == ("unsettled", None)
    assert [one.code for one in found.warnings] == ["other_phase"]
    assert headline(pair).finding.startswith("No verdict on MI300X and H100: ")
    assert headline(pair).limits[0] == "they were measured in different phases"
    assert formatting.advice(pair) is None


def test_sides_without_a_step_in_common_get_no_verdict(tmp_path):
    resumed = side(tmp_path, "amd", 200, seed=1).result
    later = summarise(resumed.changed(steps=resumed.steps.take(resumed.steps.column("index") > 100)))
    found = compare([side(tmp_path, "nvd", 35), Loaded(path=tmp_path / "later.json", result=later)])
    assert found.pairs[0].ratio.verdict == "unsettled"
    assert [one.code for one in found.warnings] == ["no_common_steps"]
    assert headline(found.pairs[0]).limits[0] == "they were measured in different phases"


def test_equal_devices_of_unlike_length_are_called_different_as_rarely_as_the_confidence_says(tmp_path):
    verdicts = [
        compare([side(tmp_path, "nvd", 35, seed=2 * seed), side(tmp_path, "amd", 200, seed=2 * seed + 1)])
        .pairs[0]
        .ratio
        for seed in range(20)
    ]
    assert sum(one.verdict != "no_difference_shown" for one in verdicts) <= 3
