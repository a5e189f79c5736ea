"""Measurement of a machine's best performance, with a look for other work and changing limits before and after it.

Each process of several looks at its own GPU, and the first one of each node at the CPU, while all of them are idle, so
that none takes another one for foreign work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace

from tensorprimat.core.preflight import NodeLook, Preflight
from tensorprimat.machine import noise
from tensorprimat.machine.noise import NoiseReading
from tensorprimat.machine.platform import Machine
from tensorprimat.micro import preflight
from tensorprimat.micro.meeting import Meeting


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
