"""The plot: drawn without warnings for every comparison, legible, and without empty panels."""

import io
import itertools
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import plausible
import pytest
from each import in_each

from tensorprimat.analysis.compare import compare
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.reports import bars, forest
from tensorprimat.reports.plots import canvas, panels
from tensorprimat.reports.plots import comparison as comparison_plot
from tensorprimat.reproduce import published
from tensorprimat.storage.store import Loaded

LONG = "NVIDIA GeForce RTX 4090 Laptop GPU partition {} with a name far beyond what any driver prints"


def comparison_of(*results, **options):
    return compare(
        [Loaded(path=Path(f"{number}.json"), result=result) for number, result in enumerate(results)], **options
    )


@pytest.fixture
def draw():
    """Function that draws a comparison in the style of the files."""
    import matplotlib

    with matplotlib.rc_context(canvas.STYLE):
        yield lambda comparison: canvas.laid_out(
            partial(comparison_plot.fill_figure, drawing=comparison_plot.drawing_of(comparison))
        )


def six_sides_of_three_models():
    return comparison_of(
        *(
            plausible.result("h100", model=model, seconds=(9.7 - side) * factor, device_name=LONG.format(side))
            for model, factor in (("llama", 1.0), ("qwen", 0.93), ("mistral", 0.9))
            for side in range(6)
        )
    )


CASES = {
    "two sides, five runs": lambda: comparison_of(
        plausible.result("h100", runs=5), plausible.result("mi300x", runs=5, seconds=11.0)
    ),
    "one side": lambda: comparison_of(plausible.result("cpu", preset="tiny", seconds=0.2, noise=0.05)),
    "six sides of three models with long names": six_sides_of_three_models,
    "step times a hundred times apart": lambda: comparison_of(
        plausible.result("h100"), plausible.result("cpu", seconds=900.0)
    ),
    "not comparable": lambda: comparison_of(
        plausible.result("h100"), plausible.result("cpu", preset="tiny", seconds=0.2)
    ),
    "means only": lambda: comparison_of(plausible.means_only(), plausible.means_only("mi300x")),
    "means and steps": lambda: comparison_of(plausible.means_only(), plausible.result("mi300x")),
    "names that want to be code": lambda: comparison_of(
        plausible.result("h100", device_name="$\\frac{1}{0}$ <b> & \x1b[31m 显卡 \U0001f680 --> ]]>"),
        plausible.result("mi300x"),
    ),
    "two steps": lambda: comparison_of(plausible.result("h100", steps=1, warmup=1)),
    "warm-ups of different length": lambda: comparison_of(
        plausible.result("h100", warmup=2), plausible.result("mi300x", warmup=20)
    ),
}


def shown_ticks(axes):
    """Return the tick labels inside the axis: matplotlib keeps some outside, undrawn."""
    low, high = sorted(axes.get_ylim())
    return [label for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]


DRAWN_HERE = (
    "step times a hundred times apart", "names that want to be code", "two steps", "warm-ups of different length",
)  # fmt: skip
"""Cases that no other test of this file draws."""


@in_each("case", DRAWN_HERE)
def test_everything_that_can_be_compared_can_be_drawn(case):
    """Warnings are errors here: no missing glyph, no collapsed axis, no layout that failed."""
    assert comparison_plot.comparison_plot(CASES[case](), ("svg",))["svg"].startswith(b"<?xml")


@pytest.mark.parametrize("case", ["two sides, five runs", "six sides of three models with long names", "means only"])
def test_no_label_overlaps_another_or_leaves_the_picture(case, draw):
    figure = draw(CASES[case]())
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for axes in figure.get_axes()
        if axes.axison
        for text in (*shown_ticks(axes), *axes.texts, axes._left_title)
        if text.get_text() and text.get_visible()
    ]
    width, height = canvas.get_width_height()
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.x1 <= width, text
        assert box.y0 >= 0, text
        assert box.y1 <= height, text
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        assert not first.shrunk(0.95, 0.85).overlaps(second.shrunk(0.95, 0.85)), f"{one!r} and {other!r}"


