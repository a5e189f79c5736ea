"""`tprimat history`: show a metric over time, per machine and model."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from tensorprimat.cli import known_values as known
from tensorprimat.cli import options
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import counted

_PICTURES = (".png", ".svg")
_OUTPUT_DIR = "Folder for history.*; a name that ends in .csv, .png or .svg is a file."


def command(
    results: Annotated[
        list[Path] | None,
        argument(
            "RESULT",
            "Result files, or folders with their history/; with --html also history.jsonl files.",
            show_default=str(DEFAULT_FOLDER),
        ),
    ] = None,
    metric: Annotated[
        str, takes("NAME", "Metric to show.", offers=known.metrics_over_time)
    ] = "tokens_per_second_per_gpu",
    model: Annotated[str | None, takes("MODEL", "Show only this model.", offers=known.models)] = None,
    output_dir: Annotated[Path, takes("DIR|FILE", _OUTPUT_DIR)] = DEFAULT_FOLDER,
    html: Annotated[
        bool, switch("--html", "Also write history.html, a page for any web host, and history.jsonl.")
    ] = False,
    commit_url: Annotated[
        str | None, takes("URL", "Address of a commit for the links of the page, with {} for its hash.")
    ] = None,
    no_plot: Annotated[bool, switch("--no-plot", "Write no picture.")] = False,
) -> int:
    """Show a metric over time: one table per machine, model and configuration, oldest benchmark first.

    A benchmark is marked as a change if it differs from earlier ones by more than their scatter explains (1 % false
    alarms). Writes history.csv, history.png and history.svg into DIR. Metrics: tokens_per_second_per_gpu,
    tokens_per_second, samples_per_second, avg_step_time_seconds.

    \b
    Examples:
      tprimat history output/
      tprimat history output/ earlier/history.jsonl --html --commit-url "https://github.com/ORG/REPO/commit/{}"
      tprimat history output/ --model llama --metric avg_step_time_seconds --output-dir report

    \b
    Exit codes:
      0  shown, with or without changes
      1  interrupted, or a file could not be written
      2  a flag is wrong, or there is no result with this metric
    """

    from tensorprimat.analysis.history import METRICS, metric_history, number_left_out
    from tensorprimat.reports import harmless
    from tensorprimat.reports.console import safe, table
    from tensorprimat.reports.history import (
        LARGEST_LINES_BYTES,
        history_rows,
        lines_of_history,
        render_csv,
        render_history_page,
        rows_of_lines,
    )  # fmt: skip
    from tensorprimat.reports.history import series_table as table_of
    from tensorprimat.session.collection import results_of
    from tensorprimat.system.atomic import write_atomically
    from tensorprimat.system.regular import text_of_file

    if metric not in METRICS:
        raise UsageError(f"--metric {metric}: must be one of {', '.join(METRICS)}")
    file = options.named_file("--output-dir", output_dir, (".csv", *_PICTURES))
    if file is None:
        options.refuse_file("--output-dir", output_dir, "name a .csv, .png or .svg file, or a folder")
        options.refuse_output("--output-dir", output_dir)
    if commit_url is not None and "{}" not in commit_url:
        raise UsageError(f"--commit-url {commit_url}: must contain {{}} where the hash of a commit belongs")
    lines = [path for path in results or () if html and path.suffix == ".jsonl"]
    rows = [row for path in lines for row in rows_of_lines(text_of_file(path, most_bytes=LARGEST_LINES_BYTES), path)]
    named = [path for path in results or [DEFAULT_FOLDER] if path not in lines]
    loaded, problems = results_of(named, model=model) if named else ([], [])
    options.say_each(problems)
    all_series, _ = metric_history(loaded, metric=metric) if named else ([], [])
    if left_out := number_left_out(loaded, all_series):
        number = counted(left_out, "file")
        why = "a copy of another, unfinished, profiled, or without this metric"
        print(f"{number} not shown: {why}", file=sys.stderr)
    folder = file.parent if file else options.writable_folder("--output-dir", output_dir)
    files: dict[str, str | bytes] = {"history.csv": render_csv(all_series)}
    if html:
        new = history_rows(all_series)
        rows = [*(row for row in rows if row not in new), *new]
        files |= {"history.jsonl": lines_of_history(rows)}
        files |= {"history.html": render_history_page(rows, commit_url=commit_url)}
    is_picture = file is not None and file.suffix.lower() in _PICTURES
    if is_picture or not (file or no_plot):
        from tensorprimat.reports.plots import comparison as plots

        draw = partial(plots.history_plot, all_series)
        drawn = draw() if is_picture else options.drawn_if_possible(draw)
        files |= {f"history.{form}": picture for form, picture in drawn.items()}
    if file is not None:
        files = {file.name: files[f"history{file.suffix.lower()}"]}
    for name, content_of_file in files.items():
        write_atomically(folder / name, content_of_file)
    console = harmless.console(highlight=False)
    for series in all_series:
        content = table_of(series)
        console.print(safe(content.title, "bold"), table(content), "", sep="\n")
    options.say_files(f"Written to {folder}", list(files))
    return 0
