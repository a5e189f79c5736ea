"""The work of `aggregate --roofline`: rates of cells and trainings against the limits of their machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprimat.analysis.roofline import Ceiling, RooflinePoint, ceilings, of_cells, of_result
from tensorprimat.core import micro_result, preflight
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.store import load_all


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The points of cells and trainings, and the ceilings of their machine."""

    machine: str
    ceilings: Sequence[Ceiling]
    points: Sequence[RooflinePoint]
    left_out: Sequence[str] = ()
    """A sentence for each training result that has no point or cannot be read."""


def roofline_of(folder: Path, results: Sequence[Path]) -> Roofline:
    """Return the cells of a folder and training results as points, and the ceilings of their machine.

    Raises UsageError where there is no point, or no preflight of that machine.
    """
    cells = []
    for file in sorted(folder.glob("bench_*.json")) if folder.is_dir() else [folder]:
        try:
            cells.append(micro_result.load(file))
        except InputError:  # a cell of another tool, which does not state its machine
            continue
    loaded, problems = load_all(results) if results else ([], [])
    trained = [one.result for one in loaded]
    of_training = [of_result(one) for one in trained]
    points = [*of_cells(cells), *(point for point in of_training if point is not None)]
    left_out = problems + [
        f"{one.path}: not on the roofline, which needs a known shape, sequence length, micro batch, precision and "
        "rate, and has no byte counts for experts, latent attention and recomputed activations"
        for one, point in zip(loaded, of_training, strict=True)
        if point is None
    ]
    if not points:
        why = "".join(f"; {sentence}" for sentence in left_out)
        raise UsageError(f"--roofline: no measured cell of TensorPrimat in {folder}{why}")
    machines = [(cell.platform, cell.device_name, cell.host) for cell in cells]
    machines += [(one.platform, one.gpu_info.device_name, one.provenance.host) for one in trained]
    kept = preflight.kept([folder, folder.parent, DEFAULT_FOLDER])
    own = next((one for one in kept if any(one.fits(platform=p, device_name=d, host=h) for p, d, h in machines)), None)
    if own is None:
        raise UsageError(
            "--roofline needs the ceilings of the machine that ran these; run tprimat preflight there first"
        )
    return Roofline(machine=own.device_name or own.host, ceilings=ceilings(own), points=points, left_out=left_out)
