"""Every sentence that compares two sides says what it leaves open: other machines."""

import itertools
from dataclasses import replace
from pathlib import Path

import plausible
import pytest

from tensorprimat.analysis.compare import compare
from tensorprimat.core.store import Loaded
from tensorprimat.reports import forest, formatting, money


def comparison_of(*results):
    return compare([Loaded(path=Path(f"{number}.json"), result=result) for number, result in enumerate(results)])


ONE_MACHINE = "says nothing about other machines"


def sentences_with_a_verdict(comparison):
    """Every sentence of the reports that compares two sides."""
    said = [*forest.answers(comparison), *map(formatting.headline, comparison.pairs)]
    of_money = [sentence for pair in comparison.pairs for sentence in money.sentences(pair)]
    return said + [one for one in of_money if "decide nothing" not in one and "not confirmed" not in one]


@pytest.mark.parametrize("runs", [(3, 3), (1, 3), (1, 1)])
@pytest.mark.parametrize("seconds", [12.8, 11.0])
def test_every_sentence_with_a_verdict_says_that_one_machine_speaks_for_itself_only(runs, seconds):
    sides = [plausible.result("h100", runs=runs[0]), plausible.result("mi300x", runs=runs[1], seconds=seconds)]
    said = sentences_with_a_verdict(comparison_of(*sides))
    assert len(said) > 2
    assert [sentence for sentence in said if ONE_MACHINE not in sentence] == []


@pytest.mark.parametrize("runs", [1, 3])
def test_the_mean_over_models_says_so_too(runs):
    models = [
        plausible.result(machine, model=model, runs=runs, seed=seed)
        for seed, (machine, model) in enumerate(itertools.product(("h100", "mi300x"), ("llama", "qwen")))
    ]
    assert [said for said in sentences_with_a_verdict(comparison_of(*models)) if ONE_MACHINE not in said] == []


def test_every_time_to_train_says_that_one_machine_speaks_for_itself_only():
    (pair,) = comparison_of(plausible.result("h100", runs=3), plausible.result("mi300x", runs=3)).pairs
    for verdict, ends in (("faster", (1.1, 1.3)), ("no_difference_shown", (0.9, 1.3)), ("too_few_runs", (None, None))):
        estimate = replace(pair.ratio.estimate, value=1.2, low=ends[0], high=ends[1])
        ratio = replace(pair.ratio, metric="time_to_train", estimate=estimate, verdict=verdict)
        said = formatting.headline(replace(pair, ratio=ratio))
        assert "to the quality target" in said
        assert ONE_MACHINE in said


def test_several_hosts_lift_the_limit_of_a_sentence():
    def on_hosts(one):
        runs = [run.model_copy(update={"host": f"node-{run.index}"}) for run in one.runs]
        return one.model_copy(update={"runs": tuple(runs)})

    sides = [on_hosts(plausible.result("h100", runs=3)), on_hosts(plausible.result("mi300x", runs=3))]
    assert [said for said in sentences_with_a_verdict(comparison_of(*sides)) if ONE_MACHINE in said] == []
