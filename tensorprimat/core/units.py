"""Units as the project uses them: SI, but GB and ms in reports and in the fields and keys that name them."""

from __future__ import annotations

MIB = 2**20
GB = 10**9  # every *_gb key of a result
GIB = 2**30  # allocators, Primus' "hip mem usage" and the vendors' nameplate "GB" count it, whatever they call it

MEGA = 1e6  # hertz of a MHz, in which drivers report clocks
GIGA = 10**9
TERA = 10**12
NUMBER_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}  # by precision
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR
DAYS_PER_YEAR = 365.25
