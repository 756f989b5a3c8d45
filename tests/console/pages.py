"""The pages of the console, from its route table: a new page is tested without being named here."""

from __future__ import annotations

import re
from typing import Any

import psycopg

from trunkline.server.app import create_app
from trunkline.server.config import Config
from trunkline.server.openapi import routes

DEAD = "0199a1b2-0000-7000-8000-00000000dead"
VALUES = {
    "topic": "mine",
    "queue": "mine",
    "group": "g",
    "message": "0199a1b2-0000-7000-8000-000000000001",
    "place": "0@1",
    "endpoint": "mine",
    "schedule": "s",
    "file": "console.css",
    "job": DEAD,
    "letter": DEAD,
    "run": "1",
}
"""What stands for each path parameter."""
NOT_PAGES = (
    "/console/live",
    "/console/changes",
    "/console/static/{file:str}",
    "/console/queues/{queue:str}/dead-export",
    "/console/m/{message:str}/payload",
    "/console/topics/{topic:str}/messages/export",
    "/console/topics/{topic:str}/tail",
)
"""Streams and files."""


def make_dead_job(conn: psycopg.Connection[Any]) -> None:
    """Make what the paths of dead letters, jobs and runs name: a job that failed, and a run."""
    payload = '{"order": 9007199254740993}'
    conn.execute(
        "select trunkline.enqueue_bytes('mine', %s::bytea, p_label => 'send_receipt', p_id => %s)", (payload.encode(), DEAD)
    )
    found = conn.execute("select receipt from trunkline.claim('mine', 10, p_consumer => 'host-a')").fetchall()
    errors = "Traceback (most recent call last):\nTimeoutError: smtp.example did not respond in 5 s"
    conn.execute("select trunkline.bury(%s::text[], %s)", ([row[0] for row in found], errors))
    conn.execute("""select trunkline.start_run('purge_dead_letters', '{"queue": "mine", "label": "none"}', 0)""")


def declared() -> list[tuple[str, str, Any]]:
    """Return path, method and declaration of every route of the console."""
    app = create_app(Config(database_url="postgresql://nowhere")).app  # type: ignore[attr-defined]
    return [(path, method, handler.opt["doc"]) for path, method, handler in routes(app, console=True)]


def filled(path: str) -> str:
    """Return a path with its parameters filled in."""
    return re.sub(r"\{(\w+):\w+\}", lambda match: VALUES.get(match[1], "1"), path)


def pages() -> list[str]:
    """Return the paths of all whole pages."""
    return [
        filled(path)
        for path, method, _ in declared()
        if method == "GET" and "/~/" not in path and path not in NOT_PAGES and path != "/console/login"
    ]


def fragments() -> list[str]:
    return [filled(path) for path, method, _ in declared() if method == "GET" and "/~/" in path]
