"""Moments in ISO 8601, as results contain them, in an order that time zones do not change."""

from __future__ import annotations

from datetime import datetime, timezone


def seconds_since_1970(text: str | None) -> float | None:
    """Return the seconds since 1970 of a moment; without a time zone it is read as UTC. None for another text.

    >>> seconds_since_1970("1970-01-01T09:00:01+09:00"), seconds_since_1970("1970-01-01T00:00:01")
    (1.0, 1.0)
    """
    try:
        moment = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
