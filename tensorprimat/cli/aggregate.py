"""`tprimat aggregate`: make tables and plots of a folder of cells."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from tensorprimat.cli.options import TO_FILE, say_each
from tensorprimat.cli.shared_options import argument, takes


def command(
    folder: Annotated[Path, argument("DIR", "Folder of cells (bench_*.json).")],
    filter: Annotated[
        list[str] | None, takes("CONDITION", 'Keep cells: "model_size=small", "batch_size >= 4"; may be repeated.')
    ] = None,
    add: Annotated[
        list[str] | None, takes("NAME=EXPRESSION", 'Add a column: "throughput=1000/mean_time_ms"; may be repeated.')
    ] = None,
    rows: Annotated[str | None, takes("COLUMN", "Rows of a pivot table.")] = None,
    columns: Annotated[str | None, takes("COLUMN", "Columns of the pivot table.")] = None,
    values: Annotated[str | None, takes("COLUMN", "Values of the pivot table.")] = None,
    output: Annotated[Path | None, takes("DIR|FILE", f"Folder for every table as Markdown and CSV{TO_FILE}")] = None,
    csv: Annotated[Path | None, takes("FILE.csv", "Write one row per cell.")] = None,
    html: Annotated[Path | None, takes("FILE.html", "Write all tables as one HTML page.")] = None,
    plot: Annotated[Path | None, takes("FILE", "Plot time against parameters and context (.png, .svg).")] = None,
    roofline: Annotated[
        Path | None, takes("FILE", "Plot rates against the limits that preflight measured (.png, .svg).")
    ] = None,
    results: Annotated[list[Path] | None, takes("RESULT", "Also show these training results on the roofline.")] = None,
) -> int:
    """Make tables of a folder of measurements (cells): all cells, by size, by context, passes compared, and pivots.

    Without an output file, the tables go to stdout as Markdown. A pivot table shows means of --values (default
    mean_time_ms) by --rows (default context_length) and --columns (default model_size). Expressions can use the columns
    of the JSON files, arithmetic, comparisons, the words and/or/not, and the functions sqrt, log, log2, log10, exp,
    min, max, abs and round. An expression that needs an unmeasured value has no result, and as a condition it does not
    hold; "mean_time_ms == None" selects the cells without a time. In Python, tensorprimat.load_cells(DIR) returns the
    folder as a pandas DataFrame.

    \b
    Examples:
      tprimat aggregate output/sweep --rows context_length --columns model_size --values mean_time_ms
      tprimat aggregate output/sweep --add "throughput=1000/mean_time_ms" --output sweep.md --csv sweep.csv --plot s.png

    \b
    Exit codes:
      0  tables were made
      2  a flag is wrong, or the folder contains no cells
    """
    from tensorprimat.analysis import aggregate
    from tensorprimat.cli import options
    from tensorprimat.reports import aggregate as reports
    from tensorprimat.reports.micro_tables import rows_csv, rows_json
    from tensorprimat.storage.cell_rows import load_rows
    from tensorprimat.system.atomic import write_atomically

    options.refuse_unwritable(csv=csv, html=html, plot=plot, roofline=roofline)
    forms_of_plots = {
        flag: options.picture_form(flag, path) for flag, path in (("--plot", plot), ("--roofline", roofline)) if path
    }
    if output is not None:
        options.refuse_file("--output", output, f"use --html {output}", (".html",))
        options.refuse_file("--output", output, f"use --plot {output}", (".png", ".svg"))
        options.refuse_output("--output", output)
    cells, problems = load_rows(folder)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    cells = aggregate.sort(aggregate.with_columns(aggregate.filtered(cells, filter or ()), add or ()))
    added = [text.partition("=")[0].strip() for text in add or ()]
    pivots = aggregate.pivots(cells, rows=rows, columns=columns, values=values)
    fits = [found for axis in ("num_parameters", "context_length") for found in aggregate.size_scalings(cells, axis)]
    tables = reports.aggregate_tables(cells, added=added, pivots=pivots, fits=fits)
    heading = f"Cells of {folder.name or folder}"
    files: dict[Path, str | bytes] = {}
    if plot is not None:
        if fits:
            from tensorprimat.reports.plots import canvas
            from tensorprimat.reports.plots import micro as cell_plots

            files[plot] = canvas.picture(partial(cell_plots.size_scaling_plot, found=fits), forms_of_plots["--plot"])
        else:
            print(f"warning: {plot} not written: no cells differ in size or context alone", file=sys.stderr)
    document = reports.render_markdown(tables, heading=heading, plot=plot.name if plot in files and plot else None)
    if roofline is not None:
        files[roofline] = _roofline(folder, results or (), forms_of_plots["--roofline"])
    table = rows_csv(cells)
    if output is not None:
        forms = {".md": document, ".csv": table, ".json": rows_json(cells)}
        if file := options.named_file("--output", output):
            files[file] = forms[file.suffix.lower()]
        else:
            place = options.writable_folder("--output", output)
            files |= {place / f"cells{ending}": text for ending, text in forms.items()}
    if csv is not None:
        files[csv] = table
    if html is not None:
        from tensorprimat.reports.html import tables_page  # here: the other forms need no jinja2

        files[html] = tables_page(tables, heading=heading)
    for path, content in files.items():
        write_atomically(path, content)
    if files:
        options.say_files("Files", list(map(str, files)))
    if output is None and html is None and csv is None:
        print(document, end="")
    return 0


def _roofline(folder: Path, results: Sequence[Path], form: str) -> bytes:
    """Draw the cells of a folder and training results under the ceilings of the machine that ran the cells."""
    from tensorprimat.reports.plots import canvas
    from tensorprimat.reports.plots import micro as cell_plots
    from tensorprimat.session.roofline import roofline_of

    roof = roofline_of(folder, results)
    say_each(roof.left_out)
    draw = partial(cell_plots.roofline, ceilings=roof.ceilings, points=roof.points, machine=roof.machine)
    return canvas.picture(draw, form, height=6.0)
