"""Quantities as text: how many digits and which unit a number has for a reader, in reports and messages alike.

None is "–": unmeasured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from tensorprimat.core.units import DAYS_PER_YEAR, GB, GIGA, SECONDS_PER_DAY, SECONDS_PER_HOUR

UNMEASURED = "–"
NOT_MEASURED = "not measured"  # where there is room for words
Form = Callable[[float | None], str]
"""Function that formats a number as text."""
ROUNDING_ERROR = 1e-12  # of a fraction; a mean of equal numbers differs from them by less


def count(value: float | None) -> str:
    """Return a whole number.

    >>> count(12345), count(None)
    ('12,345', '–')
    """
    if value is None:
        return UNMEASURED
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    >>> counted(1, "trial"), counted(0, "trial"), counted(1000, "step")
    ('1 trial', '0 trials', '1,000 steps')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def shortened_list(words: Sequence[str], most: int) -> str:
    """Return the first of some words, and how many more there are.

    >>> shortened_list(["a", "b"], 2), shortened_list(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def listed(words: Iterable[str]) -> str:
    """Return words as an enumeration; "" for none.

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', '')
    """
    words = list(words)
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def alternatives(words: Sequence[str]) -> str:
    """Return words as a choice.

    >>> alternatives(["a", "b", "c"]), alternatives(["a"])
    ('a, b or c', 'a')
    """
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def rate(value: float | None) -> str:
    """Return a rate, to about 4 digits.

    >>> [rate(v) for v in (107402.4, 99.567, 1.23456, 0.00123456)]
    ['107,402', '99.57', '1.235', '0.001235']
    """
    if value is None:
        return UNMEASURED
    if not 1e-4 <= abs(value) < 1e12 and value != 0:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def seconds(value: float | None) -> str:
    """Return a duration of a step: seconds, or milliseconds below a tenth of one.

    >>> [seconds(v) for v in (1234.5, 9.7634, 0.41234, 0.0051234)]
    ['1,234.5 s', '9.763 s', '0.412 s', '5.123 ms']
    """
    if value is None:
        return UNMEASURED
    if abs(value) >= 1e7:
        return f"{value:.4g} s"
    if abs(value) >= 100:
        return f"{value:,.1f} s"
    return f"{value:.3f} s" if abs(value) >= 0.1 or value == 0 else f"{1000 * value:.4g} ms"


def seconds_together(values: Iterable[float | None]) -> Form:
    """Return a function that formats durations shown together, all in one unit.

    >>> [seconds_together((0.124, 0.09545))(value) for value in (0.124, 0.09545)]
    ['124 ms', '95.45 ms']
    >>> [seconds_together((12.5, 0.05))(value) for value in (12.5, 0.05)]
    ['12.500 s', '0.050 s']
    """
    known = [abs(value) for value in values if value and math.isfinite(value)]
    if not known or max(known) >= MOST_MILLISECONDS or min(known) >= _LEAST_SECONDS:
        least = min(known, default=1.0)
        digits = 2 - math.floor(math.log10(least)) if least < 0.01 else 3
        return lambda value: (
            seconds(value) if value is None or abs(value) >= _LEAST_SECONDS else f"{value:.{digits}f} s"
        )
    return lambda value: UNMEASURED if value is None else f"{rate(1000 * value)} ms"


_LEAST_SECONDS = 0.1  # shorter durations are in milliseconds
MOST_MILLISECONDS = 10.0  # seconds; if the longest of several durations is not shorter, all are shown in seconds


def short_seconds(value: float) -> str:
    """Return a time for a sentence: whole seconds, with two digits below 10 s.

    >>> short_seconds(212.3), short_seconds(7.34), short_seconds(0.5)
    ('212 s', '7.3 s', '0.5 s')
    """
    return f"{count(value) if abs(value) >= 10 else significant(value, 2)} s"


def joules(value: float | None) -> str:
    """Return energy, in kJ from 10,000 J on.

    >>> joules(4321.5), joules(138_268.0)
    ('4,322 J', '138.3 kJ')
    """
    return UNMEASURED if value is None else f"{value:,.0f} J" if value < 1e4 else f"{value / 1000:,.1f} kJ"


def percent(value: float | None, digits: int | None = None) -> str:
    """Return a fraction. digits: decimals, where another figure sets them. Rounding errors of a sum count as zero.

    >>> percent(0.4237), percent(0.00412), percent(0.9, 0), percent(0.98333), percent(2.2e-16), percent(20.5)
    ('42.4 %', '0.41 %', '90 %', '98.3 %', '0 %', '2,050.0 %')
    """
    if value is None:
        return UNMEASURED
    if abs(value) < ROUNDING_ERROR:
        value = 0.0
    if digits is not None:
        return f"{100 * value:,.{digits}f} %"
    return f"{100 * value:,.1f} %" if abs(value) >= 0.1 else f"{100 * value:.2g} %"


def confidence_level(value: float) -> str:
    """Return a level of confidence, without digits that say nothing.

    >>> confidence_level(0.95), confidence_level(0.9833), confidence_level(0.9999)
    ('95 %', '98.3 %', '99.99 %')
    """
    shown = next((text for digits in range(3, 9) if (text := f"{100 * value:.{digits}g}") != "100"), "100")
    return f"{shown} %"


def change(share: float | None, digits: int = 1, *, unit: str = " %") -> str:
    """Return a change as a share of the earlier value, with its sign unless it rounds to zero.

    unit: "" for the first of two numbers that share the unit of the second.

    >>> change(0.0123), change(-0.5), change(None), change(0.0123, unit=""), change(2.5e9), change(-1e-9)
    ('+1.2 %', '−50.0 %', '–', '+1.2', '+2.5e+11 %', '0.0 %')
    """
    if share is None:
        return UNMEASURED
    form = f"+.{digits}f" if abs(share) < 1e6 else "+.3g"
    text = f"{100 * share:{form}}"
    return (text if float(text) else text[1:]).replace("-", "\N{MINUS SIGN}") + unit


def times(value: float | None, digits: int | None = None) -> str:
    """Return a ratio; more digits where it is close to 1. digits: decimals, where another figure sets them.

    >>> [times(v) for v in (1.2345, 1.0034, 12.345, 0.0123, 6027.87)]
    ['1.23x', '1.003x', '12.3x', '0.012x', '6,028x']
    """
    if value is None:
        return UNMEASURED
    if abs(value) >= 1e6:
        return f"{value:.3g}x"
    if abs(value) >= 100:
        return f"{value:,.0f}x"
    if digits is not None and round(value, digits) > 0:
        return f"{value:.{digits}f}x"
    digits = 1 if value >= 10 else 3 if abs(value - 1) < 0.05 else 2
    return f"{value:.{digits}f}x" if value >= 0.1 else f"{value:.2g}x"


def spelled_metric(name: str) -> str:
    """Return the key of a rate as people write it.

    >>> spelled_metric("tokens_per_second_per_gpu"), spelled_metric("avg_step_time_seconds")
    ('tokens/s/GPU', 'avg step time seconds')
    """
    return name.replace("_per_second", "/s").replace("_per_gpu", "/GPU").replace("_", " ")


def decimals_of_ratio(low: float, high: float) -> int:
    """Return the decimals that distinguish the ends of a ratio's interval.

    >>> decimals_of_ratio(1.22, 1.29), decimals_of_ratio(0.998, 1.004), decimals_of_ratio(0.0201, 0.0205)
    (2, 3, 4)
    """
    half, most = (high - low) / 2, 3 if high >= 0.1 else 6
    return min(most, max(2, math.ceil(-math.log10(half)))) if 0 < half < math.inf else 3


def fixed(value: float | None, decimals: int) -> str:
    """Return a number without a unit, with the decimals of its column.

    >>> fixed(1234.5, 2), fixed(None, 2)
    ('1,234.50', '–')
    """
    return UNMEASURED if value is None else f"{value:,.{decimals}f}"


def significant(value: float | None, digits: int = 4) -> str:
    """Return a number without a unit, to so many digits.

    >>> significant(12345.678, 6), significant(0.0123456), significant(None)
    ('12,345.7', '0.01235', '–')
    """
    return UNMEASURED if value is None else f"{value:,.{digits}g}"


class TypedNumber(float):
    """A number of a command line with the text that was typed, such as 1.5 with "150%", which a refusal repeats."""

    typed: str

    def __new__(cls, value: float, typed: str = "") -> TypedNumber:
        """Return the number; typed: its text."""
        number = super().__new__(cls, value)
        number.typed = typed
        return number


def as_stated(value: float) -> str:
    """Return a number that a flag, a setting, a file or a log states: as it was typed, or without needless digits.

    >>> as_stated(2.0), as_stated(0.95), as_stated(1e12), as_stated(TypedNumber(1.5, "150%"))
    ('2', '0.95', '1e+12', '150%')
    """
    return value.typed if isinstance(value, TypedNumber) else f"{value:g}"


def with_unit(unit: str, form: Callable[[float], str] = rate) -> Form:
    """Return a function that formats figures with a unit behind them.

    >>> microseconds(4.26e-6), gigahertz(1_980e6), celsius(61.4), loss(2.61), watts(None)
    ('4.3 µs', '1.98 GHz', '61 °C', '2.610', '–')
    >>> gigabytes(45.6789), gigabytes(0.00234), watts(691.34), watts(98.76), stated_watts(700.0)
    ('45.68 GB', '0.002 GB', '691 W', '98.8 W', '700 W')
    >>> stated_seconds(30.0), stated_seconds(0.05), stated_share(0.02), stated_share(0.005)
    ('30 s', '0.05 s', '2 %', '0.5 %')
    """
    return lambda value: UNMEASURED if value is None else f"{form(value)}{unit}"


microseconds = with_unit(" µs", lambda value: f"{1e6 * value:.1f}")
gigabytes = with_unit(" GB", lambda value: f"{value:,.2f}" if value >= 0.1 else f"{value:.3f}")
watts = with_unit(" W", lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
gigahertz = with_unit(" GHz", lambda value: f"{value / GIGA:.2f}")
celsius = with_unit(" °C", lambda value: f"{value:.0f}")
loss = with_unit("", lambda value: f"{value:.3f}" if abs(value) < 1e5 else f"{value:.4g}")
"""Forms of measured figures: of seconds, of GB (10**9 bytes), of hertz …"""
stated_seconds, stated_watts = with_unit(" s", as_stated), with_unit(" W", as_stated)
stated_share = with_unit(" %", lambda value: as_stated(100 * value))
"""Forms of what a flag, a setting, a limit or a constant of this program states."""


def of_data_sheet(value: float) -> str:
    """Return a number of a data sheet or another table of facts, as the table has it.

    >>> of_data_sheet(989.4), of_data_sheet(2250.0)
    ('989.4', '2,250')
    """
    return f"{value:,g}"


PLOT_DIGITS = {"point": 5, "tick": 12, "count": 15}
"""Significant digits of the numbers in plots, by kind: value of a row, number at an axis, step or line."""
PLOT_UNITS = {"seconds": "s", "power": "W", "clock": "GHz", "temperature": "°C"}
"""Units of the curves over steps; a loss has none."""


def in_plot(value: float, kind: str) -> str:
    """Return a number of a plot, never with an exponent. kind: a key of PLOT_DIGITS.

    The script of the HTML report formats by the same two tables.

    >>> in_plot(123456.7, "point"), in_plot(0.1 + 0.2, "tick"), in_plot(5e-05, "tick")
    ('123,460', '0.3', '0.00005')
    """
    return f"{Decimal(f'{value:.{PLOT_DIGITS[kind]}g}'):,f}"


def precise(value: float) -> str:
    """Return a number of a formula: at least 6 digits, so that the result is right to 5, and no exponent for counts.

    >>> precise(52_428_800), precise(642.34612), precise(0.00123456789), precise(1e15)
    ('52,428,800', '642.346', '0.00123457', '1e+15')
    """
    return count(value) if 1e5 <= abs(value) < 1e15 else significant(value, 6)


def signed(value: float) -> str:
    """Return a difference with its sign, to three digits.

    >>> signed(0.01234), signed(-2.0)
    ('+0.0123', '-2')
    """
    return f"{value:+.3g}"


def to_digits(value: float, digits: int) -> float:
    """Return a number rounded to so many significant digits.

    >>> to_digits(0.000123456, 4)
    0.0001235
    """
    return float(f"{value:.{digits}g}")


def stored(value: float) -> float:
    """Return a summary figure as files hold it: 3 decimals, or 4 significant digits where 3 decimals would lose more.

    >>> stored(13425.12345), stored(0.005065), stored(0.09792)
    (13425.123, 0.005065, 0.09792)
    """
    return round(value, 3) if abs(value) >= 1 else to_digits(value, 4)


def rounded(value: float | None, digits: int = 6) -> float | None:
    """Return a number for JSON with no more digits than it has; None for one that is not finite.

    >>> rounded(1 / 3), rounded(math.inf)
    (0.333333, None)
    """
    return None if value is None or not math.isfinite(value) else to_digits(value, digits)


def rounded_each(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document for JSON, in any depth, with every float `rounded`.

    >>> rounded_each({"a": [1 / 3, 2, math.nan], "b": "c"})
    {'a': [0.333333, 2, None], 'b': 'c'}
    """

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: of(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return list(map(of, value))
        return rounded(value) if isinstance(value, float) else value

    return {name: of(value) for name, value in document.items()}


def rounded_interval(
    middle: float | None, low: float | None, high: float | None, digits: int = 6
) -> tuple[float | None, float | None, float | None]:
    """Return a figure and the ends of its interval for JSON, with the digits that distinguish them.

    They have `digits` significant digits, or as many more as give half the width of a narrow interval two.

    >>> rounded_interval(1.25, 1.2, 1.3), rounded_interval(None, None, None)
    ((1.25, 1.2, 1.3), (None, None, None))
    >>> rounded_interval(13425.12345, 13425.12301, 13425.12389)
    (13425.12345, 13425.12301, 13425.12389)
    """
    if low is not None and high is not None and 0 < high - low < math.inf:
        largest = max(abs(low), abs(high))
        digits = max(digits, 2 + math.ceil(math.log10(largest) - math.log10((high - low) / 2)))
    most = 17  # digits of any float
    middle, low, high = (rounded(value, min(digits, most)) for value in (middle, low, high))
    return middle, low, high


def size(amount: float) -> str:
    """Return an amount of memory or disk in bytes for a sentence, to three digits.

    >>> [size(amount) for amount in (1_152.9e9, 113.28e9, 41_370_000_000, 2.5e9, 999.7e6, 3.2e6, 1000)]
    ['1,153 GB', '113 GB', '41.4 GB', '2.5 GB', '1 GB', '3.2 MB', '1 kB']
    """
    if amount >= 100 * GB:
        return f"{amount / GB:,.0f} GB"
    units = ((GB, "GB"), (10**6, "MB"))
    unit, name = next(((unit, name) for unit, name in units if to_digits(amount, 3) >= unit), (1000, "kB"))
    return f"{amount / unit:.3g} {name}"


def binary_size(amount: int) -> str:
    """Return the size of a message or a buffer, which is a power of two.

    >>> binary_size(2**30), binary_size(3 * 2**19), binary_size(512)
    ('1 GiB', '1.5 MiB', '512 B')
    """
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    unit, name = next(((unit, name) for unit, name in units if amount >= unit), (1, "B"))
    return f"{amount / unit:g} {name}"


def time_left(value: float) -> str:
    """Return seconds as minutes:seconds, or hours:minutes:seconds from one hour on.

    >>> time_left(108.2), time_left(7322.0)
    ('1:48', '2:02:02')
    """
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rough_time(value: float) -> str:
    """Return seconds as people say how long something takes.

    >>> rough_time(42), rough_time(600), rough_time(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if value < 90:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 90 * 60 else f"{value / SECONDS_PER_HOUR:.1f} h"


def digits_of(value: float) -> str:
    """Return a number for a sentence or a formula, to about 4 digits.

    >>> digits_of(107402.44), digits_of(1.23456)
    ('107,402.4', '1.235')
    """
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def unit_of_long_time(value: float) -> tuple[str, float]:
    """Return the name of the unit in which a long time is written, and its seconds.

    >>> [unit_of_long_time(v)[0] for v in (12.25, 1800.0, 90_000.0, 8_640_000.0, 9.5e7)]
    ['seconds', 'hours', 'hours', 'days', 'years']
    """
    hours = value / SECONDS_PER_HOUR
    if hours < 0.1:
        return "seconds", 1.0
    if hours < 72:
        return "hours", SECONDS_PER_HOUR
    year = DAYS_PER_YEAR * SECONDS_PER_DAY
    return ("days", SECONDS_PER_DAY) if value < year else ("years", year)


def long_time(value: float | None) -> str:
    """Return a long time.

    >>> [long_time(v) for v in (12.25, 1800.0, 90_000.0, 8_640_000.0, 9.5e7)]
    ['12.250 s', '0.50 hours', '25 hours', '100 days', '3.01 years']
    """
    if value is None:
        return UNMEASURED
    unit, per_unit = unit_of_long_time(value)
    if unit == "seconds":
        return seconds(value)
    below_ten, above = {"hours": (2, 0), "days": (0, 0), "years": (2, 1)}[unit]
    digits = below_ten if value < 10 * per_unit else above
    return f"{value / per_unit:,.{digits}f} {unit}"


def money(value: float | None) -> str:
    """Return USD; below ten cents two digits, so that a price is not zero.

    >>> [money(v) for v in (2.1, 123456.7, -20.0, 0.05, 0.0022219, 0.0)]
    ['$2.10', '$123,457', '-$20.00', '$0.05', '$0.0022', '$0.00']
    """
    if value is None:
        return UNMEASURED
    sign, amount = "-" if value < 0 else "", abs(value)
    if 0 < amount < 0.1:
        decimals = f"{Decimal(f'{amount:.2g}'):f}".partition(".")[2]
        return f"{sign}$0.{decimals:0<2}"
    return f"{sign}${amount:,.2f}" if amount < 1000 else f"{sign}${amount:,.0f}"


def with_prefix(unit: str) -> Form:
    """Return a function that formats figures with T, G, M, k or m before the unit.

    >>> with_prefix("FLOP")(51_470_401_536.0), with_prefix("tokens")(2500.0), with_prefix("J")(0.04968)
    ('51.47 GFLOP', '2.5 ktokens', '49.68 mJ')
    """

    def form(value: float | None) -> str:
        if value is None:
            return UNMEASURED
        for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
            if value >= size:
                return f"{value / size:.4g} {prefix}{unit}"
        return f"{1000 * value:.4g} m{unit}"

    return form


def moment(stamp: str | None) -> str | None:
    """Return an ISO 8601 time stamp as people write it; anything else as it is.

    >>> moment("2025-11-03T14:12:09.123456+00:00"), moment("yesterday")
    ('2025-11-03 14:12:09 UTC', 'yesterday')
    """
    if stamp is None:
        return None
    parts = re.fullmatch(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?", stamp)
    if parts is None:
        return stamp
    date, time, zone = parts.groups()
    zone = {"Z": "UTC", "+00:00": "UTC", "+0000": "UTC", None: ""}.get(zone, zone)
    return f"{date} {time} {zone}".rstrip()


def shown_value(value: object) -> str:
    """Return a value as it is, a truth value as yes or no."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
