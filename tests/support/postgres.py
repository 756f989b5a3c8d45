"""Real Postgres servers for the tests: 18 and 16 from the wheel, other versions from Debian where they are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier, Literal

from trunkline.embedded.server import EmbeddedServer

DEBIAN = Path("/usr/lib/postgresql")
_IN_THE_WHEEL = (18, 16)
_ONLY = os.environ.get("TRUNKLINE_TEST_POSTGRES")
VERSIONS = [int(_ONLY)] if _ONLY else [18, 15]
"""Versions that the tests of the kernel run on, the one of all other tests first."""
ROOM = 8 * 2**30  # bytes that must be free in /dev/shm for data to live there


def scratch(prefix: str) -> Path:
    """A new directory for a server's data: in memory where there is room, since each test copies 1,100 files."""
    memory = Path("/dev/shm")
    fits = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM
    return Path(tempfile.mkdtemp(prefix=prefix, dir=memory if fits else "/tmp"))


class DebianServer:
    """The distribution's Postgres in a temporary directory, on a private socket."""

    def __init__(self, version: int) -> None:
        self.programs = DEBIAN / str(version) / "bin"
        self.home = scratch(f"tl{version}-")
        self.account = {"user": "postgres"} if os.geteuid() == 0 else {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.home, owner.pw_uid, owner.pw_gid)
        self.port = 5432  # of no network: only the name of the socket in its directory

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=60, **self.account)  # type: ignore[call-overload]

    def start(self) -> str:
        data = str(self.home / "data")
        self._run(
            str(self.programs / "initdb"), "-D", data, "-U", "trunkline", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"
        )
        options = (
            f"-p {self.port} -k {self.home} -c listen_addresses='' -c max_connections=200 -c max_prepared_transactions=20"
        )
        self._run(str(self.programs / "pg_ctl"), "-D", data, "-o", options, "-l", str(self.home / "log"), "-w", "start")
        return f"postgresql://trunkline@/postgres?host={self.home}&port={self.port}"

    def stop(self) -> None:
        self._run(str(self.programs / "pg_ctl"), "-D", str(self.home / "data"), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.home, ignore_errors=True)


class WheelServer:
    """Postgres of the wheel in a throw-away directory."""

    def __init__(self, version: int) -> None:
        self.home = scratch("tl-test-")
        self.server = EmbeddedServer(self.home / "data", version=version)

    def start(self) -> str:
        self.server.start()
        url = self.server.superuser_url
        login = conninfo_to_dict(url)
        with psycopg.connect(url, autocommit=True) as conn:
            # Password login stays; its default of 4,096 rounds costs every connection 5 ms of CPU time.
            conn.execute("set scram_iterations = 1")
            conn.execute(SQL("alter role {} password {}").format(Identifier(str(login["user"])), Literal(login["password"])))
        return url

    def stop(self) -> None:
        self.server.stop()
        shutil.rmtree(self.home, ignore_errors=True)


def make_server(version: int) -> DebianServer | WheelServer:
    return WheelServer(version) if version in _IN_THE_WHEEL else DebianServer(version)


def missing(version: int) -> str | None:
    """Return why this version cannot be tested here, or None."""
    if version not in _IN_THE_WHEEL and not (DEBIAN / str(version) / "bin" / "initdb").exists():
        return f"Postgres {version} is not installed (Debian package postgresql-{version})"
    return None
