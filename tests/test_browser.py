"""Tests of comparison_report.html in a real Chromium: read, clicked, keyed, zoomed, printed (`make test-browser`).

SCREENSHOTS=DIR keeps the pictures of every width.
"""

import itertools
import os
import re
import shutil
from pathlib import Path

import plausible
import pytest
from each import in_each

from tensorprimat.analysis.compare import compare
from tensorprimat.cli import main
from tensorprimat.core.quantities import PLOT_DIGITS, PLOT_UNITS, count, in_plot, to_digits
from tensorprimat.reports import html
from tensorprimat.reports.sections import ENHANCED
from tensorprimat.storage.store import Loaded, to_json

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install playwright")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; apt-get install chromium"),
]
WIDTHS = (400, 1000, 1600)
LEAST_CONTRAST = 4.5  # WCAG 2 AA for text of ordinary size


def compare_of(*results):
    return compare([Loaded(path=Path(f"benchmark_{n}.json"), result=result) for n, result in enumerate(results)])


def page_of(*results):
    return html.render(compare_of(*results))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The reports, by name, as files."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = '"><img src=x onerror=window.broken=1><script>window.broken=1</script>{{7*7}}'
    contents = {
        "two": page_of(plausible.result("h100", runs=5), plausible.result("mi300x", runs=5, seconds=11.0, seed=1)),
        "models": page_of(
            *(
                plausible.result(machine, model=model, runs=2, seconds=seconds, seed=seed)
                for model in ("llama", "qwen", "mistral")
                for seed, (machine, seconds) in enumerate((("h100", 12.8), ("mi300x", 11.0)))
            )
        ),
        "tiny": page_of(plausible.result("cpu", preset="tiny", seconds=0.2, noise=0.05)),
        "incomparable": page_of(plausible.result("h100"), plausible.result("mi300x", sequence_length=2048)),
        "enhanced": html.render(compare_of(plausible.result("h100"), plausible.result("mi300x")), ENHANCED),
        "means": page_of(plausible.means_only(), plausible.means_only("mi300x")),
        "kinds": page_of(
            plausible.result("h100", runs=2), plausible.result("h100", runs=2, seconds=9, precision="fp8")
        ),
        "hostile": page_of(plausible.result("h100", device_name=hostile), plausible.result("mi300x")),
        "long": page_of(plausible.result("h100", steps=5_000), plausible.result("mi300x", steps=5_000, seed=1)),
    }
    for number, seconds in enumerate((10.0, 100.0, 200.0)):
        (folder / f"{number}.json").write_text(to_json(plausible.result("h100", seconds=seconds)))
    assert main(["list", str(folder), "--html", str(folder / "list.html")]) == 0
    for name, content in contents.items():
        (folder / f"{name}.html").write_text(content, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # CI runs as root
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def tab(browser):
    """Function that opens a tab; complaints of its page and requests to the network are in `tab.complaints`."""

    def tab(**options):
        page = browser.new_page(**options)
        page.on("console", lambda message: tab.complaints.append(message.text))
        page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or tab.complaints.append(request.url))
        return page

    tab.complaints = []
    tab.usual = tab()  # reports without options of their own are loaded into it: a tab takes longer than a report
    return tab


@pytest.fixture
def visit(tab, pages):
    """Function that opens a report; every complaint of the page and every request to the network fails the test."""
    opened = []
    tab.complaints.clear()

    def visit(name, width=1000, **options):
        page = tab.usual
        if options:
            page = tab(**options)
            opened.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto((pages / f"{name}.html").as_uri())
        return page

    yield visit
    for page in opened:
        page.close()
    assert tab.complaints == []


def picture(page, name):
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@in_each("name", ["two", "models", "tiny", "incomparable", "enhanced", "means", "hostile", "list"])
def test_no_width_needs_sideways_scrolling(visit, name):
    page = visit(name, WIDTHS[0])
    widest = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        picture(page, f"{name}_{width}")
        widest[width] = page.evaluate("document.documentElement.scrollWidth")
    assert {width: shown for width, shown in widest.items() if shown > width} == {}


@in_each("name", ["models", "list"])
def test_a_table_that_is_cut_shows_that_it_scrolls(visit, name):
    cut = visit(name, WIDTHS[0]).evaluate(
        "[...document.querySelectorAll('*')].filter(one => one.scrollWidth > one.clientWidth && "
        "getComputedStyle(one).overflowX === 'auto').map(one => getComputedStyle(one).backgroundImage)"
    )
    assert cut
    assert all("linear-gradient" in one for one in cut)


