"""The pages of the console, from its route table: a new page is tested without being named here."""

from __future__ import annotations

import re
from typing import Any

from trunkline.server.app import create_app
from trunkline.server.config import Config
from trunkline.server.openapi import routes

VALUES = {
    "topic": "mine",
    "queue": "mine",
    "group": "g",
    "message": "0199a1b2-0000-7000-8000-000000000001",
    "place": "0@1",
    "endpoint": "mine",
    "schedule": "s",
    "file": "console.css",
}
"""What stands for each path parameter."""
NOT_PAGES = (
    "/console/live",
    "/console/changes",
    "/console/static/{file:str}",
    "/console/m/{message:str}/payload",
    "/console/topics/{topic:str}/messages/export",
    "/console/topics/{topic:str}/tail",
)
"""Streams and files."""


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
