"""Shared base of the resource managers of a client, such as `client.topics`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from trunkline.codec import duration
from trunkline.db.pool import Connection
from trunkline.runtime.session import Session

S = TypeVar("S")


class Resource:
    """Manages one kind of resource. Each call is a separate transaction."""

    def __init__(self, session: Callable[[], Session]) -> None:
        self._session = session

    def _reading(self) -> AbstractAsyncContextManager[Connection]:
        return self._session().connection()

    def _writing(self) -> AbstractAsyncContextManager[Connection]:
        return self._session().connection(writing=True)


def settings(**values: Any) -> dict[str, Any]:
    """Return the settings that are not None, with durations in text form converted to timedeltas."""
    spans = {"retention", "hard_retention", "lease", "backoff_base", "backoff_cap", "ttl", "delivery_delay", "history"}
    return {name: duration(value) if name in spans else value for name, value in values.items() if value is not None}
