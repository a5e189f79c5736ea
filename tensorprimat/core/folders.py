"""The folder in which commands write and look for results unless a flag names another."""

from __future__ import annotations

from pathlib import Path

DEFAULT_FOLDER = Path("output")
