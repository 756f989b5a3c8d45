"""Trunkline: one Postgres log, every way to consume it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trunkline.client import Client, LeaseLost, SyncClient
    from trunkline.types import NewMessage

__version__ = "0.1.0"
__all__ = ["Client", "LeaseLost", "NewMessage", "SyncClient", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the client on first access, so that the command line starts without it."""
    if name in ("Client", "SyncClient", "LeaseLost"):
        from trunkline import client

        return getattr(client, name)
    if name == "NewMessage":
        from trunkline.types import NewMessage

        return NewMessage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
