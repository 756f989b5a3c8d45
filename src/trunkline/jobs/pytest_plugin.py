"""The pytest plug-in: a fixture `jobs` for the app that your fixture `jobs_app` answers.

@pytest.fixture
def jobs_app() -> App:
    return app
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trunkline.jobs.app import App
    from trunkline.jobs.testing import Jobs


@pytest.fixture
def jobs_app() -> App:
    """The app under test: define a fixture of this name."""
    raise pytest.UsageError("define a fixture `jobs_app` that answers your App, in conftest.py or next to the test")


@pytest.fixture
def jobs(jobs_app: App) -> Iterator[Jobs]:
    """Runs jobs of the app in the test, captures what it enqueues, and moves the clock of its database."""
    from trunkline.jobs.testing import Jobs

    made = Jobs(jobs_app)
    yield made
    made.clock.close()
