"""A pytest plugin with the fixture `jobs` for the app that your fixture `jobs_app` returns.

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
    """The app under test. Define a fixture of this name."""
    raise pytest.UsageError("define a fixture `jobs_app` that returns your App, in conftest.py or next to the test")


@pytest.fixture
def jobs(jobs_app: App) -> Iterator[Jobs]:
    """Run jobs of the app in the test, capture the jobs it enqueues, and move its database's clock."""
    from trunkline.jobs.testing import Jobs

    jobs = Jobs(jobs_app)
    yield jobs
    jobs.clock.close()
