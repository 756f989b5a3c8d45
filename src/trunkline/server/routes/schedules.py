"""Schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import UNSET, Meta, Raw, UnsetType

from trunkline.db.calls import schedules as fires
from trunkline.db.calls.list_records import Fire
from trunkline.errors import ScheduleNotFound
from trunkline.server.bodies import name_fault, refuse
from trunkline.server.problems import invalid
from trunkline.server.query import LIMIT, OFFSET, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, page, schedule_view
from trunkline.types import Schedule
from trunkline.wire import ScheduleView

TAG = "schedules"


class NewSchedule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to publish on a cron schedule, to a topic or a queue."""

    name: str | None = None
    cron: Annotated[str, Meta(min_length=1, max_length=200)]
    topic: str | None = None
    queue: str | None = None
    payload: Raw | UnsetType = UNSET
    key: Annotated[str, Meta(max_length=1000)] | None = None
    routing_key: Annotated[str, Meta(max_length=1000)] | None = None
    label: Annotated[str, Meta(max_length=200)] | None = None
    headers: dict[str, Any] | None = None
    timezone: Annotated[str, Meta(min_length=1, max_length=100)] = "UTC"
    catch_up: Literal["skip", "one", "all"] = "one"


@route(
    "POST",
    "/schedules",
    Doc(
        tag=TAG,
        scope="admin",
        params=(Param(name="ensure", kind=bool, default=False, words="Update the schedule if it exists."),),
        body=NewSchedule,
        responses={201: ScheduleView},
        problems=(400, 404, 408, 409, 413),
        audit="body",
    ),
)
async def create_schedule(request: Request) -> Response:
    """Create a schedule."""
    ensure = request.query()["ensure"]
    body = await request.read(NewSchedule)
    refuse(name=name_fault(body.name))
    assert body.name is not None  # noqa: S101
    await request.audit(body.name)
    make = request.mq.schedules.ensure if ensure else request.mq.schedules.create
    payload = None if isinstance(body.payload, UnsetType) else msgspec.json.decode(body.payload)
    made = await make(
        body.name,
        body.cron,
        topic=body.topic,
        queue=body.queue,
        body=payload,
        key=body.key,
        routing_key=body.routing_key,
        label=body.label,
        headers=body.headers,
        timezone=body.timezone,
        catch_up=body.catch_up,
    )
    return respond(schedule_view(made), 201)


async def _find(request: Request, name: str) -> Schedule:
    for row in await request.mq.schedules.list():
        if row.name == name:
            return row
    raise ScheduleNotFound(f"schedule {name} does not exist", hint="Create it with trunkline.create_schedule.")


@route("GET", "/schedules", Doc(tag=TAG, scope="read", params=(OFFSET, LIMIT), responses={200: Page}))
async def list_schedules(request: Request) -> Response:
    """List schedules by name, 100 per page by default."""
    query = request.query()
    return respond(page([schedule_view(row) for row in await request.mq.schedules.list()], query))


@route("GET", "/schedules/{schedule:str}", Doc(tag=TAG, scope="read", responses={200: ScheduleView}, problems=(404,)))
async def get_schedule(request: Request, schedule: FromPath[str]) -> Response:
    """Get one schedule."""
    request.query()
    return respond(schedule_view(await _find(request, schedule)))


_CHANGE: dict[str, Any] = {"tag": TAG, "scope": "admin", "responses": {204: None}, "problems": (404,), "audit": True}


@route("DELETE", "/schedules/{schedule:str}", Doc(**_CHANGE))
async def delete_schedule(request: Request, schedule: FromPath[str]) -> Response:
    """Delete a schedule."""
    request.query()
    await request.mq.schedules.delete(schedule)
    return nothing()


@route("PUT", "/schedules/{schedule:str}/pause", Doc(**_CHANGE))
async def pause_schedule(request: Request, schedule: FromPath[str]) -> Response:
    """Pause the schedule until `resume`."""
    request.query()
    await request.mq.schedules.pause(schedule)
    return nothing()


@route("PUT", "/schedules/{schedule:str}/resume", Doc(**_CHANGE))
async def resume_schedule(request: Request, schedule: FromPath[str]) -> Response:
    """Resume the schedule."""
    request.query()
    await request.mq.schedules.resume(schedule)
    return nothing()


class Fired(msgspec.Struct, frozen=True):
    id: UUID


@route(
    "POST",
    "/schedules/{schedule:str}/run",
    Doc(tag=TAG, scope="admin", responses={200: Fired}, problems=(404,), audit=True),
)
async def run_schedule(request: Request, schedule: FromPath[str]) -> Response:
    """Fire the schedule now. Returns the message id."""
    request.query()
    return respond(Fired(await request.mq.schedules.run(schedule)))


class Fires(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[Fire]
    next: int | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/schedules/{schedule:str}/fires",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="after", kind=int, low=0, words="`next` of the previous page."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of rows."),
        ),
        responses={200: Fires},
        problems=(404,),
    ),
)
async def list_fires(request: Request, schedule: FromPath[str]) -> Response:
    """List what happened at the schedule's times, newest first: on time, late, caught up, skipped, manual or failed."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await fires.list_fires(conn, schedule, before=query["after"], limit=query["limit"])
    return respond(Fires(rows, rows[-1].fire_no if len(rows) == query["limit"] else None))


class Runs(msgspec.Struct, frozen=True):
    data: list[datetime]


@route(
    "GET",
    "/next-runs",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="cron", required=True, words="Cron expression."),
            Param(name="timezone", default="UTC", words="Time zone of the expression."),
            Param(name="limit", kind=int, default=5, low=1, high=100, words="Number of times."),
            Param(name="after", kind=datetime, words="Only times after this one; now by default."),
        ),
        responses={200: Runs},
    ),
)
async def next_runs(request: Request) -> Response:
    """Return the next times of a cron expression."""
    query = request.query()
    if len(query["cron"]) > 200:
        raise invalid("cron: must have at most 200 characters.")
    runs = await request.mq.schedules.next_runs(
        query["cron"], timezone=query["timezone"], limit=query["limit"], after=query["after"]
    )
    return respond(Runs(runs))


ROUTES = [
    create_schedule,
    list_schedules,
    get_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
    list_fires,
    next_runs,
]
