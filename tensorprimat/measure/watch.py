"""Measurement of a machine's best performance, with a look for other work and changing limits before and after it.

Each process of several looks at its own GPU, and the first one of each node at the CPU, while all of them are idle, so
that none takes another one for foreign work.

Meeting points of the processes that torchrun started, which use neither a device nor CPU time while they wait.

They are keys in the store through which torch connects the processes; a barrier of NCCL would need a GPU, and would
keep a core busy.

    torchrun … -m tensorprimat.measure.watch --spec spec.json --result result.json

measures as one rank of a preflight on the nodes of a cluster; the first rank writes the record of all. Exit codes: 0
done, 1 the measurement failed, 2 the device does not exist.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.quantities import counted, stated_seconds
from tensorprimat.engines.entry import parser_of, run_spec
from tensorprimat.engines.launchers import connected_processes
from tensorprimat.machine import noise
from tensorprimat.machine.noise import NoiseReading
from tensorprimat.machine.platform import LABELS, Machine, detect_platform
from tensorprimat.measure import preflight
from tensorprimat.storage.preflight import NodeLook, Preflight, PreflightSpec
from tensorprimat.system.atomic import write_atomically

PATIENCE_SECONDS = 1800.0  # torch's own time limit for connecting


def measure_watched(
    machine: Machine, device: str, *, quick: bool, on_part: preflight.OnPart = lambda _: None
) -> Preflight | None:
    """Return every measurement with what disturbed it; None on every rank but the first, which has those of all.

    device: torch's name. on_part: called on the first rank. Raises RunError if other ranks do not answer.
    """
    together = Meeting()
    before = _look(machine, device, together, "before")
    found = preflight.measure_machine(
        machine, device, quick=quick, on_part=on_part if together.rank == 0 else lambda _: None
    )
    after = _look(machine, device, together, "after")
    own = json.dumps([preflight.node_name(machine), _disturbances(before, after)])
    everyones = together.gathered("looks", own)
    if everyones is None:
        return None
    looks = _of_nodes([json.loads(one) for one in everyones])
    return found.changed(looks=looks, warnings=(*found.warnings, *found.changed(looks=looks).disturbances))


def _look(machine: Machine, device: str, together: Meeting, when: str) -> NoiseReading:
    """Return the state of this process's part of the machine, read while every process waits."""
    together.wait(f"{when} the look")
    if together.processes == 1:
        reading = noise.observe_machine(machine.gpu_ids)
    else:
        number = int(device.partition(":")[2] or 0)
        reading = noise.observe_machine(machine.gpu_ids[number : number + 1])
        reading = replace(reading, gpus=tuple(replace(gpu, number=number) for gpu in reading.gpus))
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:  # the first process of the node looks at the CPU for all
            reading = replace(reading, busy_share=0.0, cpu_cap_hertz=None)
    together.wait(f"{when} the work")
    return reading


def _disturbances(before: NoiseReading, after: NoiseReading) -> Sequence[str]:
    """Return a sentence for everything that disturbed the measurement between two readings."""
    found = [*noise.company(before, "before the measurement"), *noise.moved(before, after, "meanwhile")]
    without_us = replace(after, gpus=())  # without GPU processes: this process uses the GPU by now
    return found or noise.company(without_us, "after the measurement")


def _of_nodes(looks: Sequence[tuple[str, list[str]]]) -> tuple[NodeLook, ...]:
    """Return the looks of all processes by node, in the order of their ranks."""
    nodes: dict[str, list[str]] = {}
    for host, found in looks:
        nodes.setdefault(host, []).extend(found)
    return tuple(NodeLook(host=host, disturbed_by=tuple(found)) for host, found in nodes.items())


class Meeting:
    """The processes that torchrun started, as one that they all attend; a process that was started alone is its own."""

    def __init__(self) -> None:
        self.processes = connected_processes(os.environ)
        self.rank = int(os.environ.get("RANK", "0")) if self.processes > 1 else 0
        self._store: Any = None
        if self.processes > 1:
            import torch.distributed as dist

            store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=PATIENCE_SECONDS)))
            self._store = dist.PrefixStore("tensorprimat", store)

    def wait(self, point: str) -> None:
        """Wait until every process is at this point. Raises RunError after PATIENCE_SECONDS."""
        if self._store is None:
            return
        if self._store.add(f"{point}/count", 1) == self.processes:
            self._store.set(f"{point}/all", "1")
        self._patiently(lambda: self._store.wait([f"{point}/all"], timedelta(seconds=PATIENCE_SECONDS)))

    def gathered(self, point: str, own: str) -> list[str] | None:
        """Return the text of every process by rank, on rank 0; None on the others. Raises RunError like `wait`."""
        if self._store is None:
            return [own]
        self._store.set(f"{point}/{self.rank}", own)
        if self.rank:
            return None
        keys = [f"{point}/{rank}" for rank in range(self.processes)]
        self._patiently(lambda: self._store.wait(keys, timedelta(seconds=PATIENCE_SECONDS)))
        return [self._store.get(key).decode() for key in keys]

    def _patiently(self, work: Callable[[], None]) -> None:
        try:
            work()
        except RuntimeError as error:  # torch's DistStoreError
            raise RunError(
                f"rank {self.rank}: the other {self.processes - 1} processes did not answer in "
                f"{stated_seconds(PATIENCE_SECONDS)}"
            ) from error


def _measure(spec: PreflightSpec, options: argparse.Namespace) -> None:
    """Measure as this rank; rank 0 writes the record. Raises UsageError for a missing device, RunError if it fails."""
    machine = detect_platform(cpu=spec.platform == "cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = 0 if machine.platform == "cpu" else machine.gpu_info.device_count or 0
    if spec.platform != "cpu" and local >= gpus:
        raise UsageError(f"--num-gpus {spec.num_gpus}: torch sees {counted(gpus, 'GPU')} on {machine.host}")
    label = LABELS[machine.platform].upper()

    def say(part: str) -> None:
        print(f"[{label}] measuring {part} …", flush=True)

    device = "cpu" if spec.platform == "cpu" else f"cuda:{local}"
    found = measure_watched(machine, device, quick=spec.quick, on_part=say)
    if found is not None:
        write_atomically(options.result, found.model_dump_json(indent=2))


def main(argv: Sequence[str] | None = None) -> int:
    return run_spec("preflight", PreflightSpec, parser_of("tensorprimat.measure.watch", __doc__), _measure, argv)


if __name__ == "__main__":
    sys.exit(main())
