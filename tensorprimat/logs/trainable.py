"""Lines in which a framework states whether every parameter trains: LoRA and frozen layers are other work.

LitGPT counts exactly; Lightning's summary (NeMo prints it too) rounds to three digits, so that only a zero is exact.
"""

from __future__ import annotations

import re
from typing import Any

_EXACT = re.compile(r"^Number of (?P<kind>trainable|non-trainable) parameters: (?P<count>\d[\d,]{0,20})$")  # LitGPT
_ROUNDED = re.compile(
    r"(?:^|\s)(?P<count>\d{1,4}(?:,\d{3}|\.\d{1,3})?)(?: (?P<unit>[KMBT]))?\s+(?P<kind>Trainable|Non-trainable) params$"
    r"|(?:^|\s)(?P<rich_kind>Trainable|Non-trainable) params: (?P<rich_count>\d{1,4}(?:,\d{3}|\.\d{1,3})?)"
    r"(?: (?P<rich_unit>[KMBT]))?$"
)
_MARK = "rainable param"


def note_counts(text: str, found: dict[str, Any]) -> None:
    """Note a line's counts in `found`, by "trainable" and "non-trainable": a number, or True for a rounded one."""
    if _MARK not in text:
        return
    line = text.strip()
    if exact := _EXACT.match(line):
        found[exact["kind"]] = int(exact["count"].replace(",", ""))
    elif rounded := _ROUNDED.search(line):
        count_text = rounded["count"] or rounded["rich_count"]
        found[(rounded["kind"] or rounded["rich_kind"]).lower()] = float(count_text.replace(",", "")) != 0


def config_of(found: dict[str, Any]) -> dict[str, str]:
    """Return the fields of TrainingConfig that follow: peft "none" where all train, "frozen" where some do not.

    For a model that is built after the summary, the counts are 0 and state nothing.
    """
    if not found.get("trainable") or "non-trainable" not in found:
        return {}
    return {"peft": "frozen" if found["non-trainable"] else "none"}


def counted_model(found: dict[str, Any]) -> dict[str, int]:
    """Return the fields of Model that exact counts give."""
    trained, frozen = found.get("trainable"), found.get("non-trainable")
    if isinstance(trained, bool) or isinstance(frozen, bool) or not trained or frozen is None:
        return {}
    return {"trainable_parameters": trained, "parameters": trained + frozen}
