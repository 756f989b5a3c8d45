"""Which database a command works on."""

from __future__ import annotations

from pathlib import Path

from trunkline.errors import SettingsError
from trunkline.settings import Settings


def conninfo(settings: Settings) -> str:
    """The given URL, else the embedded server that runs on the data directory."""
    if settings.database_url is not None:
        return settings.database_url
    if not (Path(settings.data) / "pgdata").exists():
        raise SettingsError(
            f"no database: --database-url is not given and {settings.data} holds no embedded server",
            hint="set TRUNKLINE_DATABASE_URL, or name the directory of `trunkline up` with --data",
        )
    from trunkline.db.embedded import EmbeddedServer

    return EmbeddedServer(settings.data).connect()
