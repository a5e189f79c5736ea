"""Advice from measured cells: each one sentence with its number and the flag that changes it; commands print it."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence

from tensorprimat.core.quantities import alternatives, count, fixed, of_data_sheet, percent, rate, significant
from tensorprimat.facts import catalogue
from tensorprimat.machine import telemetry
from tensorprimat.machine.platform import Machine
from tensorprimat.storage.micro_result import MicroResult

HOST = "host: "  # beginning of the advice on a host that sets the pace
SCATTER_PERCENT = 10.0  # CV of the trials; above it, the mean of a few trials is unreliable
WANTED_PERCENT = 2.0  # standard error of the mean that the advice aims at
MOST_TRIALS = 200  # largest number that is advised: more do not help on a machine that is always busy
STILL_WARMING = 1.25  # ratio of the first trial to the median of the later ones, from which on the warm-up is too short
HALF_EMPTY = 0.5  # share of the device's memory up to which a larger batch is advised
SPILLING = 3.0  # ratio of a cell's time to the time that its FLOPs take at the best rate of the compared cells
# Share of a step that the GPU has left when the host has queued the last kernel of a trial. If the GPU is slower than
# the host, kernels pile up until CUDA's queue is full, at about 1,024 launches: a third of the 2,929 of a step of 36
# layers, and more than this share unless a step has 40,000. The share of one step, not of the trial, because a full
# queue is a small part of a trial of many steps.
LEAST_BACKLOG = 0.025
FULL = 0.9  # share of the device's memory from which on memory may spill


class Watch:
    """A sampler of the device while a cell is timed."""

    def __init__(self, machine: Machine, device: str) -> None:
        number = int(device.partition(":")[2] or 0)
        ids = machine.gpu_ids[number : number + 1]
        self._sampler = telemetry.Sampler(telemetry.open_devices(ids) if ids else [])
        self._sampler.start()

    def end(self) -> tuple[str, ...]:
        """Stop sampling and return the warnings about the device while the cell ran."""
        self._sampler.stop()
        found = list(self._sampler.warnings())
        for reading in self._sampler.last:
            others = telemetry.foreign_processes(reading, ours=(os.getpid(),))
            if others:
                pids = ", ".join(str(process.pid) for process in others)
                numbered_as_here = any(process.pid == os.getpid() for process in reading.processes)
                who = f"pid {pids}" if numbered_as_here else "in another container"
                found.append(f"device: another process uses this GPU ({who}); stop it, or choose another --device")
        return tuple(dict.fromkeys(found))


def advise(cell: MicroResult, seen: Sequence[str] = (), launch_times_ms: Sequence[float] = ()) -> tuple[str, ...]:
    """Return the advice on one cell.

    seen: the warnings of `Watch`, which are appended. launch_times_ms: launch time of a step, trial by trial, or none.
    """
    return (*_scatter(cell), *_launch(cell, launch_times_ms), *_precision(cell), *_memory(cell), *_loss(cell), *seen)


def _scatter(cell: MicroResult) -> list[str]:
    """Return advice on a large CV: the number of warm-up steps, of trials or of steps per trial that reduces it."""
    if cell.cv_percent is None or cell.cv_percent <= SCATTER_PERCENT:
        return []
    sentence = f"scatter: CV {fixed(cell.cv_percent, 1)} % over {len(cell.trial_times_ms)} trials"
    first, *later = cell.trial_times_ms
    if _first_explains(cell.cv_percent, first, later):
        return [
            f"{sentence}, the first is the slowest, so the warm-up was too short; "
            f"use --warmup-steps {cell.num_warmups + 5}"
        ]
    trials = min(MOST_TRIALS, math.ceil((cell.cv_percent / WANTED_PERCENT) ** 2))
    if trials > cell.num_trials:
        reached = max(WANTED_PERCENT, cell.cv_percent / math.sqrt(trials))
        return [f"{sentence}; --trials {trials} would bring the mean to about ±{significant(reached, 2)} %"]
    return [f"{sentence}; longer trials reduce it: --steps-per-trial {max(2, 2 * cell.num_steps)}"]


def _first_explains(cv_percent: float, first: float, later: Sequence[float]) -> bool:
    """Return True if the first trial is slow and causes most of the CV."""
    if not later or first <= STILL_WARMING * statistics.median(later):
        return False
    return len(later) < 2 or 100 * statistics.stdev(later) / statistics.fmean(later) < cv_percent / 2


def _launch(cell: MicroResult, launch_times_ms: Sequence[float]) -> list[str]:
    """Return advice for a GPU that had almost nothing left to do when the host had queued the last kernel."""
    if not launch_times_ms:
        return []
    of_trials = zip(launch_times_ms, cell.trial_times_ms, strict=True)
    backlogs = [cell.num_steps * (1 - launch / whole) for launch, whole in of_trials]  # in steps
    if statistics.median(backlogs) > LEAST_BACKLOG:
        return []
    launch, step = statistics.median(launch_times_ms), statistics.median(cell.trial_times_ms)
    more_work = ["a larger --batch-size", "a larger --context-length", *([] if cell.compile else ["--compile"])]
    return [
        f"{HOST}launching the kernels takes {rate(launch)} ms of the {rate(step)} ms of a step (medians), so the GPU "
        "probably waited for the host, and time and rates say little about the GPU; "
        f"{alternatives(more_work)} gives it more work per launch"
    ]


def _precision(cell: MicroResult) -> list[str]:
    if cell.precision != "fp32" or cell.platform in (None, "cpu"):
        return []
    gpu = catalogue.find_gpu(cell.device_name, cell.total_memory_gb)
    fact = gpu.peak_tflops.get("tf32") if gpu and "tf32" not in gpu.lacks else None
    if fact is None or not fact.value:
        return []
    rate = of_data_sheet(fact.value)
    return [f"precision: TF32 is off, and this GPU multiplies at {rate} TFLOP/s with it; --precision tf32"]


def _memory(cell: MicroResult) -> list[str]:
    peak, total = cell.peak_memory_gb, cell.total_memory_gb
    if cell.memory_kind != "allocated" or not peak or not total or peak > HALF_EMPTY * total or cell.status != "ok":
        return []
    return [
        f"memory: {percent(1 - peak / total, 0)} of the device's {count(total)} GB are unused; a larger batch, such as "
        f"--batch-size {2 * cell.batch_size}, uses more"
    ]


def _loss(cell: MicroResult) -> list[str]:
    if cell.loss is None or "gradients in forward" not in cell.loss or cell.forward_only:
        return []
    return [
        "loss: the logits would not fit, so head and loss are computed in pieces with their gradients: part of "
        "backward counts as forward here (a smaller --batch-size or --context-length separates them)"
    ]


def spilling(cells: Sequence[MicroResult]) -> dict[int, str]:
    """Return warnings, by the cell's position, for cells far slower than their FLOPs explain while memory is full.

    A cell is compared with the cells of the same precision, pass and device that have as many tokens or fewer.
    """
    found = {}
    for place, cell in enumerate(cells):
        alike = [
            other.flops_per_second
            for other in cells
            if other.flops_per_second
            and (other.precision, other.pass_name, other.device_name, other.tokens <= cell.tokens)
            == (cell.precision, cell.pass_name, cell.device_name, True)
        ]
        rate, peak, total = cell.flops_per_second, cell.peak_memory_gb, cell.total_memory_gb
        if rate and peak and total and max(alike) > SPILLING * rate and peak > FULL * total:
            found[place] = (
                f"memory: {fixed(max(alike) / rate, 1)} times slower than its FLOPs explain, with "
                f"{percent(peak / total, 0)} of the memory in use: memory is spilling; use "
                f"--batch-size {max(1, cell.batch_size // 2)} or --fit"
            )
    return found


def with_spilling(cells: Sequence[MicroResult]) -> list[MicroResult]:
    """Return the cells, with the warnings of `spilling`."""
    found = spilling(cells)
    return [
        cell.changed(warnings=(*cell.warnings, found[place])) if place in found else cell
        for place, cell in enumerate(cells)
    ]
