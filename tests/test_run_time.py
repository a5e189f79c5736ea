"""Time of a benchmark before it runs: the estimate, and sizes that fit a number of minutes."""

import json
import time

import pytest

from tensorprimat.cli import main
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import MODELS, RunSettings
from tensorprimat.engines import ENGINES, prepare
from tensorprimat.machine.platform import Machine
from tensorprimat.session import run_time
from tensorprimat.session.budget import Budget, decide

MACHINES = {
    "one H200": ("nvd", "NVIDIA H200", 1, 150.1),
    "eight H200": ("nvd", "NVIDIA H200", 8, 150.1),
    "one MI300X": ("amd", "AMD Instinct MI300X", 1, 205.8),
    "one B200": ("nvd", "NVIDIA B200", 1, 192.0),
}


def machine(name):
    platform, device, count, memory = MACHINES[name]
    gpu = GpuInfo(device_name=device, device_count=count, total_memory_gb=memory)
    return Machine(platform=platform, gpu_info=gpu, host="here")


def specs(name, engine="torch", models=MODELS, **flags):
    expected = RunSettings(steps=20, warmup_steps=5, seed=1, **flags)
    return {model: prepare.spec_of(model, expected, engine=ENGINES[engine], machine=machine(name)) for model in models}


@pytest.mark.parametrize("name", MACHINES)
def test_three_runs_of_every_model_on_gpus_fit_a_quarter_of_an_hour(name):
    fit_a_quarter_of_an_hour(specs(name), machine(name))


def test_nemo_on_one_gpu_is_not_given_the_work_of_a_node_within_a_budget():
    models = ("qwen", "mistral")
    after = fit_a_quarter_of_an_hour(specs("one B200", "nemo", models), machine("one B200"))
    assert {(spec.methodology, spec.notes) for spec in after.values()} == {(None, ())}
    free = frozenset({"global_batch_size", "steps"})
    for name, flags in (("eight H200", {}), ("one B200", {"methodology": "agreed"})):
        before = specs(name, "nemo", models, **flags)
        after = run_time.fitted(before, machine(name), runs=3, pause=30, minutes=15, free=free)
        assert {(spec.methodology, spec.global_batch_size) for spec in after.values()} == {("agreed", 128)}


def fit_a_quarter_of_an_hour(before, here):
    """Check three runs of every model before and after they are fitted; return the fitted ones."""
    free = frozenset({"global_batch_size", "steps"})
    after = run_time.fitted(before, here, runs=3, pause=30, minutes=15, free=free)
    assert run_time.of_benchmark(list(before.values()), here, runs=3, pause=30) > 15 * 60
    assert run_time.of_benchmark(list(after.values()), here, runs=3, pause=30) <= 15 * 60
    for model, spec in after.items():
        assert spec.global_batch_size == spec.micro_batch_size * spec.num_gpus
        assert run_time.FEWEST_STEPS <= spec.steps <= before[model].steps
        assert spec.gradient_accumulation_steps == 1
    return after


def test_the_estimate_is_flops_over_a_share_of_the_peak_and_a_start():
    [spec, *_], here = specs("one H200").values(), machine("one H200")
    one = run_time.of_run(spec, here)
    assert one.step_seconds == pytest.approx(16 * 8192 * 51470401536 / (989.4e12 * run_time.UTILISATION), rel=1e-3)
    assert one.seconds == pytest.approx(run_time.START_SECONDS + 25 * one.step_seconds)
    assert "H200" in one.because


def test_settings_by_flag_and_settings_that_fit_are_not_changed():
    before, here = specs("one H200"), machine("one H200")
    assert run_time.fitted(before, here, runs=3, pause=0, minutes=15, free=frozenset()) == before
    only_steps = run_time.fitted(before, here, runs=3, pause=0, minutes=60, free=frozenset({"steps"}))
    assert {spec.global_batch_size for spec in only_steps.values()} == {16}
    assert all(only_steps[model].steps < before[model].steps for model in MODELS)
    free = frozenset({"global_batch_size", "steps"})
    assert run_time.fitted(before, here, runs=1, pause=0, minutes=6000, free=free) == before


def test_a_device_without_a_known_peak_has_no_estimate():
    unknown = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA X1", device_count=1), host="here")
    every = list(specs("one H200").values())
    assert run_time.of_benchmark(every, unknown, runs=3, pause=0) is None
    assert "no peak is known for NVIDIA X1" in run_time.sentence(every, unknown, runs=3, pause=0)


@pytest.mark.parametrize(
    ("flags", "batch", "shown"),
    [
        (("--budget-minutes", "15"), 1, "llama: batch 1 (default 16)"),
        (("--budget-minutes", "15", "--global-batch-size", "16"), 16, "Estimated time: "),
        ((), 16, "Estimated time: "),
    ],
)
def test_a_dry_run_prints_the_estimate_and_the_sizes_that_the_minutes_leave(
    tmp_path, monkeypatch, capsys, flags, batch, shown
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect", lambda: machine("one H200"))
    assert main(["run", "--engine", "torch", "--runs", "3", "--dry-run", "--json", *flags]) == 0
    printed = capsys.readouterr()
    assert {one["global_batch_size"] for one in json.loads(printed.out)} == {batch}
    told = " ".join(printed.err.split())
    assert shown in told
    assert "not measured" in told


def test_no_run_begins_that_would_end_after_the_minutes():
    budget = Budget(runs=3, minutes=5).checked()
    assert not decide(budget, [], runs=1, began=time.monotonic() - 140).done
    stopped = decide(budget, [], runs=1, began=time.monotonic() - 160)
    assert stopped.done
    assert "after 1 of 3 runs" in stopped.sentence
    assert decide(budget, [], runs=3, began=time.monotonic()).done
