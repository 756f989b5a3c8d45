"""Sessions for two- and three-session tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Connection
from tests.races.sessions import Session


@pytest.fixture
def session(connect: Callable[[], Connection]) -> Iterator[Callable[[], Session]]:
    made: list[Session] = []

    def make() -> Session:
        made.append(Session(connect()))
        return made[-1]

    yield make
    for one in made:
        # Stop all threads that still wait, so that a failed test does not hang.
        one.conn.cancel_safe(timeout=5)
        one.close()


@pytest.fixture
def main(session: Callable[[], Session]) -> Session:
    return session()
