"""Time of a benchmark before it runs: the estimate, and sizes that fit a number of minutes."""

import json
import re
import time

import pytest
from each import in_each
from plausible import result

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import MODELS, RunSettings
from tensorprimat.engines import modules, prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.facts import catalogue
from tensorprimat.machine.platform import PLATFORM_SPELLINGS, Machine
from tensorprimat.session import run_time
from tensorprimat.session.budget import Budget, decide_runs

FREE = frozenset(run_time.FITTED)
MACHINES = {
    "one H200": ("nvd", "NVIDIA H200", 1, 150.1),
    "eight H200": ("nvd", "NVIDIA H200", 8, 150.1),
    "one MI300X": ("amd", "AMD Instinct MI300X", 1, 205.8),
    "one A100": ("nvd", "NVIDIA A100-SXM4-80GB", 1, 85.1),
    "one B200": ("nvd", "NVIDIA B200", 1, 192.0),
}


def machine(name):
    platform, device, count, memory = MACHINES[name]
    gpu = GpuInfo(device_name=device, device_count=count, total_memory_gb=memory)
    return Machine(platform=platform, gpu_info=gpu, host="here")


def specs(name, engine="torch", models=MODELS, **flags):
    expected = RunSettings(steps=20, warmup_steps=5, seed=1, **flags)
    return {model: prepare.spec_of(model, expected, engine=ENGINES[engine], machine=machine(name)) for model in models}


@in_each("name", [name for name in MACHINES if name != "one A100"])
def test_three_runs_of_every_model_on_gpus_fit_a_quarter_of_an_hour(name):
    fit_a_quarter_of_an_hour(specs(name), machine(name))


def test_nemo_on_one_gpu_is_not_given_the_work_of_a_node_within_a_budget():
    models = ("qwen", "mistral")
    after = fit_a_quarter_of_an_hour(specs("one B200", "nemo", models), machine("one B200"))
    assert {(spec.methodology, spec.notes) for spec in after.values()} == {(None, ())}
    for name, flags in (("eight H200", {}), ("one B200", {"methodology": "agreed"})):
        before = specs(name, "nemo", models, **flags)
        after = run_time.fitted(before, machine(name), runs=3, pause=30, minutes=15, free=FREE).specs
        assert {(spec.methodology, spec.global_batch_size) for spec in after.values()} == {("agreed", 128)}


def fit_a_quarter_of_an_hour(before, here):
    """Check three runs of every model before and after they are fitted; return the fitted ones."""
    fit = run_time.fitted(before, here, runs=3, pause=30, minutes=15, free=FREE)
    after = fit.specs
    assert fit.runs == 3
    assert run_time.of_benchmark(list(before.values()), here, runs=3, pause=30) > 15 * 60
    assert run_time.of_benchmark(list(after.values()), here, runs=3, pause=30) <= 15 * 60
    for model, spec in after.items():
        assert spec.global_batch_size == spec.micro_batch_size * spec.num_gpus
        assert run_time.FEWEST_STEPS <= spec.steps <= before[model].steps
        assert spec.gradient_accumulation_steps == 1
    return after


def seen_by_driver(gpu):
    """Return the memory that a driver reports of a GPU of the catalogue, in GB."""
    more = {"B200": 191.5, "GB200": 198.0, "B300": 288.0, "GB300": 288.0, "H200 SXM": 150.8, "MI300X": 206.1}
    return more.get(gpu.name) or (gpu.memory_gb.value if gpu.memory_gb else 0.0)


LARGE = [  # one GPU of 48 GB or less, such as an L40S or a small A100, can train none of the three models
    gpu
    for gpu in catalogue.gpus()
    if seen_by_driver(gpu) >= 60 and gpu.peak("bf16") is not None and (gpu.peak("bf16").value or 0) >= 140
]


@in_each("installed", ["torch", "nemo", "bridge"])
@in_each("gpu", LARGE)
def test_make_benchmark_on_one_gpu_fits_a_quarter_of_an_hour_by_its_estimate(gpu, installed):
    """As --engine auto does, the torch engine trains what the other engine cannot train here."""
    gpu_info = GpuInfo(device_name=gpu.name, device_count=1, total_memory_gb=seen_by_driver(gpu))
    here = Machine(platform=PLATFORM_SPELLINGS[gpu.vendor.lower()], gpu_info=gpu_info, host="here")
    chosen = RunSettings(steps=20, warmup_steps=5, seed=1)
    before = {}
    for model in MODELS:
        wanted = ENGINES[installed if here.platform == "nvd" else "torch"]
        passed_over = prepare.obstacle(model, chosen, engine=wanted, machine=here) is not None
        spec = prepare.spec_of(model, chosen, engine=ENGINES["torch"] if passed_over else wanted, machine=here)
        try:
            prepare.check_memory(spec, here)
        except UsageError:
            continue
        before[model] = spec
    fit = run_time.fitted(before, here, runs=3, pause=30, minutes=15, free=FREE)
    assert run_time.of_benchmark(list(fit.specs.values()), here, runs=fit.runs, pause=30) <= 15 * 60
    assert fit.runs >= 2, "an interval needs two"
    for model, spec in fit.specs.items():
        assert spec.steps >= run_time.FEWEST_STEPS
        assert spec.warmup_steps >= run_time.FEWEST_WARMUP_STEPS
        assert fit.runs == 3 or spec.warmup_steps == 5 or spec.steps == run_time.FEWEST_STEPS
        note = run_time.with_note(before[model], spec, 15).notes[-1]
        assert ("warm-up steps" in note) == (spec.warmup_steps != before[model].warmup_steps)
        assert (" steps 5 instead of 20" in note) == (spec.steps == 5)


