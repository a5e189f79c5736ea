"""Reading of a model's log that a search found on this machine.

The search and the machine supply facts that the log lacks: the model for which it was found, and the machine's GPU if
vendor and memory agree with the log.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tensorprimat import logs
from tensorprimat.core import names, stated
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import size
from tensorprimat.core.result import Result
from tensorprimat.core.stated import UserFacts
from tensorprimat.core.units import GB
from tensorprimat.machine.platform import Machine

SAME_MEMORY = 0.005  # relative; logs print two decimals of GiB, and the variants of one GPU differ by more
ORIGIN = "this machine's GPU: vendor and memory agree with the log"


def read_found_log(path: Path, model: str, facts: UserFacts, machine: Machine) -> Result:
    """Return the log as a result of the model. Raises InputError for a file that cannot be read.

    facts: the user's statements, which override those of the log.
    """
    result = logs.read(path, facts=replace(facts, preset=None))
    if facts.model_name is None:
        result = _named(result, model)
    return with_local_device(stated.amended(result, UserFacts(preset=facts.preset)), machine)


def _named(result: Result, model: str) -> Result:
    """Return the result under the model's name, unless the log itself names a model with its size."""
    trained = result.model.name
    if trained == model or (trained is not None and names.mentions(trained)):
        return result
    assumed = {**result.provenance.assumed, "model.name": f"the search for a log of {model}"}
    return result.changed(model=result.model.changed(name=model), provenance=result.provenance.changed(assumed=assumed))


def with_local_device(result: Result, machine: Machine) -> Result:
    """Return the result with this machine's GPU as its device if the log names no GPU and vendor and memory agree.

    The platform is always the log's. If the log prints no device memory or another size, the device stays unknown, with
    a notice.
    """
    gpu, here = result.gpu_info, machine.gpu_info
    if gpu.device_name is not None or machine.platform == "cpu" or here.device_name is None:
        return result
    if result.platform != machine.platform:
        return result
    there, memory = gpu.total_memory_gb, here.total_memory_gb
    if there is None or memory is None or abs(there / memory - 1) > SAME_MEMORY:
        printed = "no device memory" if there is None else f"{size(GB * there)} of device memory"
        notice = Notice("gpu_unnamed", "gpu_info", printed=printed, gpu=here.device_name)
        return result.changed(warnings=(*result.warnings, notice))
    assumed = {**result.provenance.assumed, "device_name": ORIGIN}
    return result.changed(
        gpu_info=gpu.changed(device_name=here.device_name, gpu_cores=here.gpu_cores),
        provenance=result.provenance.changed(assumed=assumed),
    )