def test_dark_and_light_follow_the_system_and_the_reader(visit):
    page = visit("two", color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    assert page.evaluate("localStorage.length") == 0, "a page that nobody touched may not replace a choice"
    picture(page, "two_1000_dark")
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(paper)
    assert (dark, light) == ("rgb(22, 24, 28)", "rgb(255, 255, 255)")
    assert page.get_by_role("button", name="Light").get_attribute("aria-pressed") == "true"
    for _ in range(40):  # the browser writes its storage in the background
        page.reload()
        if page.evaluate(paper) == light:
            return
        page.wait_for_timeout(250)
    pytest.fail("the choice is not remembered")


@in_each("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(visit, scheme):
    page = visit("two", color_scheme=scheme)
    colours = page.evaluate(
        """() => Object.fromEntries(["ink", "soft", "accent", "good", "bad", "caution", "paper", "tint"].map((name) =>
            [name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]))"""
    )
    for text in ("ink", "soft", "accent", "good", "bad", "caution"):
        for paper in ("paper", "tint"):
            assert contrast(colours[text], colours[paper]) >= LEAST_CONTRAST, f"{text} on {paper}"


def contrast(one, other):
    """Return the contrast ratio of two colours (#rrggbb) as WCAG 2 defines it."""

    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_a_table_sorts_by_click_and_by_key(visit):
    page = visit("two")
    page.locator("#runs-0").click()
    table = page.locator("#table-runs-0")
    heading = table.locator("thead th").filter(has_text="Step time")
    heading.get_by_role("button").click()
    rising = table.locator("tbody tr td:nth-child(7)").all_inner_texts()
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    falling = table.locator("tbody tr td:nth-child(7)").all_inner_texts()
    assert falling == rising[::-1]
    times = [float(re.search(r"[\d.]+", text).group()) for text in rising]
    assert times == sorted(times)


def test_the_list_of_results_sorts_by_its_figures_not_by_their_texts(visit):
    page = visit("list")
    page.get_by_role("button", name="tokens/s/GPU").click()
    picture(page, "list_1000")
    names = [cell.inner_text() for cell in page.locator("tbody tr td:last-child").all()]
    assert names == ["2.json", "1.json", "0.json"]


def test_the_table_of_verdicts_sorts_by_its_first_column(visit):
    page = visit("models")
    page.get_by_text("All verdicts in one table").click()
    table = page.locator("#verdicts")
    table.locator("thead th").first.get_by_role("button").click()
    names = table.locator("tbody th").all_inner_texts()
    assert names == sorted(names)


def test_unmeasured_values_sort_last_in_both_directions(visit):
    page = visit("two")
    page.locator("#runs-0").click()
    rows = page.locator("#table-runs-0 tbody tr")
    key = "cell => cell.dataset.sort"
    count = rows.count()
    rows.nth(2).locator("td:nth-child(7)").evaluate(
        "cell => { cell.dataset.sort = ''; cell.parentElement.id = 'unmeasured'; }"
    )
    heading = page.locator("#table-runs-0 thead th").filter(has_text="Step time").get_by_role("button")
    for falling in (False, True):
        heading.click()
        keys = [rows.nth(place).locator("td:nth-child(7)").evaluate(key) for place in range(count)]
        assert keys[-1] == ""
        shown = [float(text) for text in keys[:-1]]
        assert shown == sorted(shown, reverse=falling)
        assert len(shown) == count - 1 > 2
        assert rows.last.get_attribute("id") == "unmeasured"


def test_a_figure_states_its_origin(visit):
    page = visit("two")
    figure = page.locator("#results-0 .figure").first
    figure.click()
    source = page.locator(".source:popover-open")
    assert "measured steps of" in source.inner_text()
    assert "benchmark_0.json" in source.inner_text()
    assert "Unrounded: 102" in source.inner_text()
    assert "= geometric mean of the runs' tokens/s/GPU" in source.inner_text()
    assert "= 5 runs: 10,2" in source.inner_text()
    picture(page, "source_of_a_figure")
    page.keyboard.press("Escape")
    assert page.locator(".source:popover-open").count() == 0
    figure.focus()
    page.keyboard.press("Enter")
    box, window = page.locator(".source:popover-open").bounding_box(), page.viewport_size
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= window["width"]


def test_runs_can_be_chosen(visit):
    page = visit("two")
    lines = page.locator(".plot[data-of=seconds] path[stroke-dasharray]")
    everything = lines.count()
    chooser = page.get_by_role("group", name="Runs shown")
    chooser.get_by_label("run 2").first.uncheck()
    assert lines.count() == everything - 2, "measured and unmeasured part of one run"
    chooser.get_by_label("MI300X").uncheck()
    assert lines.count() == 2 * 4
    chooser.get_by_label("MI300X").check()
    chooser.get_by_label("run 2").first.check()
    assert lines.count() == everything


def ticks(page):
    return page.locator(".plot[data-of=seconds] text[text-anchor=middle]").all_text_contents()


def test_dragging_zooms_and_a_button_shows_everything_again(visit):
    page = visit("two")
    canvas = page.locator(".plot[data-of=seconds] .canvas")
    canvas.scroll_into_view_if_needed()
    box, before = canvas.bounding_box(), ticks(page)
    page.mouse.move(box["x"] + 400, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 100, steps=4)
    page.mouse.up()
    assert ticks(page) != before
    page.get_by_role("button", name="Show everything: Step time over steps").click()
    assert ticks(page) == before


def test_hovering_reads_the_step_under_the_pointer(visit):
    page = visit("tiny")
    canvas = page.locator(".plot[data-of=seconds] .canvas")
    canvas.hover()
    readout = page.locator(".plot[data-of=seconds] .readout")
    assert re.search(r"Step \d+\s+Xeon Platinum 8480C: 0\.\d+ s", readout.inner_text())


def test_the_plot_is_read_aloud_and_zoomed_by_keyboard(visit):
    page = visit("two")
    canvas = page.locator(".plot[data-of=seconds] .canvas")
    canvas.focus()
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    spoken = page.locator(".plot[data-of=seconds] [aria-live]").text_content()
    assert spoken.startswith("Step 7: H100, run 1: 12.8")
    before = ticks(page)
    page.keyboard.press("+")
    assert ticks(page) != before
    picture(page, "zoomed_by_keyboard")
    page.keyboard.press("0")
    assert ticks(page) == before
    page.keyboard.press("End")
    assert "Step 55:" in page.locator(".plot[data-of=seconds] [aria-live]").text_content()


def test_a_screen_reader_hears_that_a_warm_up_step_is_not_measured(visit):
    page = visit("two")
    page.locator(".plot[data-of=seconds] .canvas").focus()
    page.keyboard.press("Home")
    assert "(not measured)" in page.locator(".plot[data-of=seconds] [aria-live]").text_content()


NUMBERS = (
    *(0.0, 0.41234567, 12.3456789, 0.0123456, 1.23456e-7, 691.34, 999.9951, 1234.56789, 123456.7, 9_876_543.21, 2.61),
    *(100_005.0, 700.125, -0.25, -1234.5678, 0.1 + 0.2, 1 / 3, 5e-05, 1.0, 1000.0, 1e6),
)


@in_each("kind", PLOT_DIGITS)
def test_the_script_writes_numbers_as_python_does(visit, kind):
    page = visit("tiny")
    embedded = [to_digits(value, PLOT_DIGITS[kind]) for value in NUMBERS]
    written = page.evaluate("([values, kind]) => values.map((value) => number(value, kind))", [embedded, kind])
    assert written == [in_plot(value, kind) for value in NUMBERS]


def test_the_script_writes_counts_as_python_does(visit):
    whole = [0, 7, 999, 1000, 12_345, 1_234_567, 987_654_321_012]
    written = visit("tiny").evaluate("(values) => values.map((value) => number(value, 'count'))", whole)
    assert written == [count(value) for value in whole]


def test_each_curve_has_the_unit_of_the_reports(visit):
    page = visit("tiny")
    read = """(of) => described({ seconds: [1.5], loss: [1.5], power: [1.5], clock: [1.5], temperature: [1.5],
        measured: [true], name: "run" }, 0, 1.5, of)"""
    written = {of: page.evaluate(read, of) for of in (*PLOT_UNITS, "loss")}
    assert written == {"loss": "run: 1.5", **{of: f"run: 1.5 {unit}" for of, unit in PLOT_UNITS.items()}}


def test_numbers_at_an_axis_differ_however_far_one_zooms(visit):
    page = visit("two")
    at_axis = page.evaluate("ticks(12.00001, 12.00006, 5).map((value) => number(value, 'tick'))")
    assert at_axis == ["12.00001", "12.00002", "12.00003", "12.00004", "12.00005", "12.00006"]


def test_losses_have_a_plot_of_their_own(visit):
    page = visit("two")
    assert page.locator(".plot[data-of=loss] path").count() >= 10


def test_means_without_steps_have_a_reason_in_place_of_the_plot(visit):
    page = visit("means")
    assert page.get_by_text("hold only means or rates, or one time for each run").is_visible()
    assert page.locator(".plot svg").count() == 0


def test_a_curve_of_very_many_steps_has_two_points_for_each_column_of_pixels(visit):
    page = visit("long")
    curves = page.locator(".plot[data-of=seconds] path[stroke-dasharray]:not(.faint)")
    points = curves.evaluate_all("(paths) => paths.map((path) => path.getAttribute('d').split(/[ML]/).length - 1)")
    width = page.locator(".plot[data-of=seconds] .canvas").bounding_box()["width"]
    assert len(points) == 2
    assert all(width < drawn <= 2 * width for drawn in points)


def test_on_paper_everything_is_open_and_light(visit):
    page = visit("two", color_scheme="dark")
    folded = page.locator("details:not([open])").count()
    assert folded > 1
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".tools").is_visible()
    picture(page, "on_paper")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == folded
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_hostile_names_stay_text(visit):
    page = visit("hostile")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert "{{7*7}}" in page.locator(".verdict .headline").first.inner_text()


@in_each("name", ["two", "models", "incomparable"])
def test_every_control_of_the_page_has_an_accessible_name(visit, name):
    page = visit(name)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, summary, [role=img], [role=region], .canvas")]
            .filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length))
            .map((one) => one.outerHTML)"""
    )
    assert nameless == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), "no heading is skipped"
    identifiers = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(identifiers) == len(set(identifiers))


def test_without_scripts_the_figures_are_all_there(visit):
    page = visit("two", java_script_enabled=False)
    assert page.locator("noscript").count() == 1
    assert page.locator("#results-0").is_visible()
    assert not page.locator(".plots").is_visible()
    assert not page.locator(".tools").is_visible()


@in_each("name", ["two", "models"])
def test_the_first_screen_of_a_phone_shows_the_ratio_with_its_scale(visit, name):
    page = visit(name, 400)
    place = page.locator(".forest .row .ratio strong").first.bounding_box()
    assert place["y"] + place["height"] < 700
    assert page.locator(".forest .row .ratio").first.bounding_box()["x"] < 60, "before the label"


def test_details_of_three_models_fold_away(visit):
    assert visit("models", 1000).evaluate("document.documentElement.scrollHeight") < 4000


def test_a_phone_shows_the_main_figure_and_keeps_the_names_of_sides_when_a_table_scrolls(visit):
    page = visit("two", WIDTHS[0])
    main = page.locator("#results-0 tbody td").first
    assert main.inner_text().startswith("10,2"), "tokens/s/GPU"
    assert main.bounding_box()["x"] + main.bounding_box()["width"] <= WIDTHS[0]
    page.locator("#results-0").evaluate("table => { table.parentElement.scrollLeft = 250 }")
    assert main.bounding_box()["x"] < 0
    assert page.locator("#results-0 tbody th").first.bounding_box()["x"] >= 0


@in_each("width", WIDTHS)
def test_every_row_of_charts_fills_the_page(visit, width):
    page = visit("kinds", width)
    boxes = [panel.bounding_box() for panel in page.locator(".panel").all()]
    whole = page.locator(".panels").bounding_box()
    ends = {}
    for box in boxes:
        ends[box["y"]] = max(ends.get(box["y"], 0), box["x"] + box["width"])
    assert page.locator("summary", has_text="Charts").inner_text() == f"Charts ({len(boxes)})"
    assert list(ends.values()) == pytest.approx([whole["x"] + whole["width"]] * len(ends))
    memory = page.locator(".panel", has_text="memory of one device").bounding_box()
    assert memory["width"] == pytest.approx(whole["width"]), "its kinds are side by side"
