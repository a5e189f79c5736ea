"""`tprimat passes`: time forward, backward and optimizer of one model, separately and together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import micro_options as options
from tensorprimat.cli.options import TO_FILE
from tensorprimat.cli.shared_options import switch, takes, with_options

if TYPE_CHECKING:
    from tensorprimat.storage.micro_result import MicroResult


@with_options(options.SHAPE_OPTIONS, after=None)
@with_options(options.WORK_OPTIONS, after="batch_size")
def command(
    context_length: Annotated[
        str | None, takes("NUMBERS", "Tokens of a sequence.", show_default="256, or that of --model-size")
    ] = None,
    batch_size: Annotated[
        str | None, takes("NUMBERS", "Sequences of a step.", show_default="4, or that of --model-size")
    ] = None,
    output: Annotated[Path, takes("DIR|FILE", f"Folder for JSON, CSV and Markdown{TO_FILE}")] = Path(
        "results/profiling_benchmarking_separate.csv"
    ),
    json: Annotated[bool, switch("--json", "Print the cells as a JSON array instead of the table.")] = False,
    **chosen: Any,
) -> int:
    """Time forward, backward and optimizer step of a model on one device, separately and together.

    Sizes are small, medium, large, xl and 2.7B (vocabulary 10,000), the real shapes llama, qwen and mistral, or any
    shape by its numbers. Options named NAMES or NUMBERS take several values, separated by commas; each
    combination of values is a cell, one row of the table. The forward pass keeps what the backward pass needs, as in
    training. Each measured interval (trial) begins and ends with the device idle; the parts of a step are timed inside
    it. Out of memory becomes a row of the table and does not end the command.

    On a terminal the table is coloured; otherwise it is Markdown.

    \b
    Examples:
      tprimat passes --model-size small,medium --context-length 256 --output passes
      tprimat passes --d-model 384 --d-ff 1536 --num-layers 6 --num-heads 6 --label mine --pass train --trials 20

    \b
    Exit codes:
      0  measured (out of memory is a result)
      1  a cell failed, or was interrupted; finished measurements are kept
      2  a flag is wrong, flags contradict each other, or the token file cannot be used
    """
    from tensorprimat.cli.options import named_file, writable_folder
    from tensorprimat.measure import passes, sweep
    from tensorprimat.reports.micro_tables import cells_table
    from tensorprimat.storage import micro_result as cell_files

    specs, _ = options.requested_cells(chosen, context_length=context_length, batch_size=batch_size)
    file = named_file("--output", output)
    folder = None if file else writable_folder("--output", output)
    cells: list[MicroResult] = []
    try:
        for number, spec in enumerate(specs, start=1):
            options.print_message(f"[{number}/{len(specs)}] {spec.title}")
            cells.append(passes.measure_cell(spec))
            if folder is not None:
                cell_files.save(cells[-1], folder / spec.file_name)
    finally:  # after Ctrl-C too: finished measurements are shown and written
        if cells:
            if json:
                print(cell_files.to_json_array(cells), end="")
            else:
                options.print_table(cells_table(cells))
            options.say_warnings(cells)
            if file is not None:
                if os.path.isfile(file):  # an earlier measurement is not overwritten
                    sweep.to_history(file)
                options.print_message(f"File: {options.write_file(cells, file, heading='Passes')}")
            if folder is not None:
                written = options.write_tables(cells, folder, "passes", heading="Passes", file=None)
                options.print_message(f"Files: {', '.join(map(str, written))} and {len(cells)} × bench_*.json")
    return 1 if any(cell.status == "failed" for cell in cells) else 0
