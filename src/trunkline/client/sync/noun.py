# Written by tools/unasync.py from src/trunkline/client/noun.py; change that file, not this one.
"""Shared base of the resource managers of a client, such as `client.topics`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from trunkline.client.sync.runtime import Runtime
from trunkline.codec import duration
from trunkline.db.sync.pool import Connection

S = TypeVar("S")


class Noun:
    """Manages one kind of resource. Each call is a separate transaction."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._runtime().connection()

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._runtime().connection(writing=True)


def settings(**values: Any) -> dict[str, Any]:
    """Return the settings that are not None, with durations in text form converted to timedeltas."""
    spans = {"retention", "hard_retention", "lease", "backoff_base", "backoff_cap", "ttl", "delivery_delay", "history"}
    return {name: duration(value) if name in spans else value for name, value in values.items() if value is not None}
