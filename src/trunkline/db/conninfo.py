"""Connection strings: validation and connect timeout."""

from __future__ import annotations

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trunkline.errors import SettingsError

CONNECT_SECONDS = 5
"""Connect timeout in seconds, unless the connection string sets its own."""


def with_connect_timeout(conninfo: str) -> str:
    """Return the connection string with a connect timeout."""
    if "connect_timeout" in parsed(conninfo):
        return conninfo
    return make_conninfo(conninfo, connect_timeout=CONNECT_SECONDS)


def parsed(conninfo: str) -> dict[str, object]:
    """Return the parameters of a connection string. Raises SettingsError if it is invalid."""
    try:
        return dict(conninfo_to_dict(conninfo))
    except (ProgrammingError, UnicodeError):
        # Do not show the text: it may contain a password.
        raise SettingsError(
            "the database URL is invalid",
            hint="Use postgresql://user@host:5432/database, and encode special characters as %XX.",
        ) from None
