"""The SQL functions against a model: whatever the order of calls, they agree.

HYPOTHESIS_PROFILE=long runs many more and longer histories.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import Connection
from tests.property.machine import Kernel, Sessions

EVERY_RUN = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
PROFILES = {"ci": EVERY_RUN, "long": settings(EVERY_RUN, max_examples=2000, stateful_step_count=120)}


@pytest.mark.timeout(7200)
def test_sql_agrees_with_model(connect: Callable[[], Connection]) -> None:
    """Dense offsets, acked stays acked, attempts count, positions as promised, nothing lost (G1, G4-G7, Q1-Q4, Q7)."""
    sessions = Sessions(connect(), [connect(), connect()])
    run_state_machine_as_test(lambda: Kernel(sessions), settings=PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "ci")])  # type: ignore[arg-type]
