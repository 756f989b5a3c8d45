"""Generate load with pgbench: prepared statements, one process, no driver overhead."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trunkline.embedded import install

_RATE = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_COUNT = re.compile(r"^number of transactions actually processed: ([0-9]+)", re.MULTILINE)
_PROGRESS = re.compile(r"^progress: ([0-9.]+) s, ([0-9.]+) tps", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: ([0-9]+)", re.MULTILINE)


def rate(url: str, script: str, *, clients: int, seconds: float, payload: int = 0) -> float:
    """Return the transactions per second of a script. `:payload` in it is a text of `payload` bytes.

    An additional first second, in which connections compile and plan, is not counted. Raises RuntimeError if a client
    aborted or a transaction failed.
    """
    target = urlsplit(url)
    with tempfile.TemporaryDirectory(prefix="trunkline-pgbench-") as folder:
        file = Path(folder) / "script.sql"
        file.write_text(script)
        command = [
            str(install.psql().with_name("pgbench")),
            *("-h", str(target.hostname), "-p", str(target.port), "-U", str(target.username)),
            *("-n", "-M", "prepared", "-f", str(file), "-c", str(clients), "-j", str(min(clients, os.cpu_count() or 1))),
            *("-T", str(1 + max(1, round(seconds))), "-P", "1"),
            *(("-D", f"payload={text(payload)}") if payload else ()),
            target.path.lstrip("/"),
        ]
        environment = {**os.environ, "PGPASSWORD": unquote(target.password or "")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    count, overall, failed, first = (
        pattern.search(done.stderr if pattern is _PROGRESS else done.stdout)
        for pattern in (_COUNT, _RATE, _FAILED, _PROGRESS)
    )
    if done.returncode != 0 or not (count and overall and failed and first) or failed[1] != "0":
        raise RuntimeError(f"pgbench failed ({done.returncode}): {done.stderr[-2000:]}{done.stdout[-500:]}")
    warm_seconds, warm_count = float(first[1]), float(first[1]) * float(first[2])
    return (int(count[1]) - warm_count) / (int(count[1]) / float(overall[1]) - warm_seconds)


def text(size: int) -> str:
    """Return a payload that is valid as text, bytea and JSON string without escaping."""
    return ("the-quick-brown-fox-jumps-over-the-lazy-dog-" * (size // 44 + 1))[:size]
