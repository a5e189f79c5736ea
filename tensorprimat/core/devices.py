"""Vendor of a device by the words in its name. Only what is certain; None otherwise."""

from __future__ import annotations

import re

from tensorprimat.core.records import Platform

_VENDORS: tuple[tuple[Platform, re.Pattern[str]], ...] = (
    ("cpu", re.compile(r"\bCPU\b|\bXeon\b|\bEPYC\b|\bRyzen\b", re.IGNORECASE)),
    ("amd", re.compile(r"\bAMD\b|\bInstinct\b|\bMI\d{3}[A-Z]{0,2}\b|\bgfx\d{3,4}|\bRadeon\b", re.IGNORECASE)),
    (
        "nvd",
        re.compile(
            r"\bNVIDIA\b|\bTesla\b|\bGeForce\b|\bQuadro\b|\bRTX\b|\bGrace\b"
            r"|(?<![A-Za-z0-9])(?:G?[ABHV]\d{2,3}|GB?200|GH200|L4|L40S?|T4|P100)(?![0-9])",
            re.IGNORECASE,
        ),
    ),
)


def platform_of(device_name: str | None) -> Platform | None:
    """Return the platform of a device, by the words in its name; None where they leave it open.

    >>> platform_of("AMD Instinct MI300X"), platform_of("NVIDIA H100 80GB HBM3"), platform_of("Unit 7")
    ('amd', 'nvd', None)
    """
    if not device_name:
        return None
    return next((platform for platform, words in _VENDORS if words.search(device_name)), None)
