"""Every page that compares two sides states that other machines may differ."""

import itertools
from dataclasses import replace
from pathlib import Path

import plausible
import pytest
from each import in_each

from tensorprimat.analysis import gate as gates
from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.metrics import MetricChoices
from tensorprimat.analysis.ratios import StatedScatter
from tensorprimat.core.summary import pool
from tensorprimat.reports import forest, formatting, page
from tensorprimat.storage.store import Loaded


def comparison_of(*results, **options):
    loaded = [Loaded(path=Path(f"{number}.json"), result=result) for number, result in enumerate(results)]
    return compare(loaded, **options)


ONE_MACHINE = "other machines may differ"


def sentences_with_a_verdict(comparison):
    """Return every headline with its limits; the sentences about money below them repeat no limit."""
    return [str(one) for one in (*forest.answers(comparison), *map(formatting.headline, comparison.pairs))]


@in_each("runs", [(3, 3), (1, 3), (1, 1)])
@in_each("seconds", [12.8, 11.0])
def test_every_sentence_with_a_verdict_states_that_other_machines_may_differ(runs, seconds):
    sides = [plausible.result("h100", runs=runs[0]), plausible.result("mi300x", runs=runs[1], seconds=seconds)]
    printed = sentences_with_a_verdict(comparison_of(*sides))
    assert len(printed) == 2
    assert [sentence for sentence in printed if ONE_MACHINE not in sentence] == []


@pytest.mark.parametrize("runs", [1, 3])
def test_the_mean_over_models_states_that_other_machines_may_differ(runs):
    models = [
        plausible.result(machine, model=model, runs=runs, seed=seed)
        for seed, (machine, model) in enumerate(itertools.product(("h100", "mi300x"), ("llama", "qwen")))
    ]
    assert [printed for printed in sentences_with_a_verdict(comparison_of(*models)) if ONE_MACHINE not in printed] == []


def test_every_time_to_train_states_that_other_machines_may_differ():
    (pair,) = comparison_of(plausible.result("h100", runs=3), plausible.result("mi300x", runs=3)).pairs
    for verdict, ends in (("faster", (1.1, 1.3)), ("no_difference_shown", (0.9, 1.3)), ("too_few_runs", (None, None))):
        estimate = replace(pair.ratio.estimate, value=1.2, low=ends[0], high=ends[1])
        ratio = replace(pair.ratio, metric="time_to_train", estimate=estimate, verdict=verdict)
        printed = str(formatting.headline(replace(pair, ratio=ratio)))
        assert "to the quality target" in printed
        assert ONE_MACHINE in printed


def test_results_of_several_hosts_drop_the_sentence_about_other_machines():
    sides = [on_hosts(plausible.result("h100", runs=3)), on_hosts(plausible.result("mi300x", runs=3))]
    assert [printed for printed in sentences_with_a_verdict(comparison_of(*sides)) if ONE_MACHINE in printed] == []


def scopes(*results, **options):
    return [pair.ratio.scope for pair in comparison_of(*results, **options).pairs]


def on_hosts(one):
    runs = [run.model_copy(update={"host": f"node-{run.index}"}) for run in one.runs]
    return one.model_copy(update={"runs": tuple(runs)})


def in_pairs(one):
    return one.model_copy(update={"runs": tuple(run.model_copy(update={"pair": run.index}) for run in one.runs)})


@in_each(("nodes", "machine"), [((1, 1), "machine"), ((4, 4), "set of 4 nodes"), ((1, 4), "machine or node set")])
def test_the_scope_names_a_machine_or_a_set_of_nodes(nodes, machine):
    sides = [
        plausible.result(gpu, runs=3, num_nodes=count) for gpu, count in zip(("h100", "mi300x"), nodes, strict=True)
    ]
    assert scopes(*sides) == [f"one {machine} per side; {ONE_MACHINE}"]


@pytest.mark.parametrize("several", [0, 1])
def test_the_scope_names_the_side_with_one_machine(several):
    sides = [plausible.result("h100", runs=3), plausible.result("mi300x", runs=3)]
    sides[several] = on_hosts(sides[several])
    assert scopes(*sides) == [f"one machine of {('MI300X', 'H100')[several]}; {ONE_MACHINE}"]


def test_runs_in_pairs_were_on_one_machine_for_both_sides():
    sides = [in_pairs(plausible.result("h100", runs=3)), in_pairs(plausible.result("mi300x", runs=3))]
    assert scopes(*sides) == [f"one machine; {ONE_MACHINE}"]


def test_assumptions_are_in_the_sentences_that_rest_on_them():
    sides = [plausible.result("h100"), plausible.result("mi300x", seconds=11.0)]
    comparison = comparison_of(*sides, assume_run_cv=0.01, assume_host_cv=0.02)
    for sentence in map(str, (*forest.answers(comparison), *map(formatting.headline, comparison.pairs))):
        assert "assumed: machines vary by 2 %" in sentence
        assert "runs vary by 1 %" in sentence
        assert ONE_MACHINE not in sentence


def test_the_cheaper_side_is_named_without_a_limit_that_the_headline_states():
    sides = [plausible.result("h100", runs=3), plausible.result("mi300x", runs=3, seconds=11.0)]
    (pair,) = comparison_of(*sides, choices=MetricChoices(prices={"H100": 3.0, "MI300X": 2.0})).pairs
    (winner,) = [sentence for sentence in page.money_sentences(pair) if sentence.startswith("At ")]
    assert "cheaper on MI300X" in winner
    assert ONE_MACHINE not in winner


@in_each(
    ("seconds", "runs", "status"),
    [(12.8, 3, "pass"), (14.0, 3, "fail"), (13.2, 3, "undecided"), (14.0, 1, "undecided")],
)
def test_every_answer_of_a_gate_states_that_other_machines_may_differ(seconds, runs, status):
    base, new = plausible.result("h100", runs=runs), plausible.result("h100", runs=runs, seed=1, seconds=seconds)
    sides = [[Loaded(path=Path(name), result=one)] for name, one in (("a.json", base), ("b.json", new))]
    report = gates.gate(*sides, gates.Limits(slowdown=0.03), StatedScatter(run_cv=None, confidence=0.95))
    assert report.status == status
    assert all(ONE_MACHINE in check.sentence for check in report.checks)


def test_a_mean_over_models_is_limited_to_one_machine_where_one_model_was_measured_on_one():
    """Two models: the first on two machines of each kind, the second on one."""
    sides = []
    for model, spread in (("llama", True), ("qwen", False)):
        for machine, seconds in (("h100", 12.8), ("mi300x", 12.0)):
            one = plausible.result(machine, model=model, runs=2, seconds=seconds)
            hosts = tuple(run.changed(host=f"{machine}-{run.index if spread else 0}") for run in one.runs)
            sides.append(Loaded(path=Path(f"{model}-{machine}.json"), result=one.changed(runs=hosts)))
    comparison = compare(sides)
    assert [pair.ratio.scope is None for pair in comparison.pairs] == [True, False]
    assert "other machines may differ" in comparison.mean_ratio.scope


def test_runs_of_two_machines_keep_their_machines_in_a_pooled_file():
    alone = [
        one.changed(runs=(one.runs[0].changed(host=None),), provenance=one.provenance.changed(host=host))
        for host, one in (("n1", plausible.result("h100")), ("n2", plausible.result("h100", seed=1)))
    ]
    assert [run.host for run in pool(alone).runs] == ["n1", "n2"]
