"""`tprimat compare`, `./compare_results.py`: compare results: verdict, plot and report."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli import options, shared_options
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import InputError, MissingPackageError
from tensorprimat.core.folders import DEFAULT_FOLDER

if TYPE_CHECKING:
    from tensorprimat.analysis.records import Comparison
    from tensorprimat.reports.sections import Report
    from tensorprimat.session.second_process import StartCall
    from tensorprimat.storage.store import Loaded

_DEFAULT_FOLDERS = (DEFAULT_FOLDER, Path("benchmark_results"))
"""Folders searched for results: the one of this tool, and the one of earlier tools."""
PLACES = "output, benchmark_results"
RESULTS = "Results, logs, or folders of them; two or more are sides, the first is the baseline. NAME=PATH names one."
_OUTPUT_DIR = f"Folder for comparison_*{options.to_file(options.REPORT_ENDINGS)}"
_BY = "Property that separates the sides: platform, engine, precision, preset or gpu."
STRICT = "Print a ratio only where model, shape, sequence length and global batch are the same."
BASELINE = "Side that is the denominator of every ratio: its name, or part of the name; by default the first side."
ASSUME_RUN_CV = "Assume that single runs vary by this much, such as 2%, and base the verdict on it."

ASSUME_HOST_CV = (
    "Assume that machines vary by this much, such as 1%, and widen the interval of a side with one machine."
)


@shared_options.with_fact_options(after="warmup_steps")
def command(
    results: Annotated[
        list[str] | None, argument("[NAME=]PATH", RESULTS, show_default="output, benchmark_results")
    ] = None,
    output_dir: Annotated[Path, takes("DIR|FILE", _OUTPUT_DIR)] = DEFAULT_FOLDER,
    by: Annotated[
        str | None,
        takes("WHAT", _BY, show_default="platform, or the arguments", offers=known.sides),
    ] = None,
    baseline: Annotated[str | None, takes("LABEL", BASELINE)] = None,
    assume_run_cv: Annotated[str | None, takes("PERCENT", ASSUME_RUN_CV)] = None,
    assume_host_cv: Annotated[str | None, takes("PERCENT", ASSUME_HOST_CV)] = None,
    confidence: Annotated[str, takes("PERCENT", "Confidence of intervals and verdicts.")] = "95%",
    warmup_steps: Annotated[
        int | None, takes("N", "Steps to leave out at the start of every run.", *shared_options.WARMUP)
    ] = None,
    price: shared_options.Prices = None,
    published: Annotated[bool, switch("--published", "Also show published results, marked as such.")] = False,
    strict: Annotated[bool, switch("--strict", STRICT)] = False,
    no_plot: Annotated[bool, switch("--no-plot", "Write no picture.")] = False,
    json: Annotated[bool, switch("--json", "Print comparison.json on stdout instead of the summary.")] = False,
    **typed_facts: Any,
) -> int:
    """Compare benchmark results: training rates with confidence intervals, and a verdict on whether the comparison is
    fair.

    Two or more arguments are sides of the comparison: results, folders of them, or logs (read as `tprimat extract`
    reads them); the first is the baseline. With one folder, or with --by, results are grouped by platform (or by the
    property of --by). Several runs of one machine and configuration are one side. A ratio is printed only if the sides
    are comparable, and the report states what is equal (same work, same work per token, or same task). A
    winner is named only if the runs support it. A flag such as --gpu fills in what a file does not state; with SIDE= it
    also overrides the file.

    Writes into DIR: comparison_report.html (the whole report in one file that works offline), comparison_report.md,
    comparison_plot.png and .svg, comparison_loss.png and .svg if losses were logged, comparison.json and .csv.

    \b
    Examples:
      ./compare_results.py
      ./compare_results.py base=old/ new=new/ --output-dir report
      ./compare_results.py h100=run1.log mi300x=run2.log.gz --assume-run-cv 2%

    \b
    Exit codes:
      0  compared, whatever the verdict (also "not comparable")
      1  interrupted, or a file could not be written
      2  a flag is wrong, or there is nothing to compare
    """
    from tensorprimat.session.second_process import second_process

    stated = shared_options.statements(typed_facts)
    options.refuse_output("--output-dir", output_dir, options.REPORT_ENDINGS)
    with second_process() as start_call:
        if not no_plot:
            start_call(_load_matplotlib)  # the second process imports it while this one reads results
        from tensorprimat.analysis.compare import compare
        from tensorprimat.analysis.metrics import MetricChoices
        from tensorprimat.analysis.sides import labels_of
        from tensorprimat.core.fact_values import typed_count
        from tensorprimat.reports.sections import COMPARISON
        from tensorprimat.session import sides
        from tensorprimat.session.sides import laid_over

        skipped = None if warmup_steps is None else typed_count(shared_options.WARMUP[0], str(warmup_steps), least=0)
        arguments = sides.parse_argument(results or [str(folder) for folder in folders_here()])
        several = results is not None and (len(arguments) > 1 or arguments[0].name is not None)
        loaded, problems = sides.load_sides(
            arguments, by_argument=by is None and several, read=partial(sides.read_in_two, start_call)
        )
        options.say_each(problems)
        loaded = laid_over(loaded, stated, partial(labels_of, by=by or "platform"))
        comparison = compare(
            loaded if skipped is None else [sides.with_warmup(item, skipped) for item in loaded],
            by=by or "platform",
            assume_run_cv=None if assume_run_cv is None else options.fraction("--assume-run-cv", assume_run_cv),
            assume_host_cv=None if assume_host_cv is None else options.fraction("--assume-host-cv", assume_host_cv),
            confidence=options.fraction("--confidence", confidence),
            baseline=baseline,
            choices=MetricChoices(prices=shared_options.typed_prices(price)),
            strict=strict,
        )
        if published:
            from tensorprimat.reproduce.published import with_published

            comparison = with_published(comparison)
        traced = _traced(labels_of(loaded, by=by or "platform"), loaded)
        if traced and not no_plot:
            comparison = replace(comparison, why=_drawn(traced))
        written = write_report(comparison, COMPARISON, output_dir, None if no_plot else start_call)
    if json:
        from tensorprimat.reports.json import render

        print(render(comparison), end="")
    else:
        from tensorprimat.reports.console import print_summary

        print_summary(comparison)
        if traced:
            print(f"Why: {shlex.join(['tprimat', 'explain', *map(str, traced)])}", file=sys.stderr)
    options.say_files(f"Written to {output_dir}", written)
    return 0


def _traced(labels: Sequence[str | None], loaded: Sequence[Loaded]) -> list[Path]:
    """Return a result of both sides, where there are two and each has a trace; else nothing."""
    from tensorprimat.traces.sides import trace_of_result

    traced: dict[str, Path] = {}
    for label, item in zip(labels, loaded, strict=True):
        if label is not None and label not in traced:
            with contextlib.suppress(InputError, OSError):
                if trace_of_result(item.path) is not None:
                    traced[label] = item.path
    return list(traced.values()) if len(traced) == 2 else []


def _drawn(traced: Sequence[Path]) -> str | None:
    """Return the waterfall of two traced results as SVG; None where they cannot be compared or drawn."""
    from tensorprimat.reports.plots.waterfall import waterfall
    from tensorprimat.traces.difference import difference_of
    from tensorprimat.traces.sides import find_trace, ledger_at, trace_facts

    try:
        sides = [find_trace(path) for path in traced]
        facts = trace_facts(sides)
        one, other = (ledger_at(side.trace) for side in sides)
        drawn = waterfall(difference_of(one, other, (facts[0], facts[1])), ("svg",))["svg"].decode()
    except (InputError, MissingPackageError, OSError):
        return None
    return drawn[drawn.index("<svg") :]


def write_report(comparison: Comparison, report: Report, output: Path, start_call: StartCall | None) -> list[str]:
    """Write the one form of a report that a file's ending names, or every form into a folder. Returns names in it.

    start_call: draws the plot meanwhile; None leaves the pictures out. Each file is written whole or not at all. Where
    matplotlib is missing everything else is written into the folder, and stderr says what to install.
    """
    from tensorprimat.reports import csv, html, json, markdown
    from tensorprimat.reports.plots import canvas
    from tensorprimat.reports.plots import comparison as plots
    from tensorprimat.system.atomic import write_atomically

    file = options.named_file("--output-dir", output, options.REPORT_ENDINGS)
    folder = output if file else options.writable_folder("--output-dir", output)
    if file and file.suffix.lower() == ".png":
        draw = plots.metrics if report.of_metrics else plots.comparison_plot
        if not (drawn := draw(comparison, ("png",))):
            raise InputError("no metric is known, so there is nothing to draw", path=file)
        write_atomically(file, drawn["png"])
        return []
    pictures: dict[str, bytes] = {}
    plot = None
    start_call = None if file else start_call
    if start_call and not canvas.can_draw():
        print(MissingPackageError("matplotlib", needed_for="plots"), file=sys.stderr)
    elif start_call and report.of_metrics:
        pictures = _picture_files("enhanced_plot", plots.metrics(comparison))
    elif start_call:
        plot = start_call(plots.drawn_as, plots.drawing_of(comparison))
        pictures = _picture_files("comparison_loss", plots.losses(comparison))
    shown = fnmatch.filter([*(["comparison_plot.png"] if plot else []), *pictures], "*.png")
    forms: dict[str, Callable[[Comparison, Report], str]] = {
        f"{report.stem}_report.md": partial(markdown.render, pictures=shown),
        f"{report.stem}_report.html": html.render,
        f"{report.data}.json": json.render,
        f"{report.data}.csv": csv.render,
    }
    if file:
        [render] = (render for name, render in forms.items() if name.endswith(file.suffix.lower()))
        write_atomically(file, render(comparison, report))
        return []
    documents = {name: render(comparison, report) for name, render in forms.items()}
    files: dict[str, str | bytes] = {
        **(_picture_files("comparison_plot", plot()) if plot else {}),
        **pictures,
        **documents,
    }
    for name, content in files.items():
        write_atomically(folder / name, content)
    return list(files)


def _picture_files(stem: str, pictures: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the names of the files of a plot, each with its content."""
    return {f"{stem}.{form}": content for form, content in pictures.items()}


def folders_here() -> list[Path]:
    """Return the default folders that contain result files. Raises InputError where there is none."""
    found = [folder for folder in _DEFAULT_FOLDERS if any(map(_may_be_a_result, folder.glob("*.json")))]
    if not found and not os.path.isdir(DEFAULT_FOLDER):
        raise InputError("no such folder", path=DEFAULT_FOLDER, remedy="run ./benchmark.py first, or name result files")
    return found or [DEFAULT_FOLDER]


def _may_be_a_result(path: Path) -> bool:
    """Return False for a report of an earlier call; a file that cannot be read is refused later, by its name."""
    from tensorprimat.storage import store

    try:
        return not store.is_report(store.read_json(path))
    except (InputError, OSError):
        return True


def _load_matplotlib() -> None:
    from tensorprimat.reports.plots import canvas

    if canvas.can_draw():
        canvas.load_matplotlib()
