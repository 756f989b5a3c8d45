"""Reads for the foot of the navigation."""

from __future__ import annotations

import msgspec

from trunkline.db.calls import health
from trunkline.db.pool import Connection

FOOT = "foot"
_SILENT_SECONDS = 30.0


class Foot(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    upkeep_age: float | None
    durable: bool

    @property
    def upkeep_runs(self) -> bool:
        return self.upkeep_age is not None and self.upkeep_age < _SILENT_SECONDS


async def read(conn: Connection) -> Foot:
    ages = [task.age for task in await health.upkeep_tasks(conn) if task.age is not None]
    version = (conn.info.parameter_status("server_version") or "?").partition(" ")[0]
    durable = await health.is_durable(conn)
    return Foot(name=conn.info.dbname, version=version, upkeep_age=max(0.0, min(ages)) if ages else None, durable=durable)
