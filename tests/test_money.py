"""Tests of the money section: the break-even without any price, and a winner only at comparable prices."""

import re
from pathlib import Path

import plausible
import pytest

from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.economics import break_even
from tensorprimat.analysis.metrics import MetricChoices
from tensorprimat.cli import shared_options
from tensorprimat.core.errors import UsageError
from tensorprimat.reports import console, efficiency, html, markdown, page
from tensorprimat.storage.store import Loaded


def comparison_of(prices=None, runs=3, **of_mi300x):
    results = (
        plausible.result("h100", runs=runs),
        plausible.result("mi300x", seconds=11.0, seed=1, runs=runs, **of_mi300x),
    )
    loaded = [Loaded(path=Path(f"{n}.json"), result=one) for n, one in enumerate(results)]
    return compare(loaded, choices=MetricChoices(prices=prices or {}))


def test_every_report_leads_with_the_break_even_that_needs_no_price(capsys):
    comparison = comparison_of()
    printed = "MI300X is cheaper as long as its GPU-hour costs less than 1.1"
    console.print_summary(comparison)
    for text in (" ".join(capsys.readouterr().out.split()), markdown.render(comparison), html.render(comparison)):
        assert printed in text
    assert "(95 % interval 1.1" in page.money_sentences(comparison.pairs[0])[0]


def test_prices_of_one_kind_name_the_cheaper_side():
    (pair,) = comparison_of({"H100": 2.0, "MI300X": 2.0}).pairs
    _, costs = page.money_sentences(pair)
    assert costs.endswith("the same work is 14.1 % cheaper on MI300X.")
    (pair,) = comparison_of({"H100": 1.0, "MI300X": 2.0}).pairs
    assert "% more expensive on MI300X." in page.money_sentences(pair)[1]


def test_a_cost_of_several_times_another_is_stated_as_a_ratio():
    (pair,) = comparison_of({"H100": 0.1, "MI300X": 20.0}).pairs
    _, costs = page.money_sentences(pair)
    assert "the same work costs 172x as much on MI300X." in costs


def test_a_small_budget_and_a_small_price_are_not_shown_as_zero():
    sides = [Loaded(path=Path(f"{name}.json"), result=plausible.result(name, runs=3)) for name in ("h100", "mi300x")]
    comparison = compare(sides, choices=MetricChoices(prices={"H100": 0.004, "MI300X": 0.004}, budget_tokens=1e6))
    content = efficiency.budget(comparison)
    assert content.title == "Training on 1,000,000 tokens"
    hours, time, energy, cost = (cell.text for cell in content.rows[0][2:])
    assert float(hours) == pytest.approx(1e6 / 10_240 / 3600, rel=0.01)
    assert float(time.removesuffix(" s")) == pytest.approx(1e6 / (8 * 10_240), rel=0.01)
    assert energy.startswith("0.01")
    assert re.fullmatch(r"\$0\.0001\d?", cost)
    break_even_price = efficiency.economics(comparison).rows[0][3]
    assert break_even_price.text == "$0.004/h"
    assert break_even_price.value == pytest.approx(0.004, rel=0.01)


@pytest.mark.parametrize("prices", [{}, {"H100": 9.0}])
def test_prices_of_unlike_sources_are_not_shown_side_by_side_and_name_no_winner(prices, capsys):
    comparison = comparison_of(prices)
    assert len(page.money_sentences(comparison.pairs[0])) == 1  # of the break-even
    warning = "--price: costs are compared only at stated prices; give it for MI300X too"
    assert (warning in comparison.warnings) is bool(prices)
    console.print_summary(comparison)
    for shown in (capsys.readouterr().out, markdown.render(comparison), html.render(comparison)):
        assert "cost of 1 t tokens" not in shown.lower()
        assert not re.findall(r"(?:\$|&#36;)[\d.]+/h", shown)