def told(name, engine, minutes, **flags):
    """Return the fit and the sentence for three runs of every model."""
    before, here = specs(name, engine, **flags), machine(name)
    fit = run_time.fitted(before, here, runs=3, pause=30, minutes=minutes, free=FREE)
    return fit, run_time.run_time_sentence(list(fit.specs.values()), here, runs=3, pause=30, minutes=minutes, fit=fit)


def test_runs_that_do_not_fit_are_not_counted_and_the_sentence_names_the_minutes_of_all():
    fit, sentence = told("one A100", "torch", 15)
    assert (fit.runs, fit.specs["llama"].warmup_steps) == (2, 5), "with two runs no warm-up is left out"
    assert sentence.startswith("Estimated time: 15 min for 6 of 9 runs of 14/16/17 steps")
    assert sentence.endswith(" For all runs use --budget-minutes 17, or --model for one model.")
    fit, sentence = told("one A100", "torch", 17)
    assert (fit.runs, {(spec.steps, spec.warmup_steps) for spec in fit.specs.values()}) == (3, {(5, 2)})
    assert "--budget-minutes" not in sentence


def test_eight_gpus_keep_the_global_batch_and_train_once_within_15_minutes():
    fit, sentence = told("eight H200", "nemo", 15)
    assert fit.runs == 1
    assert {spec.global_batch_size for spec in fit.specs.values()} == {128}
    assert sentence.startswith("Estimated time: 15 min for 3 of 9 runs of 21/11 steps")


def test_a_benchmark_that_cannot_fit_names_the_minutes_that_are_missing():
    fit, sentence = told("eight H200", "nemo", 5)
    assert fit.runs == 1
    assert " more than --budget-minutes 5. For all runs use --budget-minutes " in sentence
    alone, here = {"llama": specs("eight H200", "nemo")["llama"]}, machine("eight H200")
    fit = run_time.fitted(alone, here, runs=1, pause=30, minutes=1, free=FREE)
    sentence = run_time.run_time_sentence(list(fit.specs.values()), here, runs=1, pause=30, minutes=1, fit=fit)
    assert re.search(r"That is \d+ s more than --budget-minutes 1\. For this use --budget-minutes 3\.$", sentence)


def test_the_estimate_is_flops_over_a_share_of_the_peak_and_a_start():
    [spec, *_], here = specs("one H200").values(), machine("one H200")
    one = run_time.of_run(spec, here)
    assert one.step_seconds == pytest.approx(16 * 8192 * 51470401536 / (989.4e12 * run_time.UTILISATION), rel=1e-3)
    assert one.seconds == pytest.approx(run_time.START_SECONDS + 25 * one.step_seconds)
    assert (one.gpu, one.recomputed) == ("H200 SXM", 0.0)


OF_FULL = 1 - 2 * 4096 * 14_336 / (2 * 218_103_808 + 2 * 4096 * 8192)  # of a layer, all but its last product


@in_each(("flag", "share"), [("none", 0), ("selective", OF_FULL / 2), ("full", OF_FULL)])
def test_recomputed_layers_take_their_forward_pass_again(flag, share):
    """Llama 3.1 8B at 8192 tokens: a third of 51.47 GFLOP per token, less 2 × 128,256 × 4,096 of the output head."""
    [spec], here = specs("one H200", models=["llama"], recompute=flag).values(), machine("one H200")
    again = 51_470_401_536 / 3 - 2 * 128_256 * 4_096
    work = 16 * 8192 * (51_470_401_536 + share * again)
    one = run_time.of_run(spec, here)
    assert one.step_seconds == pytest.approx(work / (989.4e12 * run_time.UTILISATION), rel=1e-6)
    told = {
        "none": "",
        "selective": ", forward pass of 38 % of the layers twice",
        "full": ", forward pass of 77 % of the layers twice",
    }
    assert run_time.run_time_sentence([spec], here, runs=1, pause=0).partition(" (")[2] == (
        f"assumed: 30 % of the dense BF16 peak of H200 SXM{told[flag]}, 60 s to start a run); not measured."
    )


