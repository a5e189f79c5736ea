"""GPUs below their normal state: a sentence above the headline; the power cap, clocks and power over the steps."""

import io
import json as json_module
import re
from html import unescape
from pathlib import Path

import numpy as np
import plausible
from each import in_each
from rich.console import Console

from tensorprimat.analysis.compare import compare
from tensorprimat.audit import checks
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import POWER_CAP
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import select_measured, summarise
from tensorprimat.reports import console, html, json, markdown, notices, sections
from tensorprimat.storage import store
from tensorprimat.storage.store import Loaded


def comparison_of(*results):
    """Return a comparison of results, each from a file of its own."""
    return compare([Loaded(path=Path(f"{number}.json"), result=one) for number, one in enumerate(results)])


def named(**results):
    """Return a comparison of results whose sides have these names."""
    return compare([Loaded(path=Path(f"{name}.json"), result=one, side=name) for name, one in results.items()])


def above(comparison):
    """Return the warnings above the headline, which every report shows there, and only there."""
    found = notices.before_headline(comparison)
    screen = Console(width=200, record=True, file=io.StringIO())
    screen.print(console.summary(comparison, width=200))
    texts = {"console": screen.export_text(), "markdown": markdown.render(comparison), "html": html.render(comparison)}
    for name, text in texts.items():
        plain = " ".join(unescape(text).replace("\N{NO-BREAK SPACE}", " ").replace("\\", "").split())
        assert [plain.count(sentence.partition(": ")[2]) for sentence in found] == [1] * len(found), name
        assert all(plain.index(sentence) < plain.index("tokens/s/GPU") for sentence in found), name
        assert "throttled for 100" not in plain, name
    return found


def hot_result(seed, *, share=0.12, seen=True, **columns):
    """Return a result whose GPU ran at a reduced clock for a share of every step."""
    one = plausible.result("h100", runs=2, seed=seed)
    seconds = one.steps.column("seconds")
    steps = one.steps.replace(
        throttled_seconds=share * seconds,
        **{name: part * seconds for name, part in columns.items()},
        **({"clock_hertz": np.full(len(seconds), 1.4e9), "temperature_celsius": np.full(len(seconds), 85.0),
            "power_watts_per_gpu": np.full(len(seconds), 690.0)} if seen else {}),
    )  # fmt: skip
    runs = tuple(run.changed(throttled_by=("heat", POWER_CAP)) for run in one.runs)
    return summarise(one.changed(steps=steps, runs=runs))


def real(shared, name="h200_no_recompute"):
    return store.load(shared / "gpu" / f"{name}.json")


def test_a_gpu_at_its_power_cap_is_a_fact_and_no_warning(shared):
    one, other = real(shared, "h100_full_recompute"), real(shared, "h200_full_recompute")
    comparison = named(one=one, other=other)
    assert above(comparison) == ()
    assert "throttled" not in str(json.comparison_document(comparison)["warnings"])
    results = sections.results(comparison.sides)
    place = [column.title for column in results.columns].index("Power; clock")
    assert [row[place].text for row in results.rows] == [
        "692 of 700 W; 1.46 GHz, power-limited", "690 of 700 W; 1.56 GHz, power-limited"
    ]  # fmt: skip
    now = one.changed(gpu_info=one.gpu_info.changed(max_clock_hertz=1.98e9))
    assert sections.results(named(now=now).sides).rows[0][place].text.endswith("1.46 of 1.98 GHz, power-limited")


def test_a_slowdown_is_named_above_the_headline_with_its_share_of_the_time():
    hot = hot_result(1, share=1.0, slowdown_seconds=0.12)
    (told,) = (one for one in hot.remarks if one.code == "throttled")
    assert told.values == {"share": "12 %", "reasons": ["heat"], "mean": " (1.40 GHz on average)"}
    comparison = named(cool=plausible.result("h100", runs=2), hot=hot)
    assert above(comparison) == (f"hot: {told.text}",)
    assert "power-limited 88 % of the time" in markdown.render(comparison)


def test_a_file_that_does_not_tell_slowdowns_from_the_power_cap_names_both(tmp_path):
    hot = hot_result(1)
    hot = hot.changed(warnings=(*hot.warnings, "clock: throttled for 12 % of the measured time by mistake"))
    read = store.load(store.write(hot, tmp_path / "hot.json"))
    told = {one.code: one for one in read.remarks}["throttled"]
    assert (told.values["share"], told.values["reasons"]) == ("12 %", ["heat", POWER_CAP])
    assert above(named(hot=read))[0] == f"hot: {told.text}"


def test_a_clock_that_was_hardly_reduced_is_not_named():
    assert above(named(hot=hot_result(1, share=1.0, slowdown_seconds=0.004))) == ()


@in_each(("default", "of"), [(None, "the data sheet's limit"), (700, "the board's default"), (500, "")])
def test_a_power_cap_below_the_boards_default_is_named(shared, default, of):
    one = real(shared)
    one = one.changed(
        gpu_info=one.gpu_info.changed(
            power_limit_watts=500, default_power_limit_watts=default, device_name="NVIDIA H100 80GB HBM3"
        )
    )
    found = above(named(capped=summarise(one)))
    expected = f"capped: the power cap of 500 W is below {of} of 700 W, so the GPU is slower than it can be; "
    assert found == ((f"{expected}nvidia-smi -pl 700 raises it",) if of else ())


def test_sides_of_one_device_with_different_power_caps_are_named(shared):
    one = real(shared)
    low = one.changed(gpu_info=one.gpu_info.changed(power_limit_watts=690.0, default_power_limit_watts=690.0))
    (found,) = above(named(one=one, low=low))
    assert found == Notice("caps_unlike", "", device="NVIDIA H200", caps=["700 W (one)", "690 W (low)"])
    amd = plausible.result("mi300x")
    amd = amd.changed(gpu_info=amd.gpu_info.changed(power_limit_watts=750.0))
    assert above(named(one=one, amd=amd)) == ()


def test_a_clock_that_falls_during_a_run_is_named(shared):
    one = real(shared)
    clocks = one.steps.column("clock_hertz").copy()
    clocks[-2:] *= 0.9
    falls = summarise(one.changed(steps=one.steps.replace(clock_hertz=clocks)))
    told = {one.code: one for one in falls.remarks}["clock_fell"]
    assert [round(told.values[name] / 1e9, 2) for name in ("first", "last")] == [1.56, 1.41]
    assert above(named(falls=falls)) == (f"falls: {told.text}",)


@in_each("readings", [1, 2, 4, 8])
def test_the_steady_clock_of_a_power_limited_gpu_does_not_fall_whatever_steps_are_compared(shared, readings):
    """Read the clock every half second, and average over the readings of a step."""
    rows = [line.split(",") for line in (shared / "gpu/h100_nvidia_smi.csv").read_text().splitlines()[1:]]
    busy = np.array([float(clock) * 1e6 for _, watts, clock, *_ in rows if float(watts) > 650])
    clocks = busy[: len(busy) // readings * readings].reshape(-1, readings).mean(axis=1)
    one = real(shared)
    for first in range(0, len(clocks) - 6, 2):
        for last in range(first + 6, len(clocks), 7):
            part = clocks[first:last]
            steps = Steps({"seconds": np.full(len(part), readings / 2), "clock_hertz": part})
            assert checks._falling_clocks(one.changed(steps=steps), select_measured(steps, warmup_steps=0)) == []


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
