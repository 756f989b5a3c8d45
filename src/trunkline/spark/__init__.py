"""Spark source and sink for topics, and the pipelines built on them. Needs `trunkline[spark]` and Java 17."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trunkline.spark.session.session import open_session, register

__all__ = ["open_session", "register"]


def __getattr__(name: str) -> Any:
    # Imported lazily: most of the package works without a session, and Spark's planner imports it for each query.
    if name in __all__:
        from trunkline.spark.session import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