@pytest.mark.parametrize("width", [80, 120])
def test_a_comparison_shows_mfu_and_the_cost_at_prices_that_can_be_compared(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    console.print_summary(comparison_of({"H100": 3.0, "MI300X": 2.0}))
    rows = [line for line in capsys.readouterr().out.splitlines() if "3 × 50" in line]
    assert [re.findall(r"\S+ %|\$[\d,]{4,}", row)[1:] for row in rows] == [["53.1 %", "$81,649"], ["46.8 %", "$46,780"]]


def test_prices_of_two_sides_on_one_device_that_differ_are_weighed():
    sides = [
        Loaded(path=Path(f"{side}.json"), side=side, result=plausible.result(runs=3, seconds=seconds))
        for side, seconds in (("spot", 12.8), ("reserved", 11.0))
    ]
    (pair,) = compare(sides, choices=MetricChoices(prices={"spot": 1.0, "reserved": 2.0})).pairs
    assert "more expensive on reserved" in page.money_sentences(pair)[1]
    (pair,) = compare(sides).pairs
    assert page.money_sentences(pair) == []


def test_one_run_a_side_names_no_cheaper_side():
    (pair,) = comparison_of({"": 2.0}, runs=1).pairs
    even, costs = page.money_sentences(pair)
    assert "as measured" in even
    assert costs.endswith("not confirmed.")


def test_no_break_even_where_nothing_may_be_compared():
    (pair,) = comparison_of(sequence_length=2048).pairs
    assert break_even(pair) is None
    assert page.money_sentences(pair) == []


def test_a_price_that_no_side_has_is_a_warning_of_compare():
    assert (
        "--price L40S=1: no side has this name, and no result is from such a device"
        in comparison_of({"L40S": 1.0, "H100": 2.0}).warnings
    )


@pytest.mark.parametrize("names", [("H100", "H100 SXM"), ("H100 SXM", "H100")])
def test_the_price_with_the_more_exact_name_of_a_device_counts_and_the_other_is_a_warning(names):
    usd = {"H100": 2.0, "H100 SXM": 3.0}
    comparison = comparison_of({name: usd[name] for name in names} | {"MI300X": 1.0})
    (h100,) = (side for side in comparison.sides if side.label == "H100")
    assert h100.metrics["price_usd_per_gpu_hour"].value == 3.0
    (warning,) = (text for text in comparison.warnings if "--price" in text)
    assert warning == "--price H100=2: not used, because --price H100 SXM=3 is more exact"


def test_equal_prices_of_one_device_are_no_warning():
    assert not [
        text for text in comparison_of({"H100": 3.0, "H100 SXM": 3.0, "MI300X": 1.0}).warnings if "--price" in text
    ]


def test_two_prices_of_one_device_by_equally_exact_names_are_refused():
    with pytest.raises(UsageError, match="H100 SXM=3 and --price NVIDIA H100 80GB HBM3=2 are prices of one device"):
        comparison_of({"H100": 1.0, "H100 SXM": 3.0, "NVIDIA H100 80GB HBM3": 2.0})


def test_sentences_about_cost_leave_the_condition_to_the_headline():
    loaded = []
    for machine, seconds in (("h100", 12.8), ("mi300x", 11.0)):
        one = plausible.result(machine, runs=3, seconds=seconds)
        nameless = one.model.model_copy(update={"shape": None, "parameters": None})
        loaded.append(Loaded(path=Path(f"{machine}.json"), result=one.model_copy(update={"model": nameless})))
    for prices in ({"H100": 2.0, "MI300X": 1.8}, {"H100": 2.0, "MI300X": 2.0 * 12.8 / 11.0}):
        (pair,) = compare(loaded, choices=MetricChoices(prices=prices)).pairs
        assert pair.fairness.conditions
        sentences = page.money_sentences(pair)
        assert len(sentences) == 2
        assert not any("if the model shape matches" in sentence for sentence in sentences)


@pytest.mark.parametrize("typed", ["H100=2,H100=3", "H100=2;MI300X=3"])
def test_a_price_that_can_be_read_in_two_ways_is_refused(typed):
    with pytest.raises(UsageError, match="--price"):
        shared_options.typed_prices([typed])


def test_a_price_may_be_repeated():
    assert shared_options.typed_prices(["H100=2,MI300X=3", "H100=2"]) == {"H100": 2.0, "MI300X": 3.0}
