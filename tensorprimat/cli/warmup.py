"""`tprimat warmup`: find the number of warm-up steps that is enough."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli import micro_options as options
from tensorprimat.cli.options import TO_FILE, ended_like_ctrl_c
from tensorprimat.cli.shared_options import takes, with_options
from tensorprimat.core.quantities import counted, fixed

if TYPE_CHECKING:
    from tensorprimat.storage.micro_result import MicroResult


@with_options([options.of_one_value(one) for one in options.SHAPE_OPTIONS], after="counts")
@options.with_cell_options(
    "measure_steps", "trials", "steps_per_trial", "precision", "autocast", "compile", "attention", "seed", "device",
    after="pass_name", one_cell=True,
)  # fmt: skip
def command(
    counts: Annotated[str, takes("NUMBERS", "Numbers of warm-up steps to try.")] = "0,1,2,5,10",
    context_length: Annotated[
        int | None, takes("N", "Tokens of a sequence.", show_default="256, or that of --model-size")
    ] = None,
    batch_size: Annotated[
        int | None, takes("N", "Sequences of a step.", show_default="4, or that of --model-size")
    ] = None,
    pass_name: Annotated[
        str, takes("NAME", "forward, forward-backward or train.", "--pass", offers=known.passes)
    ] = "train",
    output: Annotated[
        Path, takes("DIR|FILE", f"Folder for warmup.csv, warmup.png, warmup.md and one JSON per count{TO_FILE}")
    ] = Path("output/warmup"),
    **chosen: Any,
) -> int:
    """Find the number of warm-up steps that is enough for one model on this device.

    The study takes one size, one precision and one kind of attention. Each number of warm-up steps is tried in a fresh
    process; the table shows mean, deviation and CV of the trials for each count. Two or three sentences below it state
    the cost of the first step and the count from which CV and mean are stable.

    \b
    Examples:
      tprimat warmup --model-size small --context-length 256
      tprimat warmup --shape mine=384/1536/6/6 --counts 0,1,3,8 --trials 20 --output warmup

    \b
    Exit codes:
      0  measured
      1  a measurement failed, ran out of memory or was interrupted; finished measurements are kept
      2  a flag is wrong, or flags contradict each other
    """
    from tensorprimat.core.errors import UsageError
    from tensorprimat.measure import advice, grid, isolation, warmup
    from tensorprimat.reports.micro_tables import cells_table
    from tensorprimat.storage import micro_result as cell_files

    tried = grid.whole_numbers("--counts", counts)
    if min(tried) < 0:
        raise UsageError(f"--counts {counts}: must be 0 or more")
    specs, _ = options.requested_cells(
        chosen,
        context_length=None if context_length is None else str(context_length),
        batch_size=None if batch_size is None else str(batch_size),
        pass_name=pass_name,
    )
    if len(specs) > 1:
        raise UsageError(f"{len(specs)} configurations; the study takes one: give one size, one pass and one precision")
    folder, file = options.output_place(output)
    cells: list[MicroResult] = []
    options.print_message(f"{specs[0].title}: {len(tried)} fresh processes")
    try:
        with ended_like_ctrl_c(signal.SIGTERM):
            for cell in warmup.run_warmup(specs[0], sorted(tried), measure=isolation.measure_isolated):
                cells.append(cell)
                options.print_message(f"  {counted(cell.num_warmups, 'warm-up step')}: {_figure_of(cell)}")
                cell_files.save(cell, folder / cell.file_name.replace(".json", f"_warmup{cell.num_warmups}.json"))
    finally:  # after Ctrl-C too: finished measurements are shown and written
        if cells:
            sentences = warmup.conclusion(cells)
            options.print_table(cells_table(cells, title="Warm-up"))
            print("\n" + " ".join(sentences))
            options.say_warnings(cells, subject=advice.HOST)  # advice on warm-up steps would contradict the study
            written = options.write_tables(cells, folder, "warmup", heading="Warm-up study", text=sentences, file=file)
            written += _plot(cells, folder / "warmup.png")
            options.print_message(f"Files: {', '.join(map(str, written))}")
    return 0 if all(cell.status == "ok" for cell in cells) else 1


def _figure_of(cell: MicroResult) -> str:
    if cell.status != "ok" or cell.mean_time_ms is None:
        return cell.reason or cell.status
    scatter = "" if cell.cv_percent is None else f", CV {fixed(cell.cv_percent, 1)} %"
    return f"{fixed(cell.mean_time_ms, 2)} ms{scatter}"


def _plot(cells: list[MicroResult], path: Path) -> list[Path]:
    """Return the picture, where matplotlib is there and anything was measured."""
    from tensorprimat.core.errors import MissingPackageError
    from tensorprimat.measure import warmup
    from tensorprimat.reports.plots import canvas
    from tensorprimat.reports.plots import micro as cell_plots
    from tensorprimat.system.atomic import write_atomically

    if not any(cell.mean_time_ms is not None for cell in cells):
        return []
    stable = warmup.stable_from(cells)
    draw = partial(cell_plots.warmup, cells=cells, stable=stable.num_warmups if stable else None)
    try:
        image = canvas.picture(draw, height=4.2)
    except MissingPackageError as error:
        print(f"warning: no plot: {error}", file=sys.stderr)
        return []
    write_atomically(path, image)
    return [path]
