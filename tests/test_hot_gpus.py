"""Throttled GPUs: a sentence above the headline, and curves of clock, temperature and power over the steps."""

import io
import json as json_module
import re
from pathlib import Path

import numpy as np
import plausible
from rich.console import Console

from tensorprimat.analysis.compare import compare
from tensorprimat.core import store
from tensorprimat.core.store import Loaded
from tensorprimat.core.summary import summarise
from tensorprimat.reports import console, html, markdown, notices


def comparison_of(*results):
    """Return a comparison of results, each from a file of its own."""
    return compare([Loaded(path=Path(f"{number}.json"), result=one) for number, one in enumerate(results)])


def hot_result(seed, *, share=0.12, seen=True):
    """Return a result whose GPU ran at a reduced clock for a share of every step."""
    one = plausible.result("h100", runs=2, seed=seed)
    seconds = one.steps.column("seconds")
    steps = one.steps.replace(
        throttled_seconds=share * seconds,
        **({"clock_hertz": np.full(len(seconds), 1.4e9), "temperature_celsius": np.full(len(seconds), 85.0),
            "power_watts_per_gpu": np.full(len(seconds), 690.0)} if seen else {}),
    )  # fmt: skip
    runs = tuple(run.changed(throttled_by=("heat",)) for run in one.runs)
    return summarise(one.changed(steps=steps, runs=runs))


def test_a_throttled_side_is_named_above_the_headline_in_every_report():
    sides = {"cool": plausible.result("h100", runs=2), "hot": hot_result(1)}
    comparison = compare([Loaded(path=Path(f"{name}.json"), result=one, side=name) for name, one in sides.items()])
    sentence = "hot: throttled for 12 % of the measured time by heat"
    screen = Console(width=160, record=True, file=io.StringIO())
    screen.print(console.summary(comparison, width=160))
    texts = {"console": screen.export_text(), "markdown": markdown.render(comparison), "html": html.render(comparison)}
    for name, text in texts.items():
        plain = text.replace("\N{NO-BREAK SPACE}", " ")
        assert sentence in plain, name
        headline = plain.index("the tokens/s/GPU")
        assert plain.index(sentence) < headline, name
        assert "cool: throttled" not in plain


def test_the_reasons_of_all_runs_are_named_whatever_a_warning_says(tmp_path):
    hot = hot_result(1)
    reasons = (("heat",), ("a power cap", "heat"))
    runs = tuple(run.changed(throttled_by=one) for run, one in zip(hot.runs, reasons, strict=True))
    hot = hot.changed(runs=runs, warnings=(*hot.warnings, "clock: throttled for 12 % of the measured time by mistake"))
    read = store.load(store.write(hot, tmp_path / "hot.json"))
    assert notices.throttled(comparison_of(read, plausible.result("mi300x")).sides)[0].endswith(
        "throttled for 12 % of the measured time by heat and a power cap (1.40 GHz on average)"
    )


def test_a_clock_that_was_hardly_reduced_is_not_named():
    comparison = comparison_of(hot_result(1, share=0.004))
    assert "throttled for" not in markdown.render(comparison).partition("## ")[0]


def test_clock_temperature_and_power_over_time_are_in_the_page_where_they_were_seen():
    def curves_of(result):
        page = html.render(comparison_of(result))
        [curve, *_] = json_module.loads(re.search(r'id="curves"[^>]*>(.*?)</script>', page, re.S)[1])["models"][0]
        return page, curve

    page, curve = curves_of(hot_result(1))
    assert (set(curve["clock"]), set(curve["temperature"]), set(curve["power"])) == ({1.4}, {85.0}, {690.0})
    places = [page.index(f'data-of="{name}"') for name in ("seconds", "clock", "temperature", "power", "loss")]
    assert places == sorted(places)
    _, bare = curves_of(hot_result(1, seen=False))
    assert (bare["clock"], bare["temperature"], bare["power"]) == (None, None, None)
