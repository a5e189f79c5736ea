"""Reading of the tables in tensorprimat/data."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]  # only there before 3.11


def read_data(name: str) -> dict[str, Any]:
    """Return the document of data/NAME.toml."""
    text = (files("tensorprimat") / "data" / f"{name}.toml").read_text("utf-8")
    document: dict[str, Any] = tomllib.loads(text)
    return document
