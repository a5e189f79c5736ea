"""Number of examples that a property test draws: few in `make test`, more in `make test-faults`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("TENSORPRIMAT_TEST_EXAMPLES", "1"))
"""Factor on the number of examples of a test (`make test-faults` sets the variable)."""


def examples(number: int) -> settings:
    """Return the settings of a property test that draws `number` examples, or a multiple of it."""
    return settings(
        max_examples=number * FACTOR,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
