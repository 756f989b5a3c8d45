"""Celery with Redis, as a reference: an in-memory broker without flushes.

Starts a server and a worker per measurement.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.plan import Plan
from bench.rounds import say
from bench.solo.contract import body

_QUEUE = "bench"
_PREFETCH = 500
_ROOT = Path(__file__).resolve().parents[2]
_BACKLOG = 4_000
"""Backlog per second of a run. A contestant that drains it earlier is measured up to its last message."""
_LOAD = """
import sys
from bench.solo.with_celery import app, noop
with app.producer_pool.acquire(block=True) as producer:
    for _ in range(int(sys.argv[1])):
        noop.apply_async(kwargs={"body": sys.argv[2]}, producer=producer)
"""


def name() -> str | None:
    """Return the name for the table; None, with a message on stderr, if it cannot run here."""
    if shutil.which("redis-server") is None:
        say("  jobs: Celery with Redis is skipped, redis-server is not installed (Debian: apt-get install redis-server)")
    elif importlib.util.find_spec("celery") is None or importlib.util.find_spec("redis") is None:
        say("  jobs: Celery with Redis is skipped, celery[redis] is not installed (make setup)")
    else:
        return f"Celery {importlib.metadata.version('celery')} with Redis"
    return None


NOTE = f"reference: Redis in memory, nothing flushed; one process (solo), acks_late, prefetch {_PREFETCH}, no results"


def measure(plan: Plan, payload: int) -> float:
    """Return the tasks per second of one worker process, from the first completed task to the last."""
    tasks = int(_BACKLOG * plan.seconds)
    with _redis() as (redis, environment):
        load = [sys.executable, "-c", _LOAD, str(tasks), body(payload)["body"]]
        subprocess.run(load, cwd=_ROOT, env=environment, check=True, timeout=120)
        if redis.llen(_QUEUE) != tasks:
            raise RuntimeError(f"Celery enqueued {redis.llen(_QUEUE)} of {tasks}")
        command = [sys.executable, "-m", "celery", "-A", "bench.solo.with_celery", "worker", "--pool", "solo"]
        quiet = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        worker = subprocess.Popen(
            [*command, *quiet], cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            return _watch(redis, tasks, plan.seconds)
        finally:
            worker.kill()
            worker.wait()


def _watch(redis: Any, tasks: int, seconds: float) -> float:
    def done() -> int:
        waiting, unacked = redis.pipeline().llen(_QUEUE).hlen("unacked").execute()
        return tasks - int(waiting) - int(unacked)

    deadline = time.monotonic() + 60
    while not (first := done()):
        if time.monotonic() > deadline:
            raise RuntimeError("Celery's worker did not start")
        time.sleep(0.002)
    start = now = time.perf_counter()
    last = first
    while last < tasks and now < start + seconds:
        time.sleep(0.005)
        last, now = done(), time.perf_counter()
    return (last - first) / (now - start)


@contextmanager
def _redis() -> Iterator[tuple[Any, dict[str, str]]]:
    import redis

    home = Path(tempfile.mkdtemp(prefix="trunkline-bench-redis-", dir="/var/tmp"))
    socket = home / "redis.sock"
    where = ["--port", "0", "--unixsocket", str(socket), "--dir", str(home), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([shutil.which("redis-server") or "redis-server", *where], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        for _ in range(500):
            if socket.exists():
                break
            time.sleep(0.01)
        client.ping()
        yield (
            client,
            {
                **os.environ,
                "CELERY_BROKER": f"redis+socket://{socket}",
                "CELERY_QUEUE": _QUEUE,
                "CELERY_PREFETCH": str(_PREFETCH),
            },
        )
        client.close()
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(home, ignore_errors=True)
