"""The work of `aggregate --roofline`: rates of cells and trainings against the limits of their machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprimat.analysis.roofline import Ceiling, RooflinePoint, ceilings, of_cells, of_result
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.storage import micro_result, preflight
from tensorprimat.storage.store import load_all


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The points of cells and trainings, and the ceilings of their machine."""

    machine: str
    ceilings: Sequence[Ceiling]
    points: Sequence[RooflinePoint]
    left_out: Sequence[str] = ()
    """A sentence for each file that has no point, cannot be read, or is of another machine."""


def roofline_of(folder: Path, results: Sequence[Path]) -> Roofline:
    """Return the cells of a folder and training results as points, and the ceilings of their machine.

    The newest preflight of a machine that has a point gives the ceilings; points of other machines are left out. Raises
    UsageError where there is no point, or no preflight of a machine that has one.
    """
    found = []
    for file in sorted(folder.glob("bench_*.json")) if os.path.isdir(folder) else [folder]:
        try:
            cell = micro_result.load(file)
        except InputError:  # a cell of another tool, which does not state its machine
            continue
        found += [(file, (cell.platform, cell.device_name, cell.host), point) for point in of_cells([cell])]
    loaded, left_out = load_all(results) if results else ([], [])
    for one in loaded:
        point = of_result(one.result)
        if point is None:
            left_out.append(
                f"{one.path}: not on the roofline, which needs a known shape, sequence length, micro batch, gradient "
                "accumulation, precision and rate, and has no byte counts for experts, latent attention, recomputed "
                "activations and frozen weights"
            )
        else:
            machine = (one.result.platform, one.result.gpu_info.device_name, one.result.provenance.host)
            found.append((one.path, machine, point))
    if not found:
        why = "".join(f"; {sentence}" for sentence in left_out)
        raise UsageError(f"--roofline: no measured cell of TensorPrimat in {folder}{why}")
    kept = preflight.kept([folder, folder.parent, DEFAULT_FOLDER])
    measured = [machine for _, machine, _ in found]
    own = next((one for one in kept if one.machine in measured), None)
    if own is None:
        raise UsageError(
            "--roofline needs the ceilings of the machine that ran these; run tprimat preflight there first"
        )
    name = own.device_name or own.host
    left_out += [
        f"{file}: not on the roofline, whose ceilings are those of {name} on {own.host}, and this is of another machine"
        for file, machine, _ in found
        if own.machine != machine
    ]
    points = [point for _, machine, point in found if own.machine == machine]
    return Roofline(machine=name, ceilings=ceilings(own), points=points, left_out=left_out)
