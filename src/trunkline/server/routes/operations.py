"""Operating the database: checks, upkeep, alerts, sessions and storage."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
from litestar.params import FromPath

from trunkline.db.calls import system
from trunkline.db.calls.list_records import Alert, Finding, SegmentRow, SessionRow, SizeRow, UpkeepTask
from trunkline.doctor import examine
from trunkline.server.problems import invalid
from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route

TAG = "operations"
_MOST = Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of rows.")


class Findings(msgspec.Struct, frozen=True):
    data: list[Finding]


@route("GET", "/doctor", Doc(tag=TAG, scope="admin", responses={200: Findings}))
async def doctor(request: Request) -> Response:
    """Check durability and performance risks, with a hint for each finding. It can contain queries of other sessions."""
    request.query()
    async with request.service.examining:
        return respond(Findings(await asyncio.to_thread(examine, request.service.config.database_url)))


class UpkeepTaskView(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    state: str
    """ok, never, late, ahead or failing."""
    every_seconds: float
    last_run_at: datetime | None
    age_seconds: float | None
    took_seconds: float | None
    """Of the last run that had something to do."""
    failing_since: datetime | None
    error_code: str | None
    error: str | None

    @classmethod
    def of(cls, row: UpkeepTask) -> UpkeepTaskView:
        fields = {name: getattr(row, name) for name in row.__struct_fields__ if name != "every"}
        return cls(every_seconds=row.every.total_seconds(), **fields)


class UpkeepTasks(msgspec.Struct, frozen=True):
    data: list[UpkeepTaskView]


@route("GET", "/upkeep", Doc(tag=TAG, scope="read", responses={200: UpkeepTasks}))
async def list_upkeep(request: Request) -> Response:
    """List upkeep tasks with their last run, how long it took, and their error."""
    request.query()
    async with request.mq.connection() as conn:
        return respond(UpkeepTasks([UpkeepTaskView.of(row) for row in await system.upkeep_stats(conn)]))


class Alerts(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[Alert]
    next: int | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/alerts",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="all", kind=bool, default=False, words="Include closed alerts."),
            Param(name="after", kind=int, low=0, words="`next` of the previous page."),
            _MOST,
        ),
        responses={200: Alerts},
    ),
)
async def list_alerts(request: Request) -> Response:
    """List alerts, newest first."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await system.list_alerts(conn, open=not query["all"], before=query["after"], limit=query["limit"])
    return respond(Alerts(rows, rows[-1].alert_id if len(rows) == query["limit"] else None))


class Closed(msgspec.Struct, frozen=True):
    closed: bool
    """False if it was closed before."""


@route(
    "POST",
    "/alerts/{alert:int}/close",
    Doc(tag=TAG, scope="admin", responses={200: Closed}, problems=(400,), audit=True),
)
async def close_alert(request: Request, alert: FromPath[int]) -> Response:
    """Close an alert: an operator has dealt with it."""
    request.query()
    if alert < 1 or alert >= 2**63:
        raise invalid("alert: must be a number from 1.")
    async with request.writing() as conn:
        return respond(Closed(await system.close_alert(conn, alert, by=request.caller)))


class Sessions(msgspec.Struct, frozen=True):
    data: list[SessionRow]


@route(
    "GET",
    "/sessions",
    Doc(
        tag=TAG,
        scope="admin",
        params=(Param(name="age", kind=float, default=10, low=0, high=86400, words="Minimum age in seconds."), _MOST),
        responses={200: Sessions},
    ),
)
async def list_sessions(request: Request) -> Response:
    """List database sessions that hold back vacuum or locks, oldest first. Shows the start of their queries."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await system.list_sessions(conn, timedelta(seconds=query["age"]), limit=query["limit"])
    return respond(Sessions(rows))


class Segments(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[SegmentRow]
    next: str | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/segments",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="topic", words="Only segments of this topic."),
            Param(name="queue", words="Only segments of this queue's own log."),
            Param(name="after", words="`next` of the previous page."),
            _MOST,
        ),
        responses={200: Segments},
        problems=(404,),
    ),
)
async def list_segments(request: Request) -> Response:
    """List the segments of logs with their size."""
    query: dict[str, Any] = request.query()
    after = None
    if query["after"] is not None:
        log, _, segment = query["after"].partition(".")
        if not (
            log.isascii()
            and log.isdigit()
            and len(log) <= 9
            and segment.isascii()
            and segment.isdigit()
            and len(segment) <= 18
        ):
            raise invalid("after: must be `next` of a page.")
        after = (int(log), int(segment))
    async with request.mq.connection() as conn:
        rows = await system.list_segments(
            conn, topic=query["topic"], queue=query["queue"], after=after, limit=query["limit"]
        )
    last = rows[-1] if len(rows) == query["limit"] else None
    return respond(Segments(rows, None if last is None else f"{last.log}.{last.segment}"))


class Sizes(msgspec.Struct, frozen=True):
    data: list[SizeRow]


@route("GET", "/sizes", Doc(tag=TAG, scope="read", responses={200: Sizes}))
async def list_sizes(request: Request) -> Response:
    """List the size of each part of the schema: messages, deliveries, history, dead letters and others."""
    request.query()
    async with request.mq.connection() as conn:
        return respond(Sizes(await system.list_sizes(conn)))


ROUTES = [doctor, list_upkeep, list_alerts, close_alert, list_sessions, list_segments, list_sizes]
