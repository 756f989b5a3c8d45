"""The database of a command, and checks that it can be used."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.cli.framework.output import say
from trunkline.errors import DatabaseUnavailable, SettingsError, from_psycopg
from trunkline.settings import Settings, read_dotenv

if TYPE_CHECKING:
    from trunkline.embedded.server import EmbeddedServer

_CONNECT_SECONDS = 10
_FORMER_DATA = Path(".data")
"""Data directory of `make up` in earlier releases."""


def conninfo(settings: Settings) -> str:
    """Return the given URL, else the URL of the embedded server that runs on the data directory.

    The port in a stored URL of the embedded server may be outdated, so the running server is asked.
    """
    server = embedded_server(settings)
    if server is not None:
        return server.connect()
    if settings.database_url is not None:
        return settings.database_url
    raise SettingsError(
        f"no database: --database-url is not set, and {settings.data} has no embedded server",
        hint=former_data(settings)
        or "Start one with `trunkline up`, use --data for a running one, or set TRUNKLINE_DATABASE_URL.",
    )


def embedded_server(settings: Settings) -> EmbeddedServer | None:
    """Return the embedded server that these settings refer to. None if the URL is of another server."""
    if settings.database_url is not None:
        from trunkline.db.conninfo import parsed

        parsed(settings.database_url)
    if not (settings.data / "pgdata").exists():
        return None
    from trunkline.embedded.server import EmbeddedServer

    server = EmbeddedServer(settings.data, settings.pg_port)
    return server if settings.database_url is None or server.issued(settings.database_url) else None


def former_data(settings: Settings) -> str | None:
    """Return a hint about data of an earlier `make up`, if there is any."""
    if settings.data != Settings().data or not (_FORMER_DATA / "pgdata").exists():
        return None
    return f"Use the data of an earlier `make up` with --data {_FORMER_DATA}, or move it to .trunkline."


@contextmanager
def naming(source: str | None) -> Iterator[None]:
    """Add the setting that named the database to connection errors."""
    import psycopg

    try:
        yield
    except (psycopg.OperationalError, DatabaseUnavailable) as exc:
        error = from_psycopg(exc)
        if source is None or not isinstance(error, DatabaseUnavailable):
            raise
        raise DatabaseUnavailable(
            f"cannot use the database of {source}: {error.message}",
            hint="Check that the server is running and that the URL is correct."
            if source.startswith("--")
            else "Start that server, or correct or remove the setting to use the embedded server.",
            detail=error.detail,
            sqlstate=error.sqlstate,
        ) from exc


async def probe(url: str, source: str | None = None) -> None:
    """Raise if the database cannot be used: unreachable, wrong password, schema missing, too old or too new.

    `source` is the setting that named the database.
    """
    with naming(source):
        await _probe(url)


async def _probe(url: str) -> None:
    import psycopg

    from trunkline.db.calls import health

    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=_CONNECT_SECONDS) as conn:
            await health.read_schema(conn)
    except psycopg.errors.InsufficientPrivilege:
        return  # a role that may only call functions
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def warn_about_secrets(flag: str | None) -> None:
    """Warn about a password on the command line, which the process list and the shell history reveal."""
    if flag is not None and _has_password(flag):
        say(
            "trunkline: warning: the password in --database-url is visible in the process list; "
            "use TRUNKLINE_DATABASE_URL or a .env file"
        )
    dotenv = Path(".env")
    try:
        mode = dotenv.stat().st_mode
        found = read_dotenv(dotenv).get("TRUNKLINE_DATABASE_URL")
    except (OSError, SettingsError):
        return
    if found and mode & (stat.S_IRGRP | stat.S_IROTH) and _has_password(found.text):
        say(f"trunkline: warning: {dotenv} contains a password and is readable by others; run chmod 600 {dotenv}")


def _has_password(url: str) -> bool:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return bool(conninfo_to_dict(url).get("password"))
    except ProgrammingError:
        return False


def is_embedded(url: str) -> bool:
    """Return whether this is the server of `trunkline up`, judged by its socket directory."""
    from psycopg.conninfo import conninfo_to_dict

    host = str(conninfo_to_dict(url).get("host") or "")
    return host.startswith("/") and os.path.basename(host).startswith("trunkline")
