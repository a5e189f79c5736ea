"""Installed packages as their metadata describe them; no package is imported."""

from __future__ import annotations

from importlib import metadata


def find_package(name: str) -> metadata.Distribution | None:
    """Return the installed package that has this name and states its version; None without one.

    A folder of metadata that an interrupted removal or installation left behind states no version and is passed over.
    """
    return next((one for one in metadata.distributions(name=name) if _version_of(one)), None)


def _version_of(package: metadata.Distribution) -> str | None:
    """Return the version in a package's metadata; None where they state none."""
    try:
        return package.version or None
    except (KeyError, OSError):  # newer versions of Python raise it
        return None