def test_a_panel_without_any_figure_is_left_out():
    comparison = comparison_of(plausible.means_only(), plausible.means_only("cpu"))
    svg = comparison_plot.comparison_plot(comparison_of(comparison.sides[0].result), ("svg",))["svg"].decode()
    assert "Step time over steps" not in svg
    assert "Average step time" in svg


def test_a_side_without_steps_is_named_next_to_one_with_steps():
    svg = comparison_plot.comparison_plot(CASES["means and steps"](), ("svg",))["svg"].decode()
    assert "no step times: H100" in svg


def test_a_side_without_steps_is_named_with_its_model_where_models_differ():
    steps = (plausible.result("h100", model="qwen"), plausible.result("mi300x", model="qwen", seed=1))
    comparison = comparison_of(plausible.means_only(), *steps)
    svg = comparison_plot.comparison_plot(comparison, ("svg",))["svg"].decode()
    assert "no step times: H100 (llama)" in svg


@in_each("end", [7.2, 9e5, 9.9e6, 1.1e7, 7.2e7, 9e8])
def test_ticks_of_a_narrow_panel_do_not_touch(end):
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(canvas.STYLE):
        figure = Figure(figsize=(4.5, 2.0))
        axes = figure.subplots()
        axes.set_xlim(0, end)
        canvas.few_ticks(axes.xaxis)
        figure.draw_without_rendering()
    labels = [text for text in axes.get_xticklabels() if 0 <= text.get_position()[0] <= end]
    spans = [(box.x0, box.x1) for box in (label.get_window_extent() for label in labels)]
    assert len(spans) > 2
    assert all(left[1] < right[0] for left, right in itertools.pairwise(spans))


def test_a_first_step_of_minutes_does_not_flatten_the_rest(draw):
    result = plausible.result("h100")
    seconds = result.steps.column("seconds").copy()
    seconds[0] = 600.0
    slow_start = summarise(result.model_copy(update={"steps": result.steps.replace(seconds=seconds)}))
    figure = draw(comparison_of(slow_start))
    (axes,) = [axes for axes in figure.get_axes() if axes._left_title.get_text() == "Step time over steps"]
    assert axes.get_ylim()[1] < 20
    assert any("off the scale, up to 600.0 s" in text.get_text() for text in axes.texts)


@pytest.mark.parametrize("factor", [1.0, 3.0, 20.0, 900.0])
def test_the_note_on_steps_off_the_scale_covers_no_measured_step(draw, factor):
    sides = [plausible.result("h100"), plausible.result("mi300x", seconds=12.8 * factor, seed=1)]
    figure = draw(comparison_of(*sides))
    axes = step_time_panel(figure)
    (note,) = [text for text in axes.texts if "off the scale" in text.get_text()]
    figure.draw_without_rendering()
    lowest = axes.transData.inverted().transform(note.get_window_extent().corners())[:, 1].min()
    slowest = max(float(side.steps.column("seconds")[5:].max()) for side in sides)
    assert slowest < lowest


def step_time_panel(figure):
    return next((axes for axes in figure.axes if axes.get_title(loc="left") == "Step time over steps"), None)


@pytest.mark.parametrize(("warmup", "shaded"), [(0, False), (5, True)])
def test_only_warm_up_is_shaded(draw, warmup, shaded):
    """The first row of an MLPerf log ends at step 32; what is before it is no warm-up."""
    one = plausible.result("h100", warmup=warmup)
    rows = one.steps.replace(covers=np.full(len(one.steps), 32), index=32 * np.arange(1, len(one.steps) + 1))
    config = one.training_config.model_copy(update={"warmup_steps": 32 * warmup})
    figure = draw(comparison_of(summarise(one.model_copy(update={"steps": rows, "training_config": config}))))
    axes = step_time_panel(figure)
    assert bool(axes.patches) == shaded
    assert ("shaded" in axes.get_xlabel()) == shaded


def test_runs_of_one_row_get_no_panel_of_step_times(draw):
    figure = draw(
        comparison_of(
            published.result_of_baseline(
                published.find_baseline("mlperf:v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama31_8b")
            )
        )
    )
    assert step_time_panel(figure) is None


def test_sides_that_are_not_comparable_are_drawn_without_better_or_worse():
    svg = comparison_plot.comparison_plot(CASES["not comparable"](), ("svg",))["svg"].decode()
    for word in ("better", "faster", "slower"):
        assert word not in svg


