"""Translates hints of SQL functions to the interface of the caller: a command, an HTTP request or a Python call.

The database writes `trunkline.create_queue('mail')` or `p_force => true`. `reword` replaces each name in these tables
by its form in the caller's interface and keeps all other text. A test checks that the tables have every name that a
hint in the SQL sources uses.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Interface = Literal["sql", "command", "route", "python"]


class Action(NamedTuple):
    """The command, HTTP route and Python call of a SQL function, or None. `takes`: placeholders of its arguments."""

    command: str | None
    route: str | None
    python: str | None
    takes: tuple[str, ...] = ("NAME",)


FUNCTIONS = {
    "create_topic": Action(
        "trunkline topic create NAME", 'POST /v1/topics {"name": "NAME"}', "client.topics.create('NAME')"
    ),
    "ensure_topic": Action("trunkline topic create --ensure", "POST /v1/topics?ensure=true", "client.topics.ensure()"),
    "alter_topic": Action("trunkline topic alter", "PATCH /v1/topics/NAME", "client.topics.alter()"),
    "create_queue": Action(
        "trunkline queue create NAME", 'POST /v1/queues?ensure=true {"name": "NAME"}', "client.queues.create('NAME')"
    ),
    "ensure_queue": Action("trunkline queue create --ensure", "POST /v1/queues?ensure=true", "client.queues.ensure()"),
    "alter_queue": Action("trunkline queue alter", "PATCH /v1/queues/NAME", "client.queues.alter()"),
    "create_group": Action(
        "trunkline group create TOPIC GROUP",
        'POST /v1/topics/TOPIC/groups {"name": "GROUP"}',
        "client.groups.create('TOPIC', 'GROUP')",
        takes=("TOPIC", "GROUP"),
    ),
    "ensure_group": Action(
        "trunkline group create --ensure", "POST /v1/topics/TOPIC/groups?ensure=true", "client.groups.ensure()"
    ),
    "fetch": Action(None, "POST /v1/topics/TOPIC/groups/GROUP/fetch", "client.fetch()"),
    "commit": Action(None, "POST /v1/topics/TOPIC/groups/GROUP/commit", "batch.commit()"),
    "list_subscriptions": Action("trunkline subscription list", "GET /v1/subscriptions", "client.subscriptions.list()"),
    "list_dead_letters": Action("trunkline dead list", "GET /v1/queues/QUEUE/dead-letters", "client.dead.list()"),
    "list_runs": Action("trunkline run list", "GET /v1/runs", "client.runs.list()"),
    "preview_run": Action("trunkline run preview", "POST /v1/runs/preview", "client.runs.preview()"),
    "explain_message": Action("trunkline message explain", "GET /v1/messages/ID/explanation", "client.explain(id)"),
    "list_jobs": Action("trunkline job list", "GET /v1/jobs", None),
    "cancel_job": Action("trunkline job cancel", "POST /v1/jobs/ID/cancel", "app.cancel(id)"),
    "list_alerts": Action(None, "GET /v1/alerts", None),
    "create_schedule": Action(
        "trunkline schedule create NAME", "POST /v1/schedules", "client.schedules.create('NAME', ...)"
    ),
    "ensure_schedule": Action(
        "trunkline schedule create --ensure", "POST /v1/schedules?ensure=true", "client.schedules.ensure()"
    ),
    "create_endpoint": Action(
        "trunkline endpoint create NAME URL",
        'POST /v1/endpoints {"name": "NAME", "url": ...}',
        "client.endpoints.create('NAME', url)",
    ),
    "alter_endpoint": Action("trunkline endpoint alter", "PATCH /v1/endpoints/NAME", "client.endpoints.alter()"),
    "list_endpoints": Action("trunkline endpoint list", "GET /v1/endpoints", "client.endpoints.list()"),
    "move_archive": Action(None, None, None),
    "assign_writer": Action(None, None, None),
}
ARGUMENTS = {
    "p_force": Action("--force", "force", "force"),
    "p_ids": Action("--id", "ids", "ids"),
    "p_from": Action("--from", "start", "start"),
    "p_limit": Action("--limit", "limit", "limit"),
    "p_name": Action("--name", "name", "name"),
    "p_topic": Action("--topic", "topic", "topic"),
    "p_queue": Action("--queue", "queue", "queue"),
}
_FUNCTION = re.compile(r"trunkline\.(\w+)(?:\(([^()]*)\))?")
_ARGUMENT = re.compile(r"\b(p_\w+)(?: => (true|\.\.\.))?")
# a literal that needs no quotes in any interface
_PLAIN = re.compile(r"'([A-Za-z0-9._-]+)'")


def reword(hint: str | None, interface: Interface) -> str | None:
    """Return the hint with the names of the caller's interface."""
    if hint is None or interface == "sql":
        return hint
    named = _FUNCTION.sub(lambda match: _function(match, interface), hint)
    return _ARGUMENT.sub(lambda match: _argument(match, interface), named)


def _function(match: re.Match[str], interface: str) -> str:
    action = FUNCTIONS.get(match[1])
    text: str | None = None if action is None else getattr(action, interface)
    if action is None or text is None:
        return match[0]
    values = [_PLAIN.fullmatch(each.strip()) for each in (match[2] or "").split(",")]
    for name, value in zip(action.takes, values, strict=False):
        if value is not None:
            text = text.replace(name, value[1])
    return text


def _argument(match: re.Match[str], interface: str) -> str:
    action = ARGUMENTS.get(match[1])
    if action is None:
        return match[0]
    name: str = getattr(action, interface)
    if match[2] == "true" and interface != "command":
        return f"{name}={'True' if interface == 'python' else 'true'}"
    return name
