from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.push.receivers import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running
