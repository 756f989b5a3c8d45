# Written by tools/unasync.py from src/trunkline/client/resource.py; change that file, not this one.
"""Shared base of the resource managers of a client, such as `client.topics`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from trunkline.db.sync.pool import Connection
from trunkline.runtime.sync.session import Session


class Resource:
    """Manages one kind of resource. Each call is a separate transaction."""

    def __init__(self, session: Callable[[], Session]) -> None:
        self._session = session

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._session().connection()

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._session().connection(writing=True)
