"""One rank of a preflight on the nodes of a cluster.

    torchrun … -m tensorprimat.measure.preflight_rank --spec spec.json --result result.json

Every rank measures its own GPU; the first writes the record of all. Exit codes: 0 done, 1 the measurement failed, 2 the
device does not exist.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import counted
from tensorprimat.engines.entry import parser_of, run_spec
from tensorprimat.machine.platform import LABELS, detect_platform
from tensorprimat.storage.preflight import PreflightSpec
from tensorprimat.system.atomic import write_atomically


def _measure(spec: PreflightSpec, options: argparse.Namespace) -> None:
    """Measure as this rank; rank 0 writes the record. Raises UsageError for a missing device, RunError if it fails."""
    machine = detect_platform(cpu=spec.platform == "cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = 0 if machine.platform == "cpu" else machine.gpu_info.device_count or 0
    if spec.platform != "cpu" and local >= gpus:
        raise UsageError(f"--num-gpus {spec.num_gpus}: torch sees {counted(gpus, 'GPU')} on {machine.host}")
    from tensorprimat.measure import watch

    label = LABELS[machine.platform].upper()

    def say(part: str) -> None:
        print(f"[{label}] measuring {part} …", flush=True)

    device = "cpu" if spec.platform == "cpu" else f"cuda:{local}"
    found = watch.measure_watched(machine, device, quick=spec.quick, on_part=say)
    if found is not None:
        write_atomically(options.result, found.model_dump_json(indent=2))


def main(argv: Sequence[str] | None = None) -> int:
    return run_spec(
        "preflight", PreflightSpec, parser_of("tensorprimat.measure.preflight_rank", __doc__), _measure, argv
    )


if __name__ == "__main__":
    sys.exit(main())
