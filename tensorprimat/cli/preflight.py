"""`tprimat preflight`: measure this machine's best performance."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tensorprimat.cli import micro_options as options


def command(
    device: options.DeviceOption = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes only: done in seconds.")] = False,
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR|FILE",
            help="Folder for preflight/preflight_HOST_DEVICE.json; a name that ends in .json is a file.",
        ),
    ] = Path("output"),
    keep_noisy: Annotated[
        bool, typer.Option("--keep-noisy", help="Keep the figures although the machine was busy or its limits changed.")
    ] = False,
    fail_below: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Fail if a GPU reaches less than this share of the median GPU."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of tables.")] = False,
) -> int:
    """Measure this machine's best performance, in about a minute.

    Matrix products by precision and size, memory bandwidth, transfers between host and device, launch latency, and,
    where torchrun starts several processes, all-reduce, all-gather and reduce-scatter by message size. Each figure is
    compared with the catalogue's peak; matrix products also against the best that others measured. A GPU well below its
    siblings or the catalogue is named; over several nodes each has a row, the slowest first. The result is kept per
    machine: sweeps estimate their time from it, and training results are compared with it. If other processes use the
    machine (more load than cores and a quarter of the cores in use, or processes on a GPU), or if a frequency or power
    cap changes meanwhile, the figures are shown and not kept.

    \b
    Examples:
      tprimat preflight
      torchrun --nproc-per-node 8 -m tensorprimat preflight --output output
      torchrun --nnodes 4 --nproc-per-node 8 --rdzv-endpoint node1:29500 -m tensorprimat preflight --fail-below 90%

    \b
    Exit codes:
      0  measured
      1  measured and not kept, because the machine was not quiet, or a GPU is below --fail-below
      2  a flag is wrong, or the device is not there
    """
    from tensorprimat.cli.options import fraction, named_file, refuse_file, writable_folder
    from tensorprimat.core import preflight as records
    from tensorprimat.core.errors import UsageError
    from tensorprimat.core.store import write_atomically
    from tensorprimat.machine import noise
    from tensorprimat.machine.platform import detect
    from tensorprimat.reports.preflight import tables

    least = None if fail_below is None else fraction("--fail-below", fail_below)
    machine = detect(cpu=device == "cpu")
    chosen = ("cpu" if machine.platform == "cpu" else "cuda") if device == "auto" else device
    if chosen.startswith("cuda") and machine.platform == "cpu":
        raise UsageError(f"--device {device}: torch sees no GPU here; use --device cpu")
    if not chosen.startswith("cuda") and chosen != "cpu":
        raise UsageError(f"--device {device}: must be auto, cpu, cuda or cuda:N")
    rank = int(os.environ.get("RANK", "0"))
    file = named_file("--output", output, (".json",))
    refuse_file("--output", output, "name a .json file, or a folder", (".csv", ".md"))
    folder = file.parent if file else writable_folder("--output", output)
    from tensorprimat.micro import preflight

    if ":" in chosen and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(f"--device {device}: each process that torchrun starts takes a GPU of its own; --device cuda")
    number = chosen.partition(":")[2] or os.environ.get("LOCAL_RANK", "0")
    if chosen != "cpu":
        if not number.isdigit() or int(number) >= (machine.gpu_info.device_count or 0):
            raise UsageError(f"--device {device}: {machine.gpu_info.device_count} GPU(s) here, numbered from 0")
        chosen = f"cuda:{number}"
    talk = (lambda part: options.say(f"measuring {part} …")) if rank == 0 else (lambda _: None)
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1  # processes of torchrun would take one another for strangers
    before = noise.look(machine.gpu_ids) if alone else None
    found = preflight.measure(machine, chosen, quick=quick, on_part=talk)
    if rank != 0:
        return 0
    disturbed: list[str] = []
    if before is not None:
        after = noise.look(machine.gpu_ids)
        disturbed = [*noise.company(before, "before the measurement"), *noise.moved(before, after, "meanwhile")]
        without_us = replace(after, gpus=())  # our own process is on the GPUs by now
        disturbed += [] if disturbed else noise.company(without_us, "after the measurement")
        found = found.model_copy(update={"warnings": (*found.warnings, *disturbed)})
    path = None
    if not disturbed or keep_noisy:
        path = file or records.save(found, folder / records.FOLDER)
        if file:
            write_atomically(file, found.model_dump_json(indent=2))
    if json:
        print(found.model_dump_json(indent=2))
    else:
        for table in tables(found):
            print(f"\n{table.title}")
            options.show(table)
    for warning in found.warnings:
        options.say(f"warning: {warning}")
    if path is None:
        options.say("not kept: the machine was not quiet; run again when it is, or keep the figures with --keep-noisy")
        return 1
    options.say(f"Saved: {path}")
    slow = () if least is None else found.below(least)
    for sentence in slow:
        options.say(sentence)
    return 1 if slow else 0
