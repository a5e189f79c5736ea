"""Messages about a training that ended early, and remedies for lack of memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from tensorprimat.core.errors import OutOfMemoryError, RunError, of_file_system
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.registry import ENGINES, VENDOR_ENGINES
from tensorprimat.models.memory_estimate import smaller_micro_batches
from tensorprimat.system.failures import ADVICE, INTERRUPTED, OUT_OF_MEMORY, RANK_LOST, cause_of_failure, is_consequence

ENGINES_OWN_LINE = re.compile(r"\w{1,40} engine(?: \(rank \d+\))?: (?P<says>.+)")
"""Error line of an engine on stderr: "torch engine: out of memory …"."""


def first_cause(messages: Sequence[str]) -> str:
    """Return the last of the engines' messages that no other rank caused, else the last one."""
    return next((message for message in reversed(messages) if not is_consequence(message)), messages[-1])


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a device or the host refused memory."""
    named = any(kind.__name__ in ("OutOfMemoryError", "MemoryError") for kind in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and cause_of_failure(str(error)) == OUT_OF_MEMORY)


def end_reason(error: BaseException) -> str:
    """Return the reason for an early end as one line, for `Run.ended_by`.

    >>> end_reason(KeyboardInterrupt())
    'interrupted'
    >>> end_reason(ValueError("bad shape\\nand more"))
    'ValueError: bad shape'
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if type(error).__name__ == "SIGTERMException":  # Lightning's, at the first batch end after the signal
        return "terminated"
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    if "EADDRINUSE" in str(error):  # of torch.distributed's store
        port = os.environ.get("MASTER_PORT", "of rank 0")
        return f"the port {port} is taken; set MASTER_PORT to a free one, or unset it"
    if cause_of_failure(str(error)) == RANK_LOST:
        return ADVICE[RANK_LOST]
    if isinstance(error, OSError) and error.filename is not None:
        return of_file_system(error)
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


def memory_remedies(spec: RunSpec) -> str:
    """Return the flags that make a run need less memory, as a list in words.

    The global batch is not among them, because it does not change the memory of a micro-batch.
    """
    remedies = []
    if smaller := smaller_micro_batches(spec.micro_batch_size):
        remedies.append(f"--micro-batch-size {smaller[0]}")
    remedies.append(f"--sequence-length {max(2, spec.sequence_length // 2)} (other work)")
    if spec.recompute != "full":
        remedies.append("--recompute")
    if ENGINES[spec.engine].tensor_parallel:
        remedies.append(f"--tensor-parallel-size {2 * spec.tensor_model_parallel_size}")
    else:
        remedies.append("more --num-gpus with --strategy fsdp")
        remedies += [f"--tensor-parallel-size with --engine {name}" for name in _that_split(spec)[:1]]
    if spec.precision in ("fp32", "tf32"):
        remedies.append("--precision bf16")
    return ", ".join(remedies)


def _that_split(spec: RunSpec) -> list[str]:
    """Return the vendor's engines that split the layers of the spec's model and need no configuration file."""
    if spec.platform == "cpu" or spec.config is not None or spec.preset != "full":
        return []
    rows = (ENGINES[name] for name in VENDOR_ENGINES[spec.platform])
    return [engine.name for engine in rows if engine.tensor_parallel and not engine.own_configuration]


def out_of_memory(spec: RunSpec, rest: str = "") -> OutOfMemoryError:
    """Return the error of a training that ran out of memory, with configuration and remedies. rest: text to append."""
    return OutOfMemoryError(f"{OUT_OF_MEMORY}: {_configuration(spec)}; try {memory_remedies(spec)}{rest}")


@contextlib.contextmanager
def of_training(spec: RunSpec, *others: type[Exception]) -> Iterator[None]:
    """Turn an error of a device, another rank or a signal during training into a `RunError`.

    others: further exceptions that the framework raises for an invalid configuration.
    """
    failures: tuple[type[Exception], ...] = (RuntimeError, MemoryError, OSError, *others)
    try:
        yield
    except SystemExit as stop:  # Lightning raises it after Ctrl-C and SIGTERM
        raise RunError("interrupted; steps measured so far are kept") from stop
    except failures as error:
        if is_out_of_memory(error):
            raise out_of_memory(spec) from error
        raise RunError(f"training failed: {end_reason(error)}") from error


def _configuration(spec: RunSpec) -> str:
    """Return the configuration in a phrase, for the message of a run that failed.

    >>> spec = RunSpec(model="llama", preset="tiny", engine="torch", steps=1, warmup_steps=0, micro_batch_size=2,
    ...     global_batch_size=8, sequence_length=128, precision="fp32", num_gpus=1)
    >>> _configuration(spec)
    'llama (tiny), micro batch 2, global batch 8, sequence 128, fp32, 1 device'
    """
    devices = spec.num_gpus * spec.num_nodes
    return (
        f"{spec.model} ({spec.preset}), micro batch {spec.micro_batch_size}, global batch {spec.global_batch_size}, "
        f"sequence {spec.sequence_length}, {spec.precision}, {devices} device{'s' if devices > 1 else ''}"
    )
