"""Pictures of micro-benchmarks, each drawn on a Figure: scaling of time, the warm-up study, the roofline."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from tensorprimat.analysis.aggregate import SizeScaling
from tensorprimat.analysis.roofline import Ceiling, RooflinePoint
from tensorprimat.core.quantities import count, fixed, rate, significant
from tensorprimat.core.units import GB, TERA
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots.canvas import COLOURS, FAINT, INK, LINE_STYLES, MARKERS, WIDTH_INCHES
from tensorprimat.storage.micro_result import MicroResult

_MOST_CURVES = 12  # more cannot be distinguished; the table has them all
PANEL_INCHES = 5.0
_LABEL_CHARACTERS = 56  # of a line in the legend, which then leaves the curves two thirds of the width
AXES = {"num_parameters": "parameters", "context_length": "context length, tokens"}


def size_scaling_plot(figure: Any, found: Sequence[SizeScaling]) -> None:
    """Draw time against parameters and against context, with the fitted power law of each curve."""
    present = [axis for axis in AXES if any(one.axis == axis for one in found)]
    figure.set_size_inches(WIDTH_INCHES, PANEL_INCHES * len(present))
    for axes, axis in zip(figure.subplots(len(present), 1, squeeze=False)[:, 0], present, strict=True):
        every = [one for one in found if one.axis == axis]
        curves = every[:_MOST_CURVES]
        shared = _shared_words(curves)
        for number, one in enumerate(curves):
            _curve(axes, one, number, without=shared)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sorted({x for one in curves for x, _ in one.points}), minor=False)
        axes.set_xticks([], minor=True)
        axes.margins(0.08, 0.2)
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axes.set_yticks([], minor=True)
        for axis_of in (axes.xaxis, axes.yaxis):
            axis_of.set_major_formatter(_short)
        axes.set_xlabel(AXES[axis])
        axes.set_ylabel("milliseconds per step")
        some = f" ({len(curves)} of {len(every)} curves; the table has all)" if len(curves) < len(every) else ""
        axes.set_title(f"Time against {AXES[axis].partition(',')[0]}{some}", pad=18 if shared else None)
        axes.text(0, 1.02, canvas.drawable(", ".join(shared)), transform=axes.transAxes, fontsize=7.5, color=FAINT)
        axes.grid(which="major")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)  # curves fill the whole of the axes


def _short(value: float, _position: int | None = None) -> str:
    """Return the text of a tick, such as 128.6 M, 512 or 0.3."""
    for size, letter in ((1e9, " B"), (1e6, " M")):
        if value >= size:
            return significant(value / size) + letter
    return count(value) if value >= 1000 else significant(value, 3)


def _shared_words(curves: Sequence[SizeScaling]) -> list[str]:
    """Return the parts that the labels of all curves have, in their order; none for a single curve."""
    every = [one.label.split(", ") for one in curves]
    return [part for part in every[0] if all(part in parts for parts in every)] if len(every) > 1 else []


def _curve(axes: Any, one: SizeScaling, number: int, *, without: Sequence[str]) -> None:
    colour = COLOURS[number % len(COLOURS)]
    xs, ys = zip(*one.points, strict=True)
    label = ", ".join(part for part in one.label.split(", ") if part not in without) or one.label
    label += "" if one.exponent is None else f": exponent {fixed(one.exponent, 2)}"
    label = textwrap.fill(canvas.drawable(label), _LABEL_CHARACTERS, break_on_hyphens=False)
    axes.plot(xs, ys, color=colour, marker=MARKERS[number % len(MARKERS)], linestyle="none", ms=5, label=label)
    if one.exponent is not None and one.factor is not None:
        ends = (min(xs), max(xs))
        axes.plot(ends, [one.factor * end**one.exponent for end in ends], color=colour, linewidth=1.0, alpha=0.7)


def warmup(figure: Any, cells: Sequence[MicroResult], *, stable: int | None) -> None:
    """Draw mean with deviation, and CV, by warm-up steps. stable: the count to mark, or None."""
    mean, scatter = figure.subplots(1, 2)
    measured = [cell for cell in cells if cell.mean_time_ms is not None]
    places = range(len(measured))
    counts = [str(cell.num_warmups) for cell in measured]
    mean.errorbar(
        places,
        [cell.mean_time_ms for cell in measured],
        yerr=[cell.std_time_ms or 0.0 for cell in measured],
        color=COLOURS[0],
        marker="o",
        linestyle="none",
        capsize=3,
        label="mean ± standard deviation",
    )
    mean.plot(
        places, [cell.median_time_ms for cell in measured], color=COLOURS[1], marker="_", ms=14, linestyle="none",
        label="median",
    )  # fmt: skip
    mean.set_ylabel("milliseconds per step")
    mean.set_title("Step time after warm-up")
    mean.set_ylim(bottom=0)
    mean.legend()
    known = [(place, cell.cv_percent) for place, cell in enumerate(measured) if cell.cv_percent is not None]
    scatter.bar([place for place, _ in known], [cv for _, cv in known], color=COLOURS[0], width=0.6)
    scatter.set_xlim(-0.6, max(0.6, len(measured) - 0.4))  # a count of one trial has no CV, and so no bar
    scatter.set_ylabel("CV, %")
    scatter.set_title("Variation of the trials")
    for axes in (mean, scatter):
        axes.set_xticks(list(places), counts)
        axes.set_xlabel("warm-up steps")
        axes.grid(axis="y")
        if stable is not None:
            where = [cell.num_warmups for cell in measured].index(stable)
            axes.axvspan(where - 0.5, len(measured) - 0.5, color=COLOURS[2], alpha=0.08)


def _points(axes: Any, points: Sequence[RooflinePoint], *, several_precisions: bool) -> None:
    """Draw the points: a colour per model, a marker per kind of work, sequence length and batch next to each point."""

    def kind(point: RooflinePoint) -> str:
        return f"{point.work}, {point.precision}" if several_precisions else point.work

    models, kinds = (list(dict.fromkeys(map(of, points))) for of in (lambda point: point.model, kind))
    for model in models:
        for work in kinds:
            alike = [point for point in points if (point.model, kind(point)) == (model, work)]
            if not alike:
                continue
            axes.plot(
                [point.intensity for point in alike], [point.flops_per_second / TERA for point in alike],
                color=COLOURS[models.index(model) % len(COLOURS)], marker=MARKERS[kinds.index(work) % len(MARKERS)],
                ms=8, linestyle="none", markeredgecolor="white", label=canvas.drawable(f"{model}, {work}"),
            )  # fmt: skip
            for point in alike:
                axes.annotate(
                    canvas.drawable(point.size), (point.intensity, point.flops_per_second / TERA), xytext=(6, -3),
                    textcoords="offset points", fontsize=6.5, color=FAINT,
                )  # fmt: skip


def roofline(figure: Any, ceilings: Sequence[Ceiling], points: Sequence[RooflinePoint], *, machine: str) -> None:
    """Draw rate against arithmetic intensity, under the measured ceilings of each precision that ran."""
    axes = figure.subplots()
    ran = list(dict.fromkeys(point.precision for point in points))
    roofs = [roof for roof in ceilings if roof.precision in ran] or list(ceilings)
    xs = [point.intensity for point in points] + [roof.ridge for roof in roofs]
    low, high = min(xs) / 3, max(xs) * 3
    for number, roof in enumerate(roofs):
        axes.plot(
            [low, roof.ridge, high],
            [height / TERA for height in (roof.at(low), roof.flops_per_second, roof.flops_per_second)],
            color=INK,
            linestyle=LINE_STYLES[number % len(LINE_STYLES)],
            linewidth=1.2,
            label=f"{roof.precision}: {rate(roof.flops_per_second / TERA)} TFLOP/s, "
            f"{rate(roof.bytes_per_second / GB)} GB/s",
        )
    _points(axes, points, several_precisions=len(ran) > 1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    canvas.plain_log_ticks(axes.xaxis)
    canvas.plain_log_ticks(axes.yaxis)
    axes.set_xlabel("arithmetic intensity, FLOP per byte moved (estimated from the shape)")
    axes.set_ylabel("model TFLOP/s of one device")
    title = f"Roofline of {machine}, ceilings as measured by preflight; context × batch next to points"
    axes.set_title(canvas.drawable(title))
    axes.grid(which="major")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
