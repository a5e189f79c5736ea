"""Every cell of every table of a report holds the figure that its heading names."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import plausible
import pytest

from tensorprimat.analysis.compare import compare
from tensorprimat.core import quantities
from tensorprimat.reports import bars, efficiency, facts, forest, formatting, html, sections, series
from tensorprimat.reports.plots import panels
from tensorprimat.storage.store import Loaded

LIKE = {"performance": facts.PERFORMANCE, "memory": facts.MEMORY}


@pytest.fixture(scope="module")
def comparison():
    """Two sides of which no two figures are alike, so that a swapped cell shows."""
    results = (
        plausible.result("h100", runs=3, warmup=5, steps=50),
        plausible.result("h100", runs=2, warmup=7, steps=40, seconds=11.0, seed=1, device_name="NVIDIA H200"),
    )
    return compare([Loaded(path=Path(f"{number}.json"), result=one) for number, one in enumerate(results)])


def rows(table):
    return {row[0].text: [cell.value for cell in row[1:]] for row in table.rows}


def columns(table):
    """Return the values below each heading."""
    return {column.title: [row[n].value for row in table.rows] for n, column in enumerate(table.columns)}


def test_each_row_of_the_performance_shows_the_figure_of_its_name(comparison):
    shown = rows(facts.performance_table(comparison))
    names = {
        "Steps logged": "total_steps",
        "Warm-up steps left out": "warmup_steps_dropped",
        "Steps measured": "measured_steps",
        "Time measured": "measured_time_seconds",
        "Step time, mean": "avg_step_time_seconds",
        "Step time, median": "median_step_time_seconds",
        "Step time, minimum": "min_step_time_seconds",
        "Step time, maximum": "max_step_time_seconds",
        "Step time, standard deviation": "std_step_time_seconds",
        "Step time, CV": "cv_step_time",
        "steps/s": "steps_per_second",
        "samples/s": "samples_per_second",
        "tokens/s": "tokens_per_second",
        "tokens/s/GPU": "tokens_per_second_per_gpu",
    }
    for label, field in names.items():
        assert shown[label] == [getattr(side.result.performance_metrics, field) for side in comparison.sides], label
    for place in range(2):
        times = {name.partition(", ")[2]: shown[name][place] for name in shown if name.startswith("Step time")}
        assert times["minimum"] < times["median"] < times["maximum"]
        assert times["minimum"] < times["mean"] < times["maximum"]
        assert times["CV"] == pytest.approx(times["standard deviation"] / times["mean"], rel=1e-2)
        assert shown["tokens/s"][place] == pytest.approx(8 * shown["tokens/s/GPU"][place])
        assert shown["samples/s"][place] == pytest.approx(128 * shown["steps/s"][place])
    assert shown["Warm-up steps left out"] == [3 * 5, 2 * 7]
    assert shown["Steps measured"] == [3 * 50, 2 * 40]
    assert shown["Steps logged"] == [3 * 55, 2 * 47]


def test_every_row_of_facts_differs_from_every_other(comparison):
    for name, table in (
        ("performance", facts.performance_table(comparison)),
        ("memory", facts.memory_table(comparison)),
    ):
        of = {fact.label: fact for fact in LIKE[name]}
        for label, values in rows(table).items():
            assert values == [of[label].read(side) for side in comparison.sides], label
    memory = rows(facts.memory_table(comparison))
    for kind in ("allocated", "reserved"):
        for average, peak in zip(memory[f"Average {kind}"], memory[f"Peak {kind}"], strict=True):
            assert average < peak
    assert all(a < r for a, r in zip(memory["Peak allocated"], memory["Peak reserved"], strict=True))


def test_each_column_of_the_results_shows_the_figure_of_its_heading(comparison):
    shown = columns(sections.results(comparison.sides))
    assert shown["Side"] == ["H100", "H200"]
    assert shown["Step time"] == [side.step_time_seconds.value for side in comparison.sides]
    assert shown["tokens/s"] == [side.tokens_per_second.value for side in comparison.sides]
    assert shown["tokens/s/GPU"] == [side.tokens_per_second_per_gpu.value for side in comparison.sides]
    assert shown["Peak memory"] == [side.result.memory_metrics.peak_memory_allocated_gb for side in comparison.sides]
    assert shown["Runs × steps"] == [150, 80]
    text = [row[-1].text for row in sections.results(comparison.sides).rows]
    assert text == ["3 × 50", "2 × 40"]


def test_runs_of_unequal_length_show_the_fewest_and_the_most_steps(comparison):
    """A mean of 11,289.6 steps was shown as 10 × 11,289, a number of steps that no run had."""
    side = comparison.sides[0]
    first, *others = side.result.runs
    performance = side.result.performance_metrics.changed(measured_steps=149)
    shorter = replace(
        side,
        result=side.result.changed(runs=(first.changed(measured_steps=49), *others), performance_metrics=performance),
    )
    assert sections.results([shorter]).rows[0][-1].text == "3 × 49 to 50"


def test_each_column_of_the_runs_shows_the_figure_of_its_heading(comparison):
    shown = columns(sections.runs_table(comparison))
    every = [run for side in comparison.sides for run in side.result.runs]
    assert shown["Side"] == ["H100"] * 3 + ["H200"] * 2
    assert shown["Run"] == [1, 2, 3, 1, 2]
    assert shown["Steps"] == [50] * 3 + [40] * 2
    assert shown["Warm-up"] == [5] * 3 + [7] * 2
    assert shown["Step time"] == [run.avg_step_time_seconds for run in every]
    assert shown["tokens/s/GPU"] == [run.tokens_per_second_per_gpu for run in every]
    assert shown["Final loss"] == [run.final_loss for run in every]
    assert len(set(shown["Step time"])) == len(every)
    assert shown["Ended"] == ["complete"] * 5
    assert shown["Host"] == ["node-7"] * 5
    assert shown["Started"] == [quantities.moment(run.started_at) for run in every]


def test_each_column_of_the_verdicts_and_of_the_ranking_shows_the_figure_of_its_heading(comparison):
    (pair,), (scale,) = comparison.pairs, forest.forests(comparison)
    shown = columns(sections.verdicts(comparison.pairs))
    assert (shown["Candidate"], shown["Baseline"]) == (["H200"], ["H100"])
    assert shown["Ratio"] == [pair.ratio.estimate.value]
    assert shown["Verdict"] == ["faster"]
    assert shown["Interval"] == [formatting.interval(pair.ratio.estimate, formatting.ratio_form(pair.ratio))]
    assert [(mark.label, mark.value, mark.low, mark.high) for mark in scale.marks] == [
        ("H200", pair.ratio.estimate.value, pair.ratio.estimate.low, pair.ratio.estimate.high),
        ("H100", 1.0, None, None),
    ]
    ranking = columns(forest.ratios_table(scale))
    assert (ranking["Side"], ranking["Ratio"]) == (["H200", "H100"], [pair.ratio.estimate.value, 1.0])
    assert ranking["Interval"] == [*shown["Interval"], "baseline"]


def test_each_column_of_the_data_of_estimates_holds_the_figure_of_its_heading(comparison):
    shown = columns(sections.analysis(comparison))
    assert shown["Interval from"] == ["3 runs", "2 runs"]
    assert shown["CV of step time"] == [side.result.performance_metrics.cv_step_time for side in comparison.sides]
    needed = [side.tokens_per_second_per_gpu.runs_for_one_percent for side in comparison.sides]
    assert shown["Runs for ±1 %"] == needed
    widths = [formatting.plus_minus(side.tokens_per_second_per_gpu) for side in comparison.sides]
    assert shown["95 % interval"] == widths


def test_a_needed_number_of_runs_beyond_1000_is_shown_as_over_1000():
    scattered = plausible.result("cpu", runs=2, run_noise=0.5, seed=7)
    few_steps = plausible.result("cpu", runs=1, steps=2)
    table = sections.analysis(compare([Loaded(path=Path("runs.json"), result=scattered)]))
    assert [cell.text for cell in table.rows[0]][1:4] == ["2 runs", "±100 % or more", "over 1,000"]
    table = sections.analysis(compare([Loaded(path=Path("run.json"), result=few_steps)]))
    assert table.rows[0][3].text == "–"


def test_a_side_of_several_runs_has_one_rate_in_every_table():
    wide = [
        plausible.result(machine, runs=3, run_noise=0.1, seed=seed) for seed, machine in enumerate(("h100", "mi300x"))
    ]
    comparison = compare_of(*wide)
    rates = [side.tokens_per_second_per_gpu.value for side in comparison.sides]
    for table in (facts.performance_table(comparison), efficiency.efficiency(comparison)):
        assert rows(table)["tokens/s/GPU"] == rates
    assert columns(sections.results(comparison.sides))["tokens/s/GPU"] == rates
    for side, result in zip(comparison.sides, wide, strict=True):
        assert side.tokens_per_second_per_gpu.value != result.performance_metrics.tokens_per_second_per_gpu


@pytest.mark.parametrize("one", ["Step time, minimum", "Warm-up steps left out"])
def test_a_swapped_cell_is_detected(comparison, monkeypatch, one):
    other = {"Step time, minimum": "Step time, maximum", "Warm-up steps left out": "Steps measured"}[one]
    fields = {fact.label: fact for fact in facts.PERFORMANCE}
    swapped = [replace(fact, read=fields[other].read) if fact.label == one else fact for fact in facts.PERFORMANCE]
    monkeypatch.setattr(facts, "PERFORMANCE", tuple(swapped))
    with pytest.raises(AssertionError):
        test_each_row_of_the_performance_shows_the_figure_of_its_name(comparison)


def compare_of(*results):
    return compare([Loaded(path=Path(f"{n}.json"), result=one) for n, one in enumerate(results)])


def sides_of(*results):
    return compare_of(*results).sides


def test_durations_of_one_column_share_a_unit():
    comparison = compare_of(
        plausible.result("cpu", preset="tiny", seconds=0.124),
        plausible.result("h100", preset="tiny", seconds=0.09545, sequence_length=128),
    )
    table = sections.results(comparison.sides)
    place = [column.title for column in table.columns].index("Step time")
    assert {row[place].text.split(" ±")[0].split(" ")[1] for row in table.rows} == {"ms"}
    for row in facts.performance_table(comparison).rows:
        if row[0].text.startswith("Step time") and "CV" not in row[0].text:
            assert {cell.text.split()[1] for cell in row[1:]} == {"ms"}


def test_an_interval_of_one_run_is_marked_next_to_one_over_runs():
    sides = sides_of(plausible.result("h100", runs=1, steps=90), plausible.result("mi300x", runs=3))
    table = sections.results(sides)
    place = [column.title for column in table.columns].index("tokens/s/GPU")
    assert ["within run" in row[place].text for row in table.rows] == [True, False]


def test_the_spread_of_a_side_runs_from_low_to_high_percentiles(comparison):
    looks = bars.looks_of(comparison.sides)
    for side in comparison.sides:
        curves = series.curves(side)
        course = panels.course_of(side, looks[side.label], curves)
        measured = np.concatenate([curve.seconds[curve.measured] for curve in curves])
        expected = [np.quantile(measured, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
        assert list(course.percentiles) == pytest.approx(expected)
        assert expected == sorted(expected)


def test_a_bar_of_memory_is_the_peak_and_its_mark_the_average(comparison):
    *_, memory = bars.panels(comparison.sides, bars.looks_of(comparison.sides), comparable=True)
    allocated = [bar for bar in memory.bars if bar.group == "allocated"]
    for side, bar in zip(comparison.sides, allocated, strict=True):
        figures = side.result.memory_metrics
        assert (bar.value, bar.mark) == (figures.peak_memory_allocated_gb, figures.avg_memory_allocated_gb)
        assert bar.value > bar.mark


def test_the_basis_of_a_figure_counts_measured_and_left_out_steps(comparison):
    of_h200 = facts.basis_of(comparison.sides[1])
    assert of_h200.startswith("computed over 80 measured steps of 94 (left out: 14 warm-up); ")


def test_the_page_shades_the_warm_up_of_each_side(comparison):
    page = html.render(comparison)
    shaded = [int(steps) for steps in re.findall(r'"warmup": ?(\d+)', page)]
    assert set(shaded) == {5, 7}