def test_a_tiny_model_is_drawn_under_its_own_name():
    svg = comparison_plot.comparison_plot(CASES["one side"](), ("svg",))["svg"].decode()
    assert "Llama-3.1 tiny" in svg
    assert "8B" not in svg


def test_error_bars_are_drawn_where_there_are_intervals():
    looks = bars.looks_of((comparison := CASES["two sides, five runs"]()).sides)
    _, throughput = bars.panels(comparison.sides, looks, comparable=True)
    assert all(bar.low < bar.value < bar.high for bar in throughput.bars)


def test_the_ticks_of_nearly_equal_figures_are_the_figures_themselves():
    seen = []

    def fill(figure):
        axes = figure.subplots()
        axes.plot([10_203.01, 10_203.02])
        figure.canvas.draw()
        seen.extend([axes.yaxis.get_offset_text().get_text(), axes.get_yticklabels()[1].get_text()])

    canvas.picture(fill)
    assert seen == ["", "10203.010"]


def test_equal_speeds_are_not_drawn_far_apart():
    (scale,) = forest.forests(comparison_of(plausible.result("h100"), plausible.result("mi300x", seed=2)))
    assert 0.45 < scale.place(1.0) < 0.55
    assert 0.45 < scale.place(scale.marks[0].value) < 0.55


def test_six_sides_of_three_models_have_six_different_looks():
    comparison = six_sides_of_three_models()
    looks = bars.looks_of(comparison.sides)
    assert len(looks) == 6
    assert len({(look.colour, look.hatch) for look in looks.values()}) == 6


def test_more_sides_than_colours_still_have_different_looks():
    (side,) = CASES["one side"]().sides
    looks = bars.looks_of([replace(side, label=f"side {number}") for number in range(20)])
    assert len({(look.colour, look.hatch) for look in looks.values()}) == 20


def test_the_same_comparison_gives_the_same_file():
    comparison = CASES["one side"]()
    first, second = comparison_plot.comparison_plot(comparison), comparison_plot.comparison_plot(comparison)
    assert first["svg"].decode().splitlines() == second["svg"].decode().splitlines()
    assert first["png"] == second["png"]


def test_hundreds_of_thousands_of_steps_are_drawn_as_fewer_than_20000_points(draw):
    result = plausible.result("h100")
    count = 300_000
    steps = Steps({"index": np.arange(count), "seconds": np.random.default_rng(0).uniform(1, 1.1, count)})
    figure = draw(comparison_of(summarise(result.model_copy(update={"steps": steps, "runs": ()}))))
    points = sum(len(line.get_xdata()) for axes in figure.get_axes() for line in axes.lines)
    assert points < 20_000


def test_the_process_that_draws_gets_a_fraction_of_the_rows():
    result = plausible.result("h100")
    count = 300_000
    steps = Steps({"index": np.arange(count), "seconds": np.random.default_rng(0).uniform(1, 1.1, count)})
    comparison = comparison_of(summarise(result.model_copy(update={"steps": steps, "runs": ()})))
    assert len(pickle.dumps(comparison)) > 4_000_000
    assert len(pickle.dumps(comparison_plot.drawing_of(comparison))) < 300_000


def test_the_plot_is_1950_pixels_wide():
    from PIL import Image

    png = Image.open(io.BytesIO(comparison_plot.comparison_plot(CASES["two sides, five runs"](), ("png",))["png"]))
    assert png.size[0] == 1950
    assert 1000 < png.size[1] < 1500


def test_an_interval_far_wider_than_its_bar_ends_in_an_arrow():
    look = bars.BarStyle(number=0, label="a GPU", colour="#0072B2", hatch="")
    wide = bars.Bar(group="", look=look, value=1000.0, low=3.0, high=300_000.0, text="1,000 ±100 % or more")
    axes = canvas.load_matplotlib().figure.Figure().subplots()
    panels.bar_panel(axes, bars.Panel(title="Throughput", unit="tokens/s", bars=(wide,)))
    assert axes.get_xlim()[1] < 10 * wide.value
    assert ">" in [line.get_marker() for line in axes.lines]
