"""Installed packages as their metadata describe them; no package is imported."""

from __future__ import annotations

import contextlib
from importlib import metadata


def find_package(name: str) -> metadata.Distribution | None:
    """Return the installed package that has this name and states its version; None without one.

    A folder of metadata that an interrupted removal or installation left behind states no version and is passed over.
    """
    for package in metadata.distributions(name=name):
        with contextlib.suppress(KeyError, OSError):  # newer versions of Python raise it
            if package.version:
                return package
    return None
