"""Number of examples that a property test draws: few in `make test`, more in `make test-faults`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FACTOR = "TENSORPRIMAT_TEST_EXAMPLES"
"""Environment variable with the factor on the number of examples (`make test-faults` sets it)."""


def examples(number: int) -> settings:
    """Return the settings of a property test that draws `number` examples, or a multiple of it."""
    return settings(
        max_examples=number * int(os.environ.get(FACTOR, "1")),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
