"""--ab and --target-ci: runs in turn, compared in pairs, and as many as an interval needs."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chrome_traces import training
from each import in_each
from plausible import result
from test_run_command import LAPTOP, engine, folder, run  # noqa: F401  # fixtures

from tensorprimat.core import quantities
from tensorprimat.core.summary import summarise
from tensorprimat.engines import prepare
from tensorprimat.session.budget import Budget, decide_runs, half_width
from tensorprimat.session.plan import Job
from tensorprimat.session.runs import ModelOutcome
from tensorprimat.storage import store

QUICK = ("--engine", "torch", "--steps", "8", "--warmup-steps", "1", "--model", "llama")
PRECISIONS = ("--ab", "--precision fp32", "--ab", "--precision bf16")
DRIFTING = """
speed = 0.4 if spec.precision == "bf16" else 0.5
write(seconds=speed * (1 + 0.05 * nth) + 0.0001 * (nth % 3))
"""


@pytest.fixture
def machine(folder, engine, monkeypatch):  # noqa: F811
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: LAPTOP)
    engine(DRIFTING)
    return folder


def test_two_configurations_run_in_turn_and_are_compared_in_pairs(machine, capsys):
    assert run(*QUICK, "--runs", "3", *PRECISIONS) == 0
    shown = capsys.readouterr().out
    order = [line.split()[1] for line in shown.splitlines() if line.startswith("Run ") and len(line.split()) == 2]
    assert order == ["1a", "1b", "2b", "2a", "3a", "3b"]
    ours, theirs = (store.load(machine / "output" / name / "benchmark_cpu_llama.json") for name in "ab")
    assert [run.pair for run in ours.runs] == [run.pair for run in theirs.runs]
    assert len({run.pair for run in ours.runs}) == 3
    assert (ours.training_config.precision, theirs.training_config.precision) == ("fp32", "bf16")
    assert "is faster than" in shown.replace("\n", " ")
    shown = " ".join(shown.split())
    assert "One machine; other machines may differ." in shown
    for side in "ab":
        assert shown.count(f"Engine of {side}: the torch engine (Lightning), as requested") == 1, "the reason, once"


@pytest.mark.usefixtures("machine")
def test_a_profile_of_each_configuration_explains_the_difference(monkeypatch, capsys):
    def train_profiled(side, *_):
        place = side.place
        stem = place.folder / "history" / f"benchmark_cpu_llama_{place.stamp}"
        ours = store.load(place.folder / "benchmark_cpu_llama.json")
        training(product=500 if place.folder.name == "a" else 400).write(Path(f"{stem}_torch.trace.json.gz"))
        return ModelOutcome(model="llama", path=store.write(ours, Path(f"{stem}_profiled.json")))

    monkeypatch.setattr("tensorprimat.session.alternate.train_profiled", train_profiled)
    monkeypatch.setattr("tensorprimat.engines.profiling.check_profiler", lambda *_: None)
    assert run(*QUICK, "--runs", "2", "--profile", "torch", *PRECISIONS) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "B is 1.2 ms faster a step: products 1.2 ms" in shown
    assert "tprimat explain output/a/history/benchmark_cpu_llama_" in shown


def test_the_steps_of_a_failed_run_are_in_history_and_its_error_names_the_run_and_the_files(machine, engine, capsys):  # noqa: F811
    engine("if nth < 3: write()\nelse:\n    write(complete=False, rows=3)\n    sys.exit('torch engine: out of data')")
    assert run(*QUICK, "--runs", "2", *PRECISIONS) == 1
    for name in "ab":
        assert len(store.load(machine / "output" / name / "benchmark_cpu_llama.json").runs) == 1
    (partial,) = (machine / "output" / "b").glob("history/*_run2.json")
    assert (store.load(partial).complete, len(store.load(partial).steps)) == (False, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("llama: run 2b: out of data")
    assert (
        "; the runs before it are in output/a/benchmark_cpu_llama.json and output/b/benchmark_cpu_llama.json; its "
        f"partial result is in {partial.relative_to(machine)}" in line
    )


@pytest.mark.parametrize(
    ("body", "models", "code"),
    [
        ("sys.exit(refuse())", "llama", 2),
        ("sys.exit('torch engine: out of data')", "llama", 1),
        ("sys.exit(refuse() if spec.model == 'qwen' else 'torch engine: out of data')", "all", 1),
    ],
)
@pytest.mark.parametrize("pair", [PRECISIONS, ()])
@pytest.mark.usefixtures("machine")
def test_a_refused_run_exits_2_and_a_failed_one_1_with_and_without_ab(engine, pair, body, models, code):  # noqa: F811
    engine(f"def refuse():\n    print('torch engine: --precision: not here', file=sys.stderr)\n    return 2\n{body}")
    assert run(*QUICK, "--model", models, *pair) == code


@pytest.mark.usefixtures("machine")
def test_interleave_means_the_same_as_ab(capsys):
    flags = ("--interleave", "--precision fp32", "--interleave", "--precision bf16")
    assert run(*QUICK, *flags, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "CONFIGURATION A" in shown
    assert "CONFIGURATION B" in shown


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("flags", "precisions"), [(PRECISIONS, ("fp32", "bf16")), (("--precision", "bf16"), ("bf16",))]
)
def test_warnings_about_the_machine_and_the_configuration_are_shown_with_and_without_ab(
    capsys, monkeypatch, flags, precisions
):
    odd = replace(LAPTOP, warnings=("gpu_info: the driver is old",))
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda: odd)
    monkeypatch.setattr(Job, "advice", lambda job: [f"{job.spec.precision} is slow here"])
    assert run(*QUICK, *flags, "--dry-run") == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    advice = [f"warning: {precision} is slow here" for precision in precisions]
    assert shown == ["warning: gpu_info: the driver is old", *advice]


@pytest.mark.usefixtures("machine")
def test_equal_configurations_are_compared_too(capsys):
    assert run(*QUICK, "--runs", "2", "--ab", "", "--ab", "") == 0
    assert "a and b differ in no compared setting; b / a: " in capsys.readouterr().out


def test_runs_are_added_until_the_interval_is_narrow_enough(machine, capsys):
    assert run(*QUICK, *PRECISIONS, "--target-ci", "40%", "--max-runs", "12") == 0
    shown = capsys.readouterr().out
    ours = store.load(machine / "output" / "a" / "benchmark_cpu_llama.json")
    assert 3 <= len(ours.runs) < 12
    assert "within the target of 40 %" in shown
    assert ours.provenance.looks == len(ours.runs) - 2


def test_a_spent_budget_is_reported(machine, capsys):
    assert run(*QUICK, "--target-ci", "0.01%", "--max-runs", "3") == 0
    assert "Stopped by --max-runs 3; interval ±" in capsys.readouterr().out
    assert len(store.load(machine / "output" / "benchmark_cpu_llama.json").runs) == 3


def test_appending_counts_as_another_look(machine):
    assert run(*QUICK, "--runs", "2") == 0
    assert run(*QUICK, "--runs", "2", "--append") == 0
    assert store.load(machine / "output" / "benchmark_cpu_llama.json").provenance.looks == 2


def test_a_target_for_appended_runs_counts_the_earlier_runs_and_the_looks_at_them(machine, capsys):
    wide = ("--target-ci", "0.01%", "--max-runs", "4")
    assert run(*QUICK, *wide) == 0
    kept = machine / "output" / "benchmark_cpu_llama.json"
    earlier = store.load(kept)
    assert (len(earlier.runs), earlier.provenance.looks) == (4, 2)
    capsys.readouterr()
    assert run(*QUICK, *wide, "--append") == 0
    shown = capsys.readouterr().out
    both = store.load(kept)
    assert (len(both.runs), both.provenance.looks) == (8, 6)
    printed = [line for line in shown.splitlines() if line.startswith("interval ±")]
    assert [line.split(" after ")[1].split(",")[0] for line in printed] == [
        f"{4 + added} runs ({added} of them added)" for added in (1, 2, 3)
    ]
    assert f"interval ±{quantities.percent(half_width([both], 6))} after 8 runs (4 of them added)" in shown


def test_the_checks_of_an_interval_are_in_both_files_if_a_later_run_fails(machine, engine):  # noqa: F811
    engine("if nth < 11: write(seconds=0.5 + 0.01 * (nth % 3))\nelse: sys.exit('torch engine: out of data')")
    assert run(*QUICK, *PRECISIONS, "--target-ci", "0.01%") == 1
    sides = [store.load(machine / "output" / name / "benchmark_cpu_llama.json") for name in "ab"]
    assert [(len(side.runs), side.provenance.looks) for side in sides] == [(5, 3), (5, 3)]


@in_each(
    ("flags", "printed"),
    [
        (("--ab", "--precision fp32"), "give it twice"),
        (("--ab", "--runs 3", "--ab", ""), "--runs holds for both configurations"),
        ((*PRECISIONS, "--append"), "not with --append"),
        ((*PRECISIONS, "--shape", "Qwen3-4B"), "--shape: states a fact about a log, and no log is read here"),
        (("--target-ci", "0"), "must be between 0 and 100 %"),
        (("--target-ci", "150%"), "--target-ci 150%: must be between 0 and 100 %"),
        (("--budget-minutes", "0"), "must be a number above 0"),
        (("--target-ci", "1%", "--max-runs", "2"), "must be at least 3"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_an_impossible_value_is_refused_by_its_flag(capsys, flags, printed):
    assert run(*QUICK, *flags) == 2
    assert printed in capsys.readouterr().err


def test_a_fixed_number_of_runs_is_never_extended():
    assert not decide_runs(Budget(runs=2), [result(runs=1)], runs=1, began=time.monotonic()).done
    assert decide_runs(Budget(runs=2), [result(runs=2)], runs=2, began=time.monotonic()).done


def test_no_run_is_added_once_the_budget_of_minutes_is_spent():
    spent = decide_runs(Budget(runs=1, target=1e-6, minutes=1), [result(runs=4)], runs=4, began=time.monotonic() - 61)
    assert spent.done
    assert "--budget-minutes 1" in spent.sentence


def test_later_looks_need_a_narrower_interval():
    one = result(runs=5)
    assert half_width([one], 4) > half_width([one], 1)


def test_stopping_when_narrow_keeps_the_coverage():
    random = np.random.default_rng(5)
    held, template = 0, result(runs=8, steps=8, warmup=0, noise=0, run_noise=0, losses=False)
    for _ in range(40):
        levels = 10 * np.exp(0.01 * random.standard_normal(8))
        for runs in range(3, 9):
            one = pooled_runs(template, levels, runs)
            decision = decide_runs(Budget(runs=1, target=0.015, max_runs=8), [one], runs=runs, began=time.monotonic())
            if decision.done:
                break
        mean = np.log(levels[:runs] / 10).mean()
        held += abs(mean) < half_width([one], decision.looks)
    assert held >= 36


@pytest.mark.thorough
def test_stopping_when_narrow_keeps_the_coverage_over_three_sessions_of_appended_runs():
    random = np.random.default_rng(7)
    held, trials, template = 0, 60, result(runs=12, steps=8, warmup=0, noise=0, run_noise=0, losses=False)
    for _ in range(trials):
        levels = 10 * np.exp(0.01 * random.standard_normal(12))
        earlier, total = None, 0
        for target in (0.03, 0.015, 0.012):
            for runs in range(1, 5):
                one = pooled_runs(template, levels, total + runs)
                decision = decide_runs(
                    Budget(runs=1, target=target, max_runs=4), [one], runs=runs, began=time.monotonic(), earlier=earlier
                )
                if decision.done:
                    break
            total += runs
            earlier = one.changed(provenance=one.provenance.changed(looks=decision.looks))
        mean = np.log(levels[:total] / 10).mean()
        held += abs(mean) < half_width([earlier], earlier.provenance.looks)
    assert held >= 0.975 * trials


def pooled_runs(template, levels, runs):
    rows = template.steps.take(template.steps.column("run") < runs)
    cut = template.model_copy(update={"steps": rows.replace(seconds=np.repeat(levels[:runs], 8))})
    return summarise(cut.changed(runs=cut.runs[:runs]))


@pytest.mark.parametrize("pair", [(), ("--ab", "--precision fp32", "--ab", "--precision bf16")], ids=["alone", "ab"])
def test_all_runs_start_again_where_the_chosen_recomputation_runs_out_of_memory(
    machine,
    engine,  # noqa: F811
    monkeypatch,
    capsys,
    pair,
):
    """As on a GPU, where the engine chooses what to recompute; the second run of the first plan has no memory."""
    engine(
        "if spec.recompute == 'none' and nth == 2:\n"
        "    sys.exit('torch engine: out of memory: llama (tiny); try --micro-batch-size 1')\n"
        "write()"
    )
    planned = prepare.spec_of
    monkeypatch.setattr(prepare, "spec_of", lambda *given, **more: planned(*given, **more).changed(falls_back=True))
    assert run(*QUICK, "--runs", "2", *pair) == 0
    assert capsys.readouterr().out.count("CONFIGURATION B - " if pair else "BENCHMARK START - ") == 2, "the new plan"
    for path in [machine / "output" / name for name in "ab"] if pair else [machine / "output"]:
        found = store.load(path / "benchmark_cpu_llama.json")
        assert len(found.runs) == 2
        told = [(one.code, one.values["before"]) for one in found.remarks if one.field == "recompute"]
        assert told == ([] if pair and path.name == "a" else [("recompute_increased", "none")])
