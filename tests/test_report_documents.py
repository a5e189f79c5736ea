"""Documents of a comparison: Markdown, HTML, JSON and CSV."""

# ruff: noqa: F811  # `two` and `three_models` are fixtures of test_reports

import base64
import csv as csv_module
import hashlib
import io
import json as json_module
import math
import re
from dataclasses import replace

import numpy as np
import plausible
import pytest
from each import in_each
from test_reports import HOSTILE, comparison_of, every_text, on_terminal, three_models, two  # noqa: F401  # fixtures

from tensorprimat.analysis.records import Estimate
from tensorprimat.core.result import PowerMetrics
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.reports import csv, facts, formatting, html, json, markdown, series


def test_the_report_has_every_section(two):
    headings = re.findall(r"^## (.*)$", markdown.render(two), re.MULTILINE)
    assert headings == [
        "Executive summary", "Hardware", "Configuration", "Performance", "Efficiency", "Memory", "Detailed analysis",
        "Runs",
        "Fairness", "Warnings", "Provenance",
    ]  # fmt: skip


def test_a_section_is_left_out_where_nothing_measured_it(two):
    assert "Power and clocks" not in markdown.render(two)
    hot = PowerMetrics(avg_power_watts_per_gpu=691.3, max_temperature_celsius=74.0)
    sides = tuple(
        replace(side, result=side.result.model_copy(update={"power_metrics": hot})) if number else side
        for number, side in enumerate(two.sides)
    )
    text = markdown.render(replace(two, sides=sides))
    assert "## Power and clocks" in text
    assert "| Power of one GPU | – | 691 W |" in text


