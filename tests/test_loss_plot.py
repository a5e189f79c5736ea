"""The picture of the losses, and the panels of efficiency and cost: drawn where there is something to draw."""

from pathlib import Path

import plausible
import pytest

from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.metrics import MetricChoices
from tensorprimat.reports.plots import comparison as plots
from tensorprimat.storage.store import Loaded

PNG = b"\x89PNG"


def loaded(*results):
    return [Loaded(path=Path(f"{number}.json"), result=result) for number, result in enumerate(results)]


def test_losses_are_drawn_as_png_and_svg_with_the_verdict_on_parity():
    pictures = plots.losses(
        compare(loaded(plausible.result(runs=2, data="real"), plausible.result("mi300x", runs=2, seed=1, data="real")))
    )
    assert set(pictures) == {"png", "svg"}
    assert pictures["png"].startswith(PNG)
    assert b"No loss difference detected" in pictures["svg"]


def test_a_side_without_losses_is_named():
    svg = plots.losses(compare(loaded(plausible.result(), plausible.result("mi300x", losses=False))), ("svg",))
    assert b"No loss was logged: MI300X" in svg["svg"]


def svg_of_sides(*seeds):
    results = [plausible.result(runs=2, data="real", seed=seed, device_name=f"GPU {seed}") for seed in seeds]
    named = [
        Loaded(path=Path(f"{name}.json"), result=one, side=name) for name, one in zip("abcdef", results, strict=False)
    ]
    return plots.losses(compare(named), ("svg",))["svg"].decode()


def test_of_several_pairs_each_sentence_on_parity_names_its_candidates():
    svg = svg_of_sides(0, 0, 0, 4)
    assert "b and c: The losses are equal at all" in svg
    assert "d: No loss difference detected" in svg
    assert "more in the report" not in svg
    assert "<!-- The losses are equal at all" in svg_of_sides(0, 0)
    assert "… and 2 more in the report" in svg_of_sides(0, 1, 2, 3, 4, 5)


def test_without_any_loss_there_is_no_picture():
    assert plots.losses(compare(loaded(plausible.means_only()))) == {}


@pytest.mark.parametrize(("length", "drawn"), [(8192, True), (2048, False)])
def test_cost_and_time_are_drawn_only_for_the_same_work(length, drawn):
    sides = loaded(plausible.result(), plausible.result("mi300x", sequence_length=length))
    svg = plots.metrics(compare(sides, choices=MetricChoices(prices={"": 2.0})), ("svg",))["svg"].decode()
    assert ("Cost of 1 T tokens" in svg) == drawn
    assert "MFU" in svg


def test_a_panel_names_its_price_and_power_and_explains_a_mark_at_its_figures_once():
    comparison = compare(loaded(plausible.result()), choices=MetricChoices(prices={"H100": 2.0}))
    svg = plots.metrics(comparison, ("svg",))["svg"].decode()
    assert "at $2.00/h" in svg
    assert "700 W\N{NO-BREAK SPACE}*" in svg
    assert svg.count("tokens per watt-hour; * nameplate") == 1


def test_without_any_known_metric_there_is_no_picture():
    assert plots.metrics(compare(loaded(plausible.means_only("cpu")))) == {}
