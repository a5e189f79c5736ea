"""`tprimat preflight`: measure this machine's best performance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli import micro_options as options
from tensorprimat.cli.shared_options import CLUSTER_OPTIONS, cluster_of, switch, takes, with_options
from tensorprimat.core.folders import DEFAULT_FOLDER

if TYPE_CHECKING:
    from tensorprimat.session.preflight import Outcome

_EXECUTOR = "Measure in a job of NeMo-Run: slurm (on other nodes) or local (ranks on this machine)."
_NUM_GPUS = "GPUs of each node, a process for each (with --executor)."
_GPU = "GPU of each node, by name, or cpu (with --executor)."


@with_options([options.CELL_OPTIONS["device"]], after=None)
@with_options(CLUSTER_OPTIONS, after="gpu")
def command(
    quick: Annotated[bool, switch("--quick", "Small sizes only: done in seconds.")] = False,
    output: Annotated[
        Path, takes("DIR|FILE", "Folder for preflight/preflight_HOST_DEVICE.json; a name that ends in .json is a file.")
    ] = DEFAULT_FOLDER,
    keep_noisy: Annotated[
        bool, switch("--keep-noisy", "Keep the figures although the machine was busy or its limits changed.")
    ] = False,
    fail_below: Annotated[
        str | None,
        takes(
            "PERCENT",
            "Fail if a GPU reaches less than this share of the median GPU (one GPU: of the best published rate).",
        ),
    ] = None,
    executor: Annotated[str | None, takes("HOW", _EXECUTOR, offers=known.preflight_executors)] = None,
    nodes: Annotated[int, takes("N", "Nodes to measure (with --executor).")] = 1,
    num_gpus: Annotated[int | None, takes("N", _NUM_GPUS, show_default="as this machine; 1 on a CPU")] = None,
    gpu: Annotated[str | None, takes("NAME", _GPU, show_default="as this machine", offers=known.gpus_and_cpu)] = None,
    dry_run: Annotated[
        bool, switch("--dry-run", "Print the job that --executor would submit; measure nothing.")
    ] = False,
    json: Annotated[bool, switch("--json", "Print JSON on stdout instead of tables.")] = False,
    **chosen: Any,
) -> int:
    """Measure this machine's best performance, in about a minute.

    It measures matrix products by precision and size, memory bandwidth, transfers between host and device, launch
    latency, and, where torchrun starts several processes, all-reduce, all-gather and reduce-scatter by message size.
    The rates of matrix products and memory are compared with the catalogue's peaks, those of matrix products also with
    the best published measurement. The output names a GPU that is well below the others or the catalogue. With several
    nodes, each node has a row, the slowest first, and --fail-below names the slow GPUs. The result is kept per machine:
    sweeps estimate their time from it, and training results are compared with it. The figures are shown but not kept
    if, on any node, another process uses a GPU, the machine is busy (other processes use a quarter of the usable cores'
    time, and the load average exceeds the number of cores), or a frequency or power cap changes meanwhile. Each process
    of torchrun or a job looks for this on its own GPU while all of them wait.

    \b
    Examples:
      tprimat preflight
      torchrun --nproc-per-node 8 -m tensorprimat preflight --output output
      tprimat preflight --executor slurm --partition gpu --nodes 4 --num-gpus 8 --gpu H100 --fail-below 90%
      torchrun --nnodes 4 --nproc-per-node 8 --rdzv-endpoint node1:29500 -m tensorprimat preflight --fail-below 90%

    \b
    Exit codes:
      0  measured
      1  measured and not kept, because the machine was not quiet; a GPU is below --fail-below; the measurement failed
      2  a flag is wrong, or this machine has no such device
    """
    from tensorprimat.cli.options import fraction, named_file, refuse_file, writable_folder
    from tensorprimat.session import preflight

    least = None if fail_below is None else fraction("--fail-below", fail_below)
    file = named_file("--output", output, (".json",))
    refuse_file("--output", output, "name a .json file, or a folder", (".csv", ".md"))
    place = preflight.RecordPlace(folder=file.parent if file else writable_folder("--output", output), file=file)
    device, there = chosen["device"], cluster_of({**chosen, "executor": executor, "gpu": gpu})
    spec = preflight.spec_of_preflight(
        device, there, place, quick=quick, num_gpus=num_gpus, nodes=nodes, dry_run=dry_run
    )
    outcome: Outcome | None
    if spec is not None and dry_run:
        print(preflight.preflight_script(spec, there, place))
        return 0
    if spec is not None:
        outcome = preflight.run_on_cluster(
            spec, there, place, keep_noisy=keep_noisy, least_share=least, on_line=options.print_message
        )
    else:
        outcome = preflight.run_preflight(
            device,
            place,
            quick=quick,
            keep_noisy=keep_noisy,
            least_share=least,
            on_part=lambda part: options.print_message(f"measuring {part} …"),
        )
    return 0 if outcome is None else _show(outcome, as_json=json)


def _show(outcome: Outcome, *, as_json: bool) -> int:
    """Print the outcome; return the exit code."""
    from tensorprimat.reports.preflight import preflight_tables

    if as_json:
        print(outcome.found.model_dump_json(indent=2))
    else:
        for table in preflight_tables(outcome.found):
            print(f"\n{table.title}")
            options.print_table(table)
    for warning in outcome.found.warnings:
        options.print_message(f"warning: {warning}")
    if outcome.path is None:
        options.print_message(
            "not kept: the machine was not quiet; run again when it is, or keep the figures with --keep-noisy"
        )
    else:
        options.print_message(f"Saved: {outcome.path}")
    for sentence in outcome.slow:
        options.print_message(sentence)
    return 1 if outcome.failed else 0
