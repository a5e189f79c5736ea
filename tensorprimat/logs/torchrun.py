"""Number of processes, one for each GPU, that a command line of torchrun in a log starts."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMMAND = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_FLAG = re.compile(r"--(nnodes|nproc[-_]per[-_]node|standalone)\b(?:[= ] ?[\"']?([^\s\"'\\]+))?")


def gpus_in(lines: Iterable[str]) -> int | None:
    """Return nnodes × nproc_per_node of the last command; None without one, and where either is not a number.

    A command may go on over lines that end in a backslash. One node is the default of torchrun.

    >>> gpus_in(["torchrun --nnodes=2 \\\\", "  --nproc-per-node 8 train.py"])
    16
    >>> gpus_in(["torchrun --nproc_per_node=gpu train.py"])
    """
    found, command = None, ""
    for line in lines:
        if command or _COMMAND.search(line):
            command = f"{command} {line.rstrip()}"
            if not command.endswith("\\"):
                found, command = _processes(command), ""
            command = command.removesuffix("\\")
    return found


def _processes(command: str) -> int | None:
    flags = {name.replace("_", "-"): value for name, value in _FLAG.findall(command)}
    nodes = "1" if "standalone" in flags else flags.get("nnodes", "1")
    of_node = flags.get("nproc-per-node", "")
    return int(nodes) * int(of_node) or None if nodes.isdecimal() and of_node.isdecimal() else None
