"""A small version of perf/calibration.py: the intervals hold, and the document can be written."""

from pathlib import Path

import numpy as np
import pytest
import scripts

SCRIPT = Path(__file__).parents[1] / "perf" / "calibration.py"


@pytest.fixture(scope="module")
def calibration():
    return scripts.load("perf/calibration.py")


@pytest.fixture
def random():
    return np.random.default_rng(11)


def test_five_runs_a_side_keep_their_coverage_raise_few_alarms_and_find_two_percent(calibration, random):
    world = calibration.World(name="plain", ramp=8, phi=0.5)
    found = calibration.compare_sides(world, world, random, 400)
    assert 0.92 <= found.coverage <= 0.98
    assert found.false_alarms <= 0.08
    assert found.found >= 0.9
    assert found.bootstrap_coverage < found.coverage


def test_hosts_that_differ_do_not_narrow_the_interval(calibration, random):
    world = calibration.World(name="hosts", runs=9, hosts=3, host_cv=0.01, steps=20)
    assert calibration.compare_sides(world, world, random, 300).coverage >= 0.92


@pytest.mark.parametrize(
    ("rows", "process"),
    [
        (100, {}),
        (100, {"phi": 0.6}),
        (200, {"phi": 0.8}),
        (100, {"wander": True}),
        (100, {"flips": True}),
        (100, {"outliers": 0.05}),
    ],
)
def test_the_interval_of_one_run_covers_the_mean_of_that_run_or_is_not_shown(calibration, random, rows, process):
    from perf.calibration_worlds import Process

    found = calibration.one_run(Process(name="", **process), rows, random, 300)
    assert 0.91 <= found.coverage <= 0.995
    assert found.shown > (0.5 if process.keys() & {"wander", "flips"} else 0.85)


def test_a_short_run_shows_no_interval(calibration, random):
    assert calibration.one_run(calibration.PROCESSES[0], 50, random, 20).shown == 0


def test_equal_variation_of_five_runs_a_side_is_not_taken_for_fewer_degrees_of_freedom(calibration, random):
    world = calibration.World(name="power", run_cv=0.01, step_noise=0.001, steps=8)
    sides = [calibration.simulate(world, random, 4000).mean(axis=2) for _ in range(2)]
    logs = [calibration.log_ratio(world, a, b) for a, b in zip(*sides, strict=True)]
    moved = [abs(log.log + 0.0198) > log.half_width(0.95) for log in logs]
    assert sum(moved) / 4000 > 0.757  # Satterthwaite's degrees of freedom: 75.1 %, these: 76.7 %
    assert sum(log.p_value() < 0.05 for log in logs) / 4000 < 0.06


def test_a_gate_rarely_decides_at_its_limit_and_detects_twice_the_limit(calibration, random):
    found = calibration.gate_decisions(calibration.World(name=""), calibration.World(name=""), random, 400)
    assert max(found.passed_at_limit, found.failed_at_limit, found.failed_equal) <= 0.05
    assert min(found.passed_equal, found.failed_double) >= 0.98


def test_equal_candidates_are_rarely_called_different(calibration, random):
    assert calibration.family_alarms(random, 400) <= 0.08


def test_looks_after_every_run_raise_few_alarms_only_with_the_correction(calibration, random):
    corrected, plain = calibration.looking_alarms(random, 300)
    assert corrected <= 0.08 < plain


@pytest.mark.parametrize("family", ["models_alarms", "gate_of_models_alarms"])
def test_several_models_of_equal_speed_raise_few_false_alarms_together(calibration, random, family):
    assert getattr(calibration, family)(random, 200) <= 0.08


def test_a_true_assumption_about_the_scatter_gives_few_false_alarms(calibration, random):
    assert calibration.assumed_alarms(random, 600) <= 0.08


def test_warm_up_ends_are_found(calibration, random):
    for series in calibration.steadiness(random, 100):
        if series.clean:
            assert series.within_two >= 0.95, series.name
        if series.truth is None:
            assert series.settled <= 0.15, series.name


def test_a_quick_look_prints_the_document_and_writes_nothing(calibration, capsys):
    document = SCRIPT.parents[1] / "docs" / "project" / "calibration.md"
    before = document.read_bytes() if document.exists() else None
    assert calibration.main(["--comparisons", "2"]) in (0, 1)
    printed = capsys.readouterr().out
    assert printed.startswith("# Are the intervals right?")
    assert (document.read_bytes() if document.exists() else None) == before


def test_the_committed_document_is_the_output_of_the_script(calibration):
    document = SCRIPT.parents[1] / "docs" / "project" / "calibration.md"
    text = document.read_text(encoding="utf-8")
    assert "perf/calibration.py" in text
    assert all(name in text for name in calibration.ALTERNATIVES)
