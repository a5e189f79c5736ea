"""Names of devices: found in text, shortened, and with their vendor. None where the name leaves it open."""

from __future__ import annotations

import re

from tensorprimat.core.result import Platform

_VENDORS: tuple[tuple[Platform, re.Pattern[str]], ...] = (
    ("cpu", re.compile(r"\bCPU\b|\bXeon\b|\bEPYC\b|\bRyzen\b", re.IGNORECASE)),
    ("amd", re.compile(r"\bAMD\b|\bInstinct\b|\bMI\d{3}[A-Z]{0,2}\b|\bgfx\d{3,4}|\bRadeon\b", re.IGNORECASE)),
    ("nvd", re.compile(
        r"\bNVIDIA\b|\bTesla\b|\bGeForce\b|\bQuadro\b|\bRTX\b|\bGrace\b"
        r"|(?<![A-Za-z0-9])(?:G?[ABHV]\d{2,3}|GB?200|GH200|L4|L40S?|T4|P100)(?![0-9])", re.IGNORECASE)),
)  # fmt: skip


def platform_of(device_name: str | None) -> Platform | None:
    """Return the platform of a device, by the words in its name; None where they leave it open.

    >>> platform_of("AMD Instinct MI300X"), platform_of("NVIDIA H100 80GB HBM3"), platform_of("Unit 7")
    ('amd', 'nvd', None)
    """
    if not device_name:
        return None
    return next((platform for platform, words in _VENDORS if words.search(device_name)), None)


_NOISE = re.compile(
    r"\((?:r|tm|c)\)|\b(?:nvidia|amd|instinct|intel|geforce|tesla|graphics|genuine|authentic)\b|\b\d+-core\b"
    r"|\b(?:processor|cpu)\b|@.*$|\b\d+\s?gb\b|\bhbm\d\w*",
    re.IGNORECASE,
)


def short_device(name: str) -> str:
    """Return a device's name without its vendor, memory and trademarks; the name itself where nothing else is left.

    >>> [short_device(name) for name in ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "NVIDIA A100-SXM4-80GB")]
    ['H100', 'MI300X', 'A100-SXM4']
    >>> short_device("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz"), short_device("AMD EPYC 9654 96-Core Processor")
    ('Xeon Platinum 8480C', 'EPYC 9654')
    """
    return " ".join(_NOISE.sub(" ", name).split()).strip(" -") or name


_IN_TEXT = re.compile(
    r"(?:AMD )?(?:Instinct )?\bMI(?:100|210|25\d[X]?|300[AXC]|308X|325X|350X|355X)(?: OAM)?\b"
    r"|\bNVIDIA (?:DGX )?(?:Tesla |GeForce |RTX |Quadro )?"
    r"[ABHVLTP]\d{1,4}S?(?:[ -](?:SXM\d?|PCIe|NVL|HBM3|\d{2,3}GB)){0,4}\b"
    r"|\b(?:NVIDIA (?:GeForce |Quadro )?|GeForce |Quadro )[RG]TX (?:PRO )?\d{4}"
    r"(?: (?:Ti|SUPER|SFF|Ada|Generation|Blackwell|Max-Q|Workstation|Server|Edition|Laptop|GPU|D)\b)*"
    r"|\bNVIDIA G[BH]\d{3}\b|\b(?:Tesla [VPT]\d{1,3}(?:-[A-Z0-9]+){0,3})\b"
)


def find_name(text: str) -> str | None:
    """Return the first device name in a text, spelled as there.

    >>> find_name("CUDA capacity: NVIDIA H100 with 94.99GiB memory")
    'NVIDIA H100'
    >>> find_name("| 0  NVIDIA GeForce RTX 4090   Off |"), find_name("Quadro RTX 8000, NVIDIA RTX 6000 Ada Generation")
    ('NVIDIA GeForce RTX 4090', 'Quadro RTX 8000')
    """
    match = _IN_TEXT.search(text)
    return match.group(0) if match else None
