"""Connection strings: whether they can be read, and how long a connection may take."""

from __future__ import annotations

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trunkline.errors import SettingsError

CONNECT_SECONDS = 5
"""How long a server that does not respond is waited for, unless the connection string says otherwise."""


def with_connect_timeout(conninfo: str) -> str:
    """Return the connection string with a limit on the time that connecting takes."""
    if "connect_timeout" in parsed(conninfo):
        return conninfo
    return make_conninfo(conninfo, connect_timeout=CONNECT_SECONDS)


def parsed(conninfo: str) -> dict[str, object]:
    """Return the parameters of a connection string; raises SettingsError if it is none."""
    try:
        return dict(conninfo_to_dict(conninfo))
    except (ProgrammingError, UnicodeError):
        # The text is not repeated: it may hold a password.
        raise SettingsError(
            "the database URL cannot be read",
            hint="write postgresql://user@host:5432/database; encode special characters as %XX",
        ) from None
