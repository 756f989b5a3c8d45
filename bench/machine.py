"""Facts about the machine that are needed to interpret the figures."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
    "commit_delay",
)


def facts(conn: psycopg.Connection[Any], directory: Path) -> dict[str, Any]:
    """Return hardware, kernel, the server's durability settings, and the cost of a flush."""
    settings = {}
    for name in _SETTINGS:
        row = conn.execute("select current_setting(%s)", (name,)).fetchone()
        settings[name] = row[0] if row else None
    return {
        "host": host_kind(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "postgres": settings,
        "fsync_ms": fsync_ms(directory),
        "commits_per_s": commits_per_s(conn),
        "load_average": os.getloadavg()[0],
    }


def host_kind() -> str:
    return f"{os.cpu_count()}cpu-{_memory_gb()}gb"


def fsync_ms(directory: Path, *, times: int = 100) -> float:
    """Return the median time in ms to write and flush one 8 kB block in the server's directory."""
    path = directory / "fsync-probe"
    durations = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(times):
            start = time.perf_counter()
            os.pwrite(descriptor, os.urandom(8192), 0)
            os.fdatasync(descriptor)
            durations.append(time.perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()
    return round(median(durations) * 1000, 3)


def commits_per_s(conn: psycopg.Connection[Any], *, seconds: float = 1.0) -> float:
    """Return the rate of durable one-row commits of a single connection."""
    conn.execute("create table if not exists bench.commits (n bigint)")
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        conn.execute("insert into bench.commits values (1)")
        count += 1
    elapsed = time.perf_counter() - start
    conn.execute("drop table bench.commits")
    return round(count / elapsed, 1)


class CpuMeter:
    """CPU use since creation, in per cent of all cores, including other programs."""

    def __init__(self) -> None:
        self._start = _cpu_times()

    def percent(self) -> float:
        busy, total = (now - then for now, then in zip(_cpu_times(), self._start, strict=True))
        return 100 * busy / total if total else 0.0


def _cpu_times() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
