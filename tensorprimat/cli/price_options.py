"""`--price`, the same in every command that shows costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from tensorprimat.cli.shared_options import takes
from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import TypedNumber, as_stated

PRICE = 'USD per hour of one GPU: "H100=2.10", "H100=2.10,MI300X=1.85", "cpu=0.10", or 2.10 for every device.'
Prices = Annotated[list[str] | None, takes("[GPU=]USD", PRICE)]


def typed_prices(typed: Sequence[str] | None) -> dict[str, float]:
    """Return USD per GPU-hour by the name of a device. Raises UsageError that names the flag."""
    prices: dict[str, float] = {}
    for name, usd in (_price(part) for text in typed or () for part in _parts(text)):
        if prices.setdefault(name, usd) != usd:
            raise UsageError(
                f"--price {name or 'for every device'}: stated twice, {as_stated(prices[name])} and {as_stated(usd)}"
            )
    return prices


def _parts(text: str) -> list[str]:
    """Split a list of prices; a comma inside one amount is refused and not read as a second price.

    >>> _parts("H100=2.10,MI300X=1.85"), _parts("2.10")
    (['H100=2.10', 'MI300X=1.85'], ['2.10'])
    """
    parts = text.split(",")
    if len(parts) > 1 and not all("=" in part for part in parts):
        raise UsageError(f'--price {text}: write it like "H100=2.10,MI300X=1.85", in USD per hour of one GPU')
    return parts


def _price(text: str) -> tuple[str, float]:
    """Return name and USD; an amount alone has the empty name.

    >>> _price("H100=2.10"), _price("2.10")
    (('H100', 2.1), ('', 2.1))
    """
    name, equals, amount = text.rpartition("=")
    usd = finite_number(amount)
    if usd is None or usd <= 0 or bool(equals) != bool(name.strip()) or "=" in name:
        raise UsageError(f'--price {text}: write it like "H100=2.10", in USD per hour of one GPU')
    return name.strip(), TypedNumber(usd, amount.strip())


def finite_number(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
