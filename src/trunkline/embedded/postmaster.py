"""Finds the Postgres processes of a data directory from `postmaster.pid` and `/proc`, trusting neither alone."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_SSL_REQUEST = 80877103  # from the wire protocol


class Postmaster(NamedTuple):
    """A running postmaster, as its `postmaster.pid` describes it."""

    pid: int
    port: int
    socket_dir: Path
    ready: bool

    def responds(self) -> bool:
        """Return whether the server responds to a TLS request on its socket."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            try:
                client.connect(str(self.socket_dir / f".s.PGSQL.{self.port}"))
                client.sendall(struct.pack("!ii", 8, _SSL_REQUEST))
                return client.recv(1) in (b"N", b"S")
            except OSError:
                return False


def find_postmaster(pgdata: Path) -> Postmaster | None:
    """Return the live postmaster of this directory, or None.

    The pid file survives a kill -9, and its pid may since belong to another program. So the process must be a Postgres
    with this working directory.
    """
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    if not _is_postgres_of(pid, pgdata.resolve()):
        return None
    try:
        port, sockets, status = int(lines[3]), lines[4], lines[7]
    except (ValueError, IndexError):  # the file is written in steps
        return Postmaster(pid, 0, Path(), ready=False)
    return Postmaster(pid, port, Path(sockets), ready=status.strip() == "ready")


def find_processes(pgdata: Path) -> list[int]:
    """Return the pids of all Postgres processes of this directory, including orphaned backends."""
    directory = pgdata.resolve()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _is_postgres_of(pid, directory)]


def _is_postgres_of(pid: int, directory: Path) -> bool:
    # A zombie has neither link; a shell in this directory has another program name.
    try:
        cwd = os.readlink(f"/proc/{pid}/cwd")
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    # " (deleted)" is appended when the virtual environment was rebuilt under a running server.
    return cwd == str(directory) and Path(program.removesuffix(" (deleted)")).name == "postgres"
