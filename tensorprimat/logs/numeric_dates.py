"""Dates with the day or the month first, such as 25/11/2026 12:00:07, written with the year first: 2026-11-25 12:00:07.

The dates of a log show their order: a number above 12 is a day, and a date that follows another one within two days in
one order only has that order. With points the day is first. Without such a sign, dates with slashes are left as they
are, and readers take the month as first, as frameworks print them; dates with hyphens are not read. Hours with AM or PM
become hours of 24.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Literal

from tensorprimat.core.notices import Notice

Order = Literal["day", "month", "unknown", "both"]

_STAMP = re.compile(
    rb"(?<![\d./-])(?P<date>(?P<first>\d{1,2})(?P<mark>[/.-])(?P<second>\d{1,2})(?P=mark)(?P<year>[12]\d{3}))"
    rb"(?:, ?|[ T]{1,2})"
    rb"(?P<hour>\d{1,2}):(?P<rest>\d\d:\d\d(?:[.,]\d{1,9})?)(?: ?(?P<half>[AaPp])[Mm]\b)?(?![\d:])"
)
_MONTHS = 12
_NEXT_DAYS = 2  # at most, between two dates of a training that goes on
_SLASH, _POINT = b"/", b"."


@dataclass
class DateOrders:
    """The orders of a log's dates, by the mark between their numbers."""

    orders: dict[bytes, Order] = field(default_factory=dict)
    examples: dict[bytes, str] = field(default_factory=dict)
    """A date of which the order is not known."""
    _last: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, stamps: Iterable[re.Match[bytes]]) -> None:
        """Add what some stamps show."""
        for stamp in stamps:
            mark, numbers = stamp["mark"], (int(stamp["first"]), int(stamp["second"]), int(stamp["year"]))
            known = self.orders.setdefault(mark, "day" if mark == _POINT else "unknown")
            if (before := self._last.get(mark)) == numbers:
                continue
            self._last[mark] = numbers
            shown = _order_of(numbers, before)
            if shown and known not in (shown, "both"):
                self.orders[mark] = shown if known == "unknown" or (mark == _POINT and before is None) else "both"
            if shown is None or self.orders[mark] == "both":
                self.examples.setdefault(mark, stamp["date"].decode())

    def unclear(self, *, with_slashes: bool) -> Notice | None:
        """Return the reason why dates are not used; None if all are. with_slashes: also name an assumption on these."""
        for mark, order in self.orders.items():
            example = self.examples.get(mark)
            if order == "both":
                return Notice("dates_mixed", "dates", example=example)
            if order == "unknown" and mark != _SLASH:
                return Notice("dates_unclear", "dates", example=example)
            if order == "unknown" and with_slashes:
                return Notice("dates_assumed", "dates", example=example)
        return None


def _order_of(numbers: tuple[int, int, int], before: tuple[int, int, int] | None) -> Order | None:
    """Return the order that a date shows by a number above 12, or by its distance from the date before it.

    >>> _order_of((25, 11, 2026), None), _order_of((11, 25, 2026), None), _order_of((5, 11, 2026), None)
    ('day', 'month', None)
    >>> _order_of((6, 11, 2026), (5, 11, 2026)), _order_of((11, 6, 2026), (11, 5, 2026))
    ('day', 'month')
    """
    first, second, _ = numbers
    if (first > _MONTHS) != (second > _MONTHS):
        return "day" if first > _MONTHS else "month"
    if before is None:
        return None
    orders: tuple[Order, ...] = ("day", "month")
    near = [order for order in orders if _follows(_date(numbers, order), _date(before, order))]
    return near[0] if len(near) == 1 else None


def _date(numbers: tuple[int, int, int], order: str) -> date | None:
    first, second, year = numbers
    day, month = (first, second) if order == "day" else (second, first)
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _follows(one: date | None, before: date | None) -> bool:
    return one is not None and before is not None and 0 <= (one - before).days <= _NEXT_DAYS


def are_in(head: bytes) -> bool:
    """Return True if a text has dates that may have to be written in another way."""
    stamps = list(_STAMP.finditer(head))
    orders = DateOrders()
    orders.add(stamps)
    are_plain = all(
        len(stamp["first"]) == len(stamp["second"]) == len(stamp["hour"]) == 2 and stamp["half"] is None
        for stamp in stamps
    )
    return bool(stamps) and not (are_plain and orders.orders == {_SLASH: "month"})


def orders_in(blocks: Iterable[bytes]) -> DateOrders:
    """Return the orders of the dates of a log, which is read up to the block in which all are known."""
    orders = DateOrders()
    for block in blocks:
        orders.add(_STAMP.finditer(block))
        if orders.orders and "unknown" not in orders.orders.values():
            break
    return orders


def with_years_first(blocks: Iterable[bytes], orders: Mapping[bytes, Order]) -> Iterator[bytes]:
    """Yield blocks of whole lines with the year first in every date of known order."""
    for block in blocks:
        yield _STAMP.sub(partial(_year_first, orders), block)


def _year_first(orders: Mapping[bytes, Order], stamp: re.Match[bytes]) -> bytes:
    """Return a stamp with the year first; one that no calendar has as it is, and one of both orders as no reader's."""
    mark, hour = stamp["mark"], int(stamp["hour"])
    order = orders.get(mark, "unknown")
    if order == "both":
        return stamp[0].replace(_SLASH, _POINT)
    if order == "unknown":
        if mark != _SLASH:
            return stamp[0]
        order = "month"
    numbers = (int(stamp["first"]), int(stamp["second"]), int(stamp["year"]))
    if (moment := _date(numbers, order)) is None or (stamp["half"] and not 1 <= hour <= _MONTHS):
        return stamp[0].replace(_SLASH, _POINT)
    if stamp["half"]:
        hour = hour % _MONTHS + _MONTHS * (stamp["half"] in b"Pp")
    return b"%s %02d:%s" % (moment.isoformat().encode(), hour, stamp["rest"])