def test_the_layers_of_a_configuration_are_recomputed_without_its_output_head():
    here = machine("one H200")
    config = {
        "model_type": "gpt_oss", "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 4, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "vocab_size": 50_000, "max_position_embeddings": 4096, "sliding_window": 128, "tie_word_embeddings": False,
    }  # fmt: skip
    once, twice = (
        run_time.of_run(specs("one H200", models=["own"], config=config, recompute=flag)["own"], here).step_seconds
        for flag in ("none", "full")
    )
    whole = prepare.model_of(specs("one H200", models=["own"], config=config)["own"]).decoder.flops_per_token([4096])
    assert twice / once == pytest.approx(1 + (whole / 3 - 2 * 50_000 * 512) / whole)


def test_the_grounds_of_an_estimate_hold_for_every_model():
    here = machine("one H200")
    llama = specs("one H200", models=["llama"], recompute="full")["llama"]
    qwen = specs("one H200", models=["qwen"], precision="fp8")["qwen"]
    grounds = run_time.run_time_sentence([llama, qwen], here, runs=1, pause=0).partition(" (")[2]
    assert grounds == (
        "assumed: 30 % of the dense BF16 or FP8 peak of H200 SXM, forward pass of 77 % of the layers of llama twice, "
        "60 s to start a run); not measured."
    )


def test_the_layers_that_a_vendors_recipe_recomputes_take_longer():
    """Megatron-Bridge's FP8 recipe of Llama 3 8B on eight H100 or H200 recomputes 5 of 32 layers."""
    here = machine("eight H200")
    spec = specs("eight H200", "bridge", ["llama"], precision="fp8")["llama"]
    assert modules.recomputed_share(spec, "NVIDIA H200") == 5 / 32
    assert "forward pass of 16 % of the layers twice" in run_time.run_time_sentence([spec], here, runs=1, pause=0)
    assert modules.recomputed_share(spec.changed(num_gpus=4), "NVIDIA H200") == 0


def test_settings_by_flag_and_settings_that_fit_are_not_changed():
    before, here = specs("one H200"), machine("one H200")
    assert run_time.fitted(before, here, runs=3, pause=0, minutes=15, free=frozenset()).specs == before
    only_steps = run_time.fitted(before, here, runs=3, pause=0, minutes=60, free=frozenset({"steps"})).specs
    assert {spec.global_batch_size for spec in only_steps.values()} == {16}
    assert all(only_steps[model].steps < before[model].steps for model in MODELS)
    assert run_time.fitted(before, here, runs=1, pause=0, minutes=6000, free=FREE).specs == before
    assert run_time.with_note(before["llama"], before["llama"], 15) == before["llama"]


def test_a_device_without_a_known_peak_has_no_estimate():
    unknown = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA X1", device_count=1), host="here")
    every = list(specs("one H200").values())
    assert run_time.of_benchmark(every, unknown, runs=3, pause=0) is None
    assert "no peak is known for NVIDIA X1" in run_time.run_time_sentence(every, unknown, runs=3, pause=0)


@in_each(
    ("flags", "batch", "shown"),
    [
        (("--budget-minutes", "15"), 1, "--budget-minutes 15: batch 1 instead of 16, steps 9 instead of 20;"),
        (("--budget-minutes", "15", "--global-batch-size", "16"), 16, "Estimated time: "),
        ((), 16, "Estimated time: "),
    ],
)
def test_a_dry_run_prints_the_estimate_and_the_sizes_that_the_minutes_leave(
    tmp_path, monkeypatch, capsys, flags, batch, shown
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: machine("one H200"))
    assert main(["run", "--engine", "torch", "--runs", "3", "--dry-run", "--json", *flags]) == 0
    printed = capsys.readouterr()
    assert {one["global_batch_size"] for one in json.loads(printed.out)} == {batch}
    text = " ".join(printed.err.split())
    assert shown in text
    assert "not measured" in text


def test_no_run_begins_that_would_end_after_the_minutes():
    budget = Budget(runs=3, minutes=5).checked()
    assert not decide_runs(budget, [], runs=1, began=time.monotonic() - 140).done
    stopped = decide_runs(budget, [], runs=1, began=time.monotonic() - 160)
    assert stopped.done
    assert "after 1 of 3 runs" in stopped.sentence
    measured = result("h100")
    assert stopped.noted(measured).warnings == (*measured.warnings, stopped.sentence)
    assert decide_runs(budget, [], runs=3, began=time.monotonic()).noted(measured) is measured
    assert decide_runs(budget, [], runs=3, began=time.monotonic()).done
