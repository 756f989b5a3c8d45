"""Which database a command works on, and whether it answers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trunkline.cli.output import say
from trunkline.errors import SettingsError, from_psycopg
from trunkline.settings import Settings, read_dotenv

_CONNECT_SECONDS = 10


def conninfo(settings: Settings) -> str:
    """The given URL, else the embedded server that runs on the data directory."""
    if settings.database_url is not None:
        _check(settings.database_url)
        return settings.database_url
    if not (Path(settings.data) / "pgdata").exists():
        raise SettingsError(
            f"no database: --database-url is not given and {settings.data} holds no embedded server",
            hint="set TRUNKLINE_DATABASE_URL, or name the directory of `trunkline up` with --data",
        )
    from trunkline.db.embedded import EmbeddedServer

    return EmbeddedServer(settings.data).connect()


def _check(url: str) -> None:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except (ProgrammingError, UnicodeError):
        # The text is not repeated: it may hold a password.
        raise SettingsError(
            "the database URL cannot be read",
            hint="write postgresql://user@host:5432/database; encode special characters as %XX",
        ) from None


async def probe(url: str) -> None:
    """Raise what is wrong with the database, in words: not reachable, wrong password, not installed, too old or too new."""
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
