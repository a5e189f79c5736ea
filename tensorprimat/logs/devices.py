"""Device names in running text. Only what is certain; None otherwise."""

from __future__ import annotations

import re

from tensorprimat.core.devices import platform_of

__all__ = ["find_name", "platform_of"]

_IN_TEXT = re.compile(
    r"(?:AMD )?(?:Instinct )?\bMI(?:100|210|25\d[X]?|300[AXC]|308X|325X|350X|355X)(?: OAM)?\b"
    r"|\bNVIDIA (?:DGX )?(?:Tesla |GeForce |RTX |Quadro )?"
    r"[ABHVLTP]\d{1,4}S?(?:[ -](?:SXM\d?|PCIe|NVL|HBM3|\d{2,3}GB)){0,4}\b"
    r"|\bNVIDIA G[BH]\d{3}\b|\b(?:Tesla [VPT]\d{1,3}(?:-[A-Z0-9]+){0,3})\b"
)


def find_name(text: str) -> str | None:
    """Return the first device name in a text, spelled as there.

    >>> find_name("CUDA capacity: NVIDIA H100 with 94.99GiB memory")
    'NVIDIA H100'
    """
    match = _IN_TEXT.search(text)
    return match.group(0) if match else None
