"""The database that a command uses, and whether it can be reached."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.cli.output import say
from trunkline.errors import DatabaseUnavailable, SettingsError, from_psycopg
from trunkline.settings import Settings, read_dotenv

if TYPE_CHECKING:
    from trunkline.db.embedded import EmbeddedServer

_CONNECT_SECONDS = 10
_FORMER_DATA = Path(".data")
"""Where `make up` kept its data in earlier releases."""


def conninfo(settings: Settings) -> str:
    """Return the given URL, else the URL of the embedded server that runs on the data directory.

    The URL of the embedded server may have an old port in it, so the server itself is asked.
    """
    server = embedded_server(settings)
    if server is not None:
        return server.connect()
    if settings.database_url is not None:
        return settings.database_url
    raise SettingsError(
        f"no database: --database-url is not given and {settings.data} holds no embedded server",
        hint=former_data(settings)
        or "start one with trunkline up, name the directory of a running one with --data, or set TRUNKLINE_DATABASE_URL",
    )


def embedded_server(settings: Settings) -> EmbeddedServer | None:
    """Return the embedded server that these settings lead to; None: there is none, or the URL is that of another one."""
    if settings.database_url is not None:
        from trunkline.db.conninfo import parsed

        parsed(settings.database_url)
    if not (settings.data / "pgdata").exists():
        return None
    from trunkline.db.embedded import EmbeddedServer

    server = EmbeddedServer(settings.data, settings.pg_port)
    return server if settings.database_url is None or server.issued(settings.database_url) else None


def former_data(settings: Settings) -> str | None:
    """Return what to do about data of an earlier `make up`, if there is any."""
    if settings.data != Settings().data or not (_FORMER_DATA / "pgdata").exists():
        return None
    return (
        f"{_FORMER_DATA} has the data of an earlier `make up`: use it with --data {_FORMER_DATA}, or move it to .trunkline"
    )


@contextmanager
def naming(source: str | None) -> Iterator[None]:
    """Let an error say which setting the URL of an unreachable database came from."""
    import psycopg

    try:
        yield
    except (psycopg.OperationalError, DatabaseUnavailable) as exc:
        error = from_psycopg(exc)
        if source is None or not isinstance(error, DatabaseUnavailable):
            raise
        raise DatabaseUnavailable(
            f"the database of {source} cannot be used: {error.message}",
            hint="check that the server runs and that the URL is right"
            if source.startswith("--")
            else "start that server, or correct or remove the setting: without it the embedded server is used",
            detail=error.detail,
            sqlstate=error.sqlstate,
        ) from exc


async def probe(url: str, source: str | None = None) -> None:
    """Raise what is wrong with the database: not reachable, wrong password, not installed, too old or too new.

    `source` is the setting that the URL came from.
    """
    with naming(source):
        await _probe(url)


async def _probe(url: str) -> None:
    import psycopg

    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=_CONNECT_SECONDS) as conn:
            await conn.execute("select 1 from trunkline.migrations limit 1")
    except psycopg.errors.InsufficientPrivilege:
        return  # a role that may only call functions
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def warn_about_secrets(flag: str | None) -> None:
    """A password on the command line is in the process list and in the shell's history."""
    if flag is not None and _has_password(flag):
        say(
            "trunkline: warning: a password in --database-url can be seen in the process list; "
            "put it into TRUNKLINE_DATABASE_URL or a .env file"
        )
    dotenv = Path(".env")
    try:
        mode = dotenv.stat().st_mode
        found = read_dotenv(dotenv).get("TRUNKLINE_DATABASE_URL")
    except (OSError, SettingsError):
        return
    if found and mode & (stat.S_IRGRP | stat.S_IROTH) and _has_password(found.text):
        say(f"trunkline: warning: {dotenv} holds a password and others may read it; chmod 600 {dotenv}")


def _has_password(url: str) -> bool:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return bool(conninfo_to_dict(url).get("password"))
    except ProgrammingError:
        return False


def is_embedded(url: str) -> bool:
    """Whether this is the server of `trunkline up`: its socket lies in a directory of its own."""
    from psycopg.conninfo import conninfo_to_dict

    host = str(conninfo_to_dict(url).get("host") or "")
    return host.startswith("/") and os.path.basename(host).startswith("trunkline")
