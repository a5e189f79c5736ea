"""Every cell of every table of a report holds the figure that its heading names."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import plausible
import pytest

from tensorprimat.analysis.compare import compare
from tensorprimat.reports import bars, efficiency, facts, html, sections, series
from tensorprimat.reports.plots import panels
from tensorprimat.storage.store import Loaded


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
    for table in (facts.performance_table(comparison), efficiency.of_section("Efficiency", comparison)):
        assert rows(table)["tokens/s/GPU"] == rates
    assert columns(sections.results(comparison.sides))["tokens/s/GPU"] == rates
    for side, result in zip(comparison.sides, wide, strict=True):
        assert side.tokens_per_second_per_gpu.value != result.performance_metrics.tokens_per_second_per_gpu


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
