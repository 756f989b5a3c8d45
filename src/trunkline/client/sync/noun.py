# Written by tools/unasync.py from src/trunkline/client/noun.py; change that file, not this one.
"""What the nouns of a client have in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from trunkline.client.sync.runtime import Runtime
from trunkline.db.codec import duration
from trunkline.db.sync.pool import Connection

S = TypeVar("S")


class Noun:
    """The verbs on one kind of thing; each call is a transaction of its own."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._runtime().connection()

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._runtime().connection(writing=True)


def settings(**given: Any) -> dict[str, Any]:
    """Settings as the database takes them: durations given as text become timedeltas, what is None is left out."""
    spans = {"retention", "hard_retention", "lease", "backoff_base", "backoff_cap", "ttl", "delivery_delay", "history"}
    return {name: duration(value) if name in spans else value for name, value in given.items() if value is not None}