def test_every_row_of_every_markdown_table_has_as_many_cells_as_its_header(three_models):
    for block in re.findall(r"(?:^\|.*\n)+", markdown.render(three_models), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_the_plot_is_shown_only_where_there_is_one(two):
    assert "comparison_plot.png" in markdown.render(two, pictures=["comparison_plot.png"])
    assert "![" not in markdown.render(two)


def test_the_keys_of_comparison_json_are_stable(two):
    document = json_module.loads(json.render(two))
    assert list(document) == [
        "kind", "schema_version", "tool_version", "generated_at", "by", "models", "verdict", "headline", "fairness",
        "ratio", "sides", "pairs", "mean_ratio", "published", "published_left_out",
        "errors", "warnings",
    ]  # fmt: skip
    assert set(document["ratio"]) == {
        "metric", "value", "low", "high", "confidence", "rests_on", "no_interval_because", "runs_for_one_percent",
        "verdict", "task", "assumption", "sensitivity", "scope", "steps", "joint", "within_run",
    }  # fmt: skip
    assert document["verdict"] == document["ratio"]["verdict"] == "faster"
    assert document["fairness"]["verdict"] == "identical"
    assert [side["label"] for side in document["sides"]] == ["H100", "MI300X"]


def test_several_models_have_a_verdict_over_all_and_one_each(three_models):
    document = json.comparison_document(three_models)
    assert document["ratio"] == document["mean_ratio"]
    assert len(document["pairs"]) == 3
    assert document["verdict"] == "faster"


def test_the_mean_over_models_names_its_conditions_and_when_it_has_no_verdict(three_models):
    printed = formatting.mean_headline(three_models)
    assert printed.limits == ("one machine per side; other machines may differ",)
    unsettled = replace(three_models, mean_ratio=replace(three_models.mean_ratio, verdict="unsettled"))
    assert formatting.mean_headline(unsettled).finding.startswith("No verdict on ")


def test_comparison_json_holds_no_number_that_json_does_not_know(two):
    (pair,) = two.pairs
    wild = replace(pair.ratio, estimate=replace(pair.ratio.estimate, value=math.inf, low=math.nan, high=1e300))
    document = json_module.loads(json.render(replace(two, pairs=(replace(pair, ratio=wild),))))
    assert document["ratio"]["value"] is None
    assert document["ratio"]["high"] == 1e300


def test_the_csv_has_a_row_per_side_and_the_ratio_in_the_candidates(two):
    rows = list(csv_module.DictReader(io.StringIO(csv.render(two))))
    assert [row["verdict"] for row in rows] == ["", "faster"]
    assert float(rows[1]["ratio"]) == pytest.approx(two.pairs[0].ratio.estimate.value)
    assert rows[0]["peak_memory_device_used_gb"] == ""


def test_the_page_needs_no_network(three_models):
    page = html.render(three_models)
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert "@import" not in page
    assert re.findall(r"https?://\S+", page) == ['http://www.w3.org/2000/svg";']


def test_the_policy_allows_exactly_the_script_in_the_page(two):
    page = html.render(two)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert not re.search(r"\son\w+=", page.split("<script", 1)[0])


def test_hundreds_of_thousands_of_steps_make_a_page_below_five_megabytes():
    many = plausible.result("h100")
    count = 300_000
    random = np.random.default_rng(0)
    seconds = 1 + 0.01 * random.standard_normal(count)
    seconds[277_777] = 1.5
    steps = Steps({"index": np.arange(count), "seconds": seconds, "loss": random.random(count)})
    comparison = comparison_of(summarise(many.model_copy(update={"steps": steps, "runs": ()})))
    page = html.render(comparison)
    assert len(page.encode()) < 5_000_000
    drawn = json_module.loads(re.search(r'id="curves">(.*?)</script>', page, re.DOTALL).group(1))
    assert max(value for value in drawn["models"][0][0]["seconds"] if value) == 1.5


def one_row_per_run(machine):
    """Return a result whose runs are one row each, as those made from MLPerf's library."""
    made = plausible.result(machine)
    steps = Steps({"index": [500, 500], "seconds": [1.0, 1.01], "covers": [500, 500], "run": [0, 1]})
    return summarise(made.model_copy(update={"steps": steps, "runs": made.runs[:2]}))


def test_runs_of_one_row_each_get_no_empty_plot_of_steps():
    page = html.render(comparison_of(one_row_per_run("h100"), one_row_per_run("mi300x")))
    drawn = json_module.loads(re.search(r'id="curves">(.*?)</script>', page, re.DOTALL).group(1))
    assert drawn["models"] == [[]]


def test_minimum_and_median_of_rows_that_are_means_are_marked():
    told = facts.performance_table(comparison_of(one_row_per_run("h100"))).note
    assert "Rows stand for several steps (up to 500 steps in H100" in told
    assert "Rows are means" not in (facts.performance_table(comparison_of(plausible.result("h100"))).note or "")


def test_thinning_keeps_the_extremes_and_the_order():
    values = np.random.default_rng(1).standard_normal(10_000)
    values[[5, 17]] = np.nan
    kept = series.thinned(values, 300)
    assert len(kept) <= 302
    assert np.all(np.diff(kept) > 0)
    assert {int(np.nanargmin(values)), int(np.nanargmax(values)), 0, 9_999} <= set(kept.tolist())


def test_a_short_curve_is_not_thinned():
    assert series.thinned(np.ones(300), 300).tolist() == list(range(300))


def test_hostile_names_harm_no_report():
    comparison = comparison_of(
        plausible.result("h100", device_name=HOSTILE, runs=2), plausible.result("mi300x", runs=2, seed=1)
    )
    texts = every_text(comparison)
    texts["console"] = on_terminal(comparison, width=120, force_terminal=False)
    for name, text in texts.items():
        assert "\x1b" not in text, name
    assert "<script>alert" not in texts["html"]
    assert "&lt;script&gt;alert" in texts["html"]
    assert "<script>" not in texts["markdown"]
    assert "[x](javascript" not in texts["markdown"]
    assert "{{7*7}}" in texts["html"]


def test_a_name_that_opens_a_formula_is_quoted_in_the_csv():
    comparison = comparison_of(plausible.result("h100", device_name="=2+5"))
    row = next(csv_module.DictReader(io.StringIO(csv.render(comparison))))
    assert row["device_name"] == row["side"] == "'=2+5"


def test_infinite_and_enormous_figures_are_shown_without_failing(two):
    first, second = two.sides
    wild = Estimate(value=1e300, low=math.inf, high=math.inf, rests_on="5 runs")
    comparison = replace(two, sides=(replace(first, tokens_per_second_per_gpu=wild, step_time_seconds=wild), second))
    texts = every_text(comparison)
    assert "1e+300" in texts["console"]
    assert "Infinity" not in texts["json"]
    assert ",inf" not in texts["csv"]


def test_hundreds_of_runs_make_documents_that_can_be_read():
    result = plausible.result("cpu", preset="tiny", seconds=0.2, runs=300, steps=12, warmup=1, losses=False)
    comparison = comparison_of(result)
    assert len(markdown.render(comparison)) < 100_000
    assert len(html.render(comparison)) < 5_000_000
    assert "The first 200 of 300 runs" in markdown.render(comparison)


@in_each("half", [1e-3, 1e-6, 1e-9, 1e-13])
def test_the_ends_of_a_narrow_interval_differ_in_json_and_hold_its_value(half):
    for value in (1.0, 13425.123456789, 3.2e-5):
        written = json._estimate(Estimate(value=value, low=value * (1 - half), high=value * (1 + half), rests_on=""))
        assert written["low"] < written["value"] < written["high"]
        assert written["high"] - written["low"] == pytest.approx(2 * half * value, rel=0.1 if half > 1e-12 else 0.2)


def test_an_interval_of_usual_width_and_one_of_a_single_value_have_six_digits():
    ends = {"value": 1 / 3, "low": 0.3212345678, "high": 0.3456789123}
    found = json._estimate(Estimate(**ends, rests_on=""))
    assert {name: found[name] for name in ends} == {"value": 0.333333, "low": 0.321235, "high": 0.345679}
    found = json._estimate(Estimate(value=1 / 3, low=1 / 3, high=1 / 3, rests_on=""))
    assert {found[name] for name in ends} == {0.333333}
