"""`tprimat sweep`: a grid of cells, each in a fresh process, resumable."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli import micro_options as options
from tensorprimat.cli.options import TO_FILE, ended_like_ctrl_c, refuse_output
from tensorprimat.cli.shared_options import switch, takes
from tensorprimat.system.regular import resolved

if TYPE_CHECKING:
    from tensorprimat.storage.micro_result import MicroResult

ALL_SIZES = "small,medium,large,xl,2.7B"


@options.with_cell_options("shape", after="model_size")
@options.with_cell_options(
    "pass_name", "precision", "attention", "autocast", "compile", "vocab_size", "warmup_steps", "measure_steps",
    "trials", "steps_per_trial", "data", "seed", "device", "memory_limit",
    after="batch_size", pass_name="train",
)  # fmt: skip
def command(
    model_size: Annotated[
        str | None,
        takes(
            "NAMES",
            "Sizes of the grid.",
            offers=known.model_sizes,
            listed=True,
            show_default=f"{ALL_SIZES}, or only --shape",
        ),
    ] = None,
    context_length: Annotated[str, takes("NUMBERS", "Tokens of a sequence.")] = "128,256,512",
    batch_size: Annotated[str, takes("NUMBERS", "Sequences of a step.")] = "4",
    fit: Annotated[
        bool, switch("--fit", "If memory is insufficient, find the largest batch (or else context) that fits.")
    ] = False,
    in_process: Annotated[
        bool, switch("--in-process", "Measure all cells in this process: faster, less independent.")
    ] = False,
    dry_run: Annotated[bool, switch("--dry-run", "Estimate memory and time of each cell; run nothing.")] = False,
    output: Annotated[Path, takes("DIR|FILE", f"Folder for one JSON per cell{TO_FILE}")] = Path("output/sweep"),
    **chosen: Any,
) -> int:
    """Time every combination of sizes, contexts, batches, precisions and passes, each in a fresh process.

    Each combination (cell) has its own file (bench_SIZE_CONTEXT_….json), written as soon as it is measured. To continue
    a killed sweep, repeat the command. Out of memory is a result: its row says OOM, and with --fit another column shows
    what would fit. `tprimat aggregate` makes tables of the folder.

    \b
    Examples:
      tprimat sweep --model-size small,medium --context-length 128,256 --batch-size 4,8 --pass forward,train
      tprimat sweep --shape custom=384/1536/6/6 --precision fp32,bf16 --fit --output mine

    \b
    Exit codes:
      0  every cell was measured (out of memory is a result)
      1  a cell failed or the sweep was interrupted; finished cells are kept
      2  a flag is wrong, or flags contradict each other
    """
    from tensorprimat.cli.live import CellProgress
    from tensorprimat.measure import isolation, passes, sweep
    from tensorprimat.measure.advice import with_spilling
    from tensorprimat.measure.sweep import estimate_all
    from tensorprimat.reports.micro_tables import basis_of_estimates, cells_table, estimates_table

    data = chosen["data"]
    specs, machine = options.requested_cells(
        chosen,
        is_timed=not dry_run,
        model_size=model_size or (None if chosen["shape"] else ALL_SIZES),
        context_length=context_length,
        batch_size=batch_size,
        data=None if data is None else resolved(data),
    )
    is_cpu = specs[0].device == "cpu"
    refuse_output("--output", output)
    estimates, rates = estimate_all(specs, output, may_run=is_cpu or dry_run or in_process)
    for precision, (rate, origin) in rates.items():
        options.print_message(basis_of_estimates(precision, rate, origin))
    if dry_run:
        options.print_table(estimates_table(specs, estimates, machine.gpu_info.total_memory_gb))
        return 0
    folder, file = options.output_place(output)
    measure = passes.measure_cell if in_process else isolation.measure_isolated
    name = machine.gpu_info.device_name
    done: list[MicroResult] = []
    complete = False
    try:
        weights = [estimate.seconds or 1.0 for estimate in estimates]
        with ended_like_ctrl_c(signal.SIGTERM), CellProgress(weights) as progress:
            for outcome in sweep.run_sweep(specs, folder, measure=measure, device_name=name, fit=fit):
                done.append(outcome.cell)
                progress.advance(outcome.cell, resumed=outcome.resumed)
        complete = True
    finally:  # after Ctrl-C too: finished measurements are shown and written
        if done:
            done = with_spilling(done)
            options.print_table(cells_table(done, title="Sweep"))
            options.say_warnings(done)
            try:
                written = options.write_tables(done, folder, "sweep", heading="Sweep", file=file)
                options.print_message(
                    f"Files: {', '.join(map(str, written))} and {len(done)} × bench_*.json in {folder}/"
                )
            except OSError:  # a disk without room for a cell has none for these; the first error is the one to report
                if complete:
                    raise
    return 1 if any(cell.status == "failed" for cell in done) else 0
