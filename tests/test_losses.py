"""Tests of the verdict on two sides' losses."""

from pathlib import Path

import numpy as np
import pytest
from each import in_each
from plausible import result

from tensorprimat.analysis import losses
from tensorprimat.analysis.fairness import judge
from tensorprimat.analysis.sides import gather
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.storage.store import Loaded

ROWS = 200
CURVE = 2.2 + 9.5 * np.exp(-np.arange(ROWS) / 18)


def side(losses, *, seeds=(1,), **config):
    """Return one side whose runs logged these losses, one row of `losses` per run."""
    runs = len(losses)
    one = result("h100", runs=runs, **{"framework": "nemo", **config})
    columns = {
        "index": np.tile(np.arange(1, ROWS + 1), runs),
        "seconds": np.full(ROWS * runs, 10.0),
        "run": np.repeat(np.arange(runs), ROWS),
        "loss": np.concatenate(losses),
    }
    printed_nan = {"loss": np.isnan(columns["loss"])}
    facts = tuple(run.model_copy(update={"seed": seed}) for run, seed in zip(one.runs, seeds, strict=True))
    one = summarise(one.model_copy(update={"steps": Steps(columns, logged_nan=printed_nan), "runs": facts}))
    return gather([Loaded(path=Path("x.json"), result=one)], "platform")[0]


def parity(one, other, **limits):
    return losses.parity(one, other, judge(one.result, other.result), **limits)


def jitter(seed, size=0.05):
    return size * np.random.default_rng(seed).standard_normal(ROWS)


def test_the_same_batches_give_the_same_curve():
    shared = jitter(1)
    found = parity(side([CURVE + shared]), side([CURVE + shared + jitter(2, 0.0005)]))
    assert found.verdict == "agree"
    assert found.steps == ROWS


def test_equal_losses_are_called_equal_without_a_gap_of_zero():
    found = parity(side([CURVE]), side([CURVE]))
    assert (found.verdict, found.sentence) == ("agree", "The losses are equal at all 200 common steps.")


def test_the_first_step_of_divergence_is_named():
    shared = jitter(1)
    away = np.where(np.arange(ROWS) < 120, 0, 0.2)
    found = parity(side([CURVE + shared]), side([CURVE + shared + away + jitter(2, 0.001)]))
    assert found.verdict == "diverge"
    assert abs(found.first_divergence_step - 121) <= 10
    assert found.largest_gap == pytest.approx(0.2, abs=0.02)


def test_losses_that_fall_alike_at_a_distance_are_not_called_equal():
    found = parity(side([CURVE + jitter(1, 0.001)]), side([CURVE * 1.05 + jitter(1, 0.001)]))
    assert np.corrcoef(CURVE, CURVE * 1.05)[0, 1] > 0.999
    assert found.verdict == "diverge"


def test_a_difference_hidden_by_noise_is_undecided():
    assert parity(side([CURVE + jitter(1, 0.3)]), side([CURVE + jitter(2, 0.3)])).verdict == "undecided"


def test_seed_to_seed_noise_is_measured_where_seeds_differ():
    ours = [CURVE + jitter(seed, 0.01) + 0.02 * np.sin(seed) for seed in range(4)]
    theirs = [CURVE + jitter(seed, 0.01) + 0.02 * np.sin(seed) for seed in range(10, 14)]
    found = parity(side(ours, seeds=range(4)), side(theirs, seeds=range(10, 14)))
    assert found.verdict in ("agree", "undecided")
    assert "4 and 4 runs" in found.sentence
    worse = [curve + 0.5 for curve in theirs]
    assert parity(side(ours, seeds=range(4)), side(worse, seeds=range(10, 14))).verdict == "diverge"


def test_runs_of_equal_seeds_are_paired():
    ours = [CURVE + jitter(seed, 0.3) for seed in range(4)]
    theirs = [curve + jitter(50 + number, 0.002) for number, curve in enumerate(ours)]
    found = parity(side(ours, seeds=range(4)), side(theirs[::-1], seeds=[3, 2, 1, 0]))
    assert found.verdict == "agree"
    assert "4 pairs of equal seeds" in found.sentence


def test_one_run_of_another_seed_cannot_be_compared():
    found = parity(side([CURVE], seeds=[1]), side([CURVE], seeds=[2]))
    assert found.verdict == "not_comparable"


@in_each(
    ("config", "reason"),
    [
        ({"data": "c4"}, "synthetic data on one side, c4 data on the other"),
        ({"data": None}, "does not state which data"),
        ({"framework": "primus"}, "each framework generates its own synthetic data"),
        ({"sequence_length": 2048}, "did different work, or a side does not state its work"),
    ],
)
def test_other_data_cannot_be_compared(config, reason):
    found = parity(side([CURVE]), side([CURVE], **config))
    assert found.verdict == "not_comparable"
    assert reason in found.sentence


def test_nan_fails_and_names_its_first_step():
    broken = CURVE.copy()
    broken[49:] = np.nan
    found = parity(side([CURVE]), side([broken]))
    assert found.verdict == "failed"
    assert "nan from step 50 on" in found.sentence


def test_a_flat_loss_fails():
    found = parity(side([CURVE]), side([np.full(ROWS, 11.76)]))
    assert found.verdict == "failed"
    assert "stays at 11.76" in found.sentence


def test_a_side_without_losses_gets_no_verdict():
    silent = result("h100", losses=False)
    (group,) = gather([Loaded(path=Path("x.json"), result=silent)], "platform")
    assert parity(side([CURVE]), group) is None


def test_two_equal_sides_diverge_by_chance_in_at_most_one_of_twenty():
    alarms = 0
    for trial in range(50):
        found = parity(
            side([CURVE + jitter((trial, run)) for run in range(3)], seeds=range(3)),
            side([CURVE + jitter((trial, run + 10)) for run in range(3)], seeds=range(10, 13)),
            tolerance=0.0,
        )
        alarms += found.verdict == "diverge"
    assert alarms <= 5
