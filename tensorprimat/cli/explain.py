"""`tprimat explain`: what a step's time consists of, and why one training is faster than another, from traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tensorprimat.cli import known_values as known
from tensorprimat.cli.options import refuse_unwritable
from tensorprimat.cli.shared_options import argument, switch, takes, takes_number
from tensorprimat.core.errors import RunError, UsageError


def command(
    baseline: Annotated[
        Path | None, argument("TRACE", "Trace, folder with one for each rank, or result of a profiled run (side A).")
    ] = None,
    candidate: Annotated[Path | None, argument("TRACE", "Trace to compare with it (side B).")] = None,
    model: Annotated[
        str | None,
        takes("MODEL", "Model that ran, for rates: a known name, config.json, or name=numbers.", offers=known.models),
    ] = None,
    sequence_length: Annotated[int | None, takes("N", "Tokens of a sequence, with --model.")] = None,
    sequences: Annotated[int, takes("N", "Sequences of a step on one GPU, with --model.")] = 1,
    clock: Annotated[list[float] | None, takes_number("MHZ", "Mean clock of the GPU, once for each side.")] = None,
    rank: Annotated[int | None, takes("N", "Rank to explain (default: the median by time of a step).")] = None,
    whole: Annotated[bool, switch("--whole", "Take the whole trace as one step.")] = False,
    plot: Annotated[Path | None, takes("FILE", "Write the waterfall (.png, .svg or .html).")] = None,
    as_json: Annotated[bool, switch("--json", "Print JSON.")] = False,
) -> int:
    """Show what takes the time of a step, from a profiler's trace; of two traces, show why one is faster.

    Each moment of a step belongs to one class of work: matrix products, attention, optimizer, exposed communication,
    gaps and others, so that the classes sum to the time of the step. The difference of two traces lists what each
    class contributes, and sums to the difference of their steps. Steps are found by the profiler's marks, else by the
    optimizer's kernels, else by repetition. With --model and --sequence-length, rates of products, attention and
    optimizer stand beside their time; a trace with shapes (record_shapes=True) needs neither.

    Reads traces of PyTorch's profiler (.json, .json.gz) from CUDA, ROCm, XPU and CPU, of Nsight Systems (.sqlite, by
    nsys export; .nsys-rep where nsys is installed) and of rocprofv3 (.json, .csv, .db), and folders with one for each
    rank. Make one with benchmark.py --profile torch: then its result file or output folder finds the trace, and states
    model, batch and clock. Without TRACE, --model MODEL is profiled now. Workbooks of TraceLens (.xlsx) hold totals, so
    that no account of a step closes. A profiler slows a training down: compare speeds by runs without it.

    \b
    Examples:
      tprimat explain profile.trace.json.gz --model llama --sequence-length 8192
      tprimat explain bf16.trace.json.gz fp8.trace.json.gz --plot why.png
      tprimat explain --model llama
      tprimat explain h100.trace.json.gz h200.trace.json.gz --clock 1456 --clock 1560 --json

    \b
    Exit codes:
      0  explained
      2  a flag is wrong, a file is no usable trace, or the traces are of unlike programs
    """
    import json

    from tensorprimat.reports import ledger as report
    from tensorprimat.reports.plots import waterfall
    from tensorprimat.system.atomic import write_atomically
    from tensorprimat.traces.difference import difference_of
    from tensorprimat.traces.ledger import with_clock_of
    from tensorprimat.traces.sides import find_trace, ledger_at, trace_facts
    from tensorprimat.traces.work import rates_of

    if plot is not None and plot.suffix not in (".png", ".svg", ".html"):
        raise UsageError(f"--plot {plot}: must end in .png or .svg, or in .html")
    refuse_unwritable(plot=plot)
    if baseline is None:
        if model is None:
            raise UsageError("name a trace, or a --model to profile now")
        baseline, model = _profiled_now(model), None
    named = [path for path in (baseline, candidate) if path is not None]
    if any(path.suffix == ".xlsx" for path in named):
        return _of_workbooks(named, as_json=as_json)
    sides = [find_trace(path) for path in named]
    facts = trace_facts(sides, model=model, sequence_length=sequence_length, sequences=sequences, clocks=clock or ())
    ledgers = [with_clock_of(ledger_at(side.trace, rank, whole=whole), side.result) for side in sides]
    rates = [rates_of(ledger, of_side) for ledger, of_side in zip(ledgers, facts, strict=True)]
    found = None if candidate is None else difference_of(ledgers[0], ledgers[1], (facts[0], facts[1]))
    if plot is not None:
        form = "png" if plot.suffix == ".png" else "svg"
        drawn = waterfall.ledger_bars(ledgers[0], [form]) if found is None else waterfall.waterfall(found, [form])
        write_atomically(plot, waterfall.page(drawn[form]) if plot.suffix == ".html" else drawn[form])
    if as_json:
        print(json.dumps(report.document(ledgers, rates, found), indent=2, ensure_ascii=False))
    else:
        report.print_explanation(ledgers, rates, found)
    return 0


def _of_workbooks(paths: Sequence[Path], *, as_json: bool) -> int:
    """Print what TraceLens workbooks say: totals of classes, which nothing shows to sum to the step."""
    from tensorprimat.cli import main

    if not all(path.suffix == ".xlsx" for path in paths):
        raise UsageError("a TraceLens workbook holds totals; give two of them, or two traces")
    return main(["analyze", *map(str, paths), *(["--json"] if as_json else [])])


def _profiled_now(model: str) -> Path:
    """Profile a few steps of a model and return the result of that run. Raises RunError where there is none."""
    import contextlib
    import shlex
    import sys

    from tensorprimat.cli import main
    from tensorprimat.core.folders import DEFAULT_FOLDER
    from tensorprimat.storage import store

    folder = DEFAULT_FOLDER / store.HISTORY
    before = set(folder.glob("*_profiled.json"))
    with contextlib.redirect_stdout(sys.stderr):
        code = main(shlex.split(f"tprimat run --model {shlex.quote(model)} --profile torch")[1:])
    made = set(folder.glob("*_profiled.json")).difference(before)
    if code or not made:
        raise RunError(f"{model} was not profiled")
    return made.pop()
