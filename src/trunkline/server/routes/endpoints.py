"""Endpoints: receivers of webhooks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import Meta
from msgspec.structs import replace

from trunkline.db.calls import push
from trunkline.db.calls.list_records import EndpointEvent
from trunkline.server.bodies import name_fault, refuse
from trunkline.server.problems import invalid
from trunkline.server.query import LIMIT, OFFSET, Param, moment
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, page
from trunkline.types import Attempt, Endpoint

TAG = "endpoints"
Rate = Annotated[float, Meta(ge=0, le=100_000)]
Seconds = Annotated[float, Meta(ge=0.1, le=300)]
Small = Annotated[int, Meta(ge=1, le=1000)]
Url = Annotated[str, Meta(min_length=1, max_length=2000)]


class EndpointBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An endpoint to create."""

    name: str | None = None
    url: Url
    rate: Rate | None = None
    """Requests per second across all dispatchers, 0.001 to 100,000. Null or 0: no limit."""
    burst: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    max_in_flight: Small | None = None
    timeout_seconds: Seconds | None = None
    headers: dict[str, str] | None = None
    mode: Literal["single", "batch"] | None = None
    batch_size: Small | None = None
    secret: Annotated[str, Meta(max_length=200)] | None = None


class EndpointChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields stay unchanged. A rate of 0 removes the limit. Headers replace all existing ones."""

    url: Url | None = None
    rate: Rate | None = None
    burst: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    max_in_flight: Small | None = None
    timeout_seconds: Seconds | None = None
    headers: dict[str, str] | None = None
    mode: Literal["single", "batch"] | None = None
    batch_size: Small | None = None


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    url: str
    state: str
    reason: str | None
    rate: float | None
    burst: int | None
    """Null if there is no rate."""
    max_in_flight: int
    timeout_seconds: float
    mode: str
    batch_size: int
    headers: list[str]
    """Header names only."""
    secrets: int
    queues: list[str]
    breaker: str
    open_until: datetime | None
    held_until: datetime | None
    created_at: datetime
    updated_at: datetime
    needs_allow: str | None
    """The private network of the address. Only dispatchers started with `--push-allow` for it can send there."""

    @classmethod
    def of(cls, row: Endpoint) -> EndpointView:
        fields = {name: getattr(row, name) for name in row.__struct_fields__ if name != "timeout"}
        return cls(timeout_seconds=row.timeout.total_seconds(), **fields)


class MadeEndpoint(msgspec.Struct, frozen=True):
    name: str
    secret: str
    needs_allow: str | None
    """As in `EndpointView`."""


def _settings(body: EndpointBody | EndpointChange) -> dict[str, Any]:
    fields = {
        name: getattr(body, name) for name in ("url", "rate", "burst", "max_in_flight", "headers", "mode", "batch_size")
    }
    span = body.timeout_seconds
    return fields | {"timeout": None if span is None else timedelta(seconds=span)}


@route(
    "POST",
    "/endpoints",
    Doc(
        tag=TAG, scope="admin", body=EndpointBody, responses={201: MadeEndpoint}, problems=(400, 408, 409, 413), audit="body"
    ),
)
async def create_endpoint(request: Request) -> Response:
    """Create an endpoint. Returns the secret that signs its deliveries."""
    request.query()
    body = await request.read(EndpointBody)
    refuse(name=name_fault(body.name))
    assert body.name is not None  # noqa: S101
    await request.audit(body.name)
    settings = _settings(body)
    if settings["rate"] == 0:
        settings["rate"] = None
    made = await request.mq.endpoints.create(body.name, secret=body.secret, **settings)
    return respond(MadeEndpoint(made.name, made.secret, made.needs_allow), 201)


@route("GET", "/endpoints", Doc(tag=TAG, scope="read", params=(OFFSET, LIMIT), responses={200: Page}))
async def list_endpoints(request: Request) -> Response:
    """List endpoints by name, 100 per page by default."""
    query = request.query()
    return respond(page([EndpointView.of(row) for row in await request.mq.endpoints.list()], query))


@route(
    "GET",
    "/endpoints/{endpoint:str}",
    Doc(tag=TAG, scope="read", object="endpoint", responses={200: EndpointView}, problems=(404,), portal=True),
)
async def get_endpoint(request: Request, endpoint: FromPath[str]) -> Response:
    """Get one endpoint."""
    request.query()
    view = EndpointView.of(await request.mq.endpoints.get(endpoint))
    return respond(replace(view, queues=[], needs_allow=None) if request.portal else view)


@route(
    "PATCH",
    "/endpoints/{endpoint:str}",
    Doc(
        tag=TAG,
        scope="admin",
        body=EndpointChange,
        responses={200: EndpointView},
        problems=(400, 404, 408, 413),
        audit=True,
    ),
)
async def alter_endpoint(request: Request, endpoint: FromPath[str]) -> Response:
    """Change the given settings."""
    request.query()
    body = await request.read(EndpointChange)
    return respond(EndpointView.of(await request.mq.endpoints.alter(endpoint, **_settings(body))))


_CHANGE: dict[str, Any] = {"tag": TAG, "scope": "admin", "responses": {204: None}, "problems": (404, 409), "audit": True}


@route(
    "DELETE",
    "/endpoints/{endpoint:str}",
    Doc(
        **_CHANGE,
        object="endpoint",
        params=(Param(name="force", kind=bool, default=False, words="Delete even if queues are bound to it."),),
    ),
)
async def delete_endpoint(request: Request, endpoint: FromPath[str]) -> Response:
    """Delete an endpoint. Its queues remain."""
    await request.mq.endpoints.delete(endpoint, force=request.query()["force"])
    return nothing()


@route("PUT", "/endpoints/{endpoint:str}/pause", Doc(**_CHANGE, object="endpoint", portal=True))
async def pause_endpoint(request: Request, endpoint: FromPath[str]) -> Response:
    """Pause the endpoint until `resume`."""
    request.query()
    await request.mq.endpoints.pause(endpoint)
    return nothing()


@route("PUT", "/endpoints/{endpoint:str}/resume", Doc(**_CHANGE, object="endpoint", portal=True))
async def resume_endpoint(request: Request, endpoint: FromPath[str]) -> Response:
    """Resume sending after a pause, a 410 response or an open circuit breaker."""
    request.query()
    await request.mq.endpoints.resume(endpoint)
    return nothing()


@route("PUT", "/endpoints/{endpoint:str}/queues/{queue:str}", Doc(**_CHANGE, object="queue"))
async def bind_queue(request: Request, endpoint: FromPath[str], queue: FromPath[str]) -> Response:
    """Send a queue's messages to the endpoint. Requires admin scope on both: the endpoint signs deliveries."""
    request.query()
    _check_endpoint(request, endpoint)
    await request.mq.endpoints.bind(queue, endpoint)
    return nothing()


@route("DELETE", "/endpoints/{endpoint:str}/queues/{queue:str}", Doc(**_CHANGE, object="queue"))
async def unbind_queue(request: Request, endpoint: FromPath[str], queue: FromPath[str]) -> Response:
    """Stop sending a queue's messages. Requires admin scope on the queue and the endpoint."""
    request.query()
    _check_endpoint(request, endpoint)
    await request.mq.endpoints.get(endpoint)
    await request.mq.endpoints.unbind(queue)
    return nothing()


def _check_endpoint(request: Request, endpoint: str) -> None:
    """Check the scope for the endpoint of a binding; the route has checked the queue."""
    request.service.auth.check(request.scope, "admin", endpoint)


class Rotated(msgspec.Struct, frozen=True):
    secret: str


@route(
    "POST",
    "/endpoints/{endpoint:str}/rotate",
    Doc(tag=TAG, scope="admin", object="endpoint", responses={200: Rotated}, problems=(404,), audit=True, portal=True),
)
async def rotate_secret(request: Request, endpoint: FromPath[str]) -> Response:
    """Create a new secret. The previous one also signs until the next rotation."""
    request.query()
    return respond(Rotated(await request.mq.endpoints.rotate(endpoint)))


class Attempts(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[Attempt]
    next: str | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "POST",
    "/endpoints/{endpoint:str}/test",
    Doc(
        tag=TAG,
        scope="admin",
        params=(Param(name="wait", kind=float, default=10, low=0, words="Seconds to wait for the outcome."),),
        object="endpoint",
        responses={200: Attempts},
        problems=(404,),
        audit=True,
        portal=True,
    ),
)
async def test_endpoint(request: Request, endpoint: FromPath[str]) -> Response:
    """Send a test request through a dispatcher and return its outcome, or none if it did not finish in time."""
    wait = request.query()["wait"] or 0
    found = await request.mq.endpoints.test(endpoint, timeout=timedelta(seconds=wait))
    return respond(Attempts(_shown(request, [] if found is None else [found])))


_STATUS = re.compile(r"[1-5]xx|none|[1-5][0-9][0-9]")


@route(
    "GET",
    "/endpoints/{endpoint:str}/attempts",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="message_id", words="Only attempts of this message."),
            Param(
                name="outcome",
                choices=("acked", "nacked", "buried", "released", "tested"),
                words="Only attempts with this outcome.",
            ),
            Param(name="status", words="Only responses with this status, such as 503 or 5xx; `none`: without a response."),
            Param(name="since", kind=float, default=86400, low=1, high=2_592_000, words="Age limit in seconds."),
            Param(name="start", kind=datetime, words="Only attempts after this time, instead of `since`."),
            Param(name="end", kind=datetime, words="Only attempts before this time."),
            Param(name="after", words="`next` of the previous page."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of attempts."),
        ),
        object="endpoint",
        responses={200: Attempts},
        problems=(404,),
        portal=True,
    ),
)
async def list_attempts(request: Request, endpoint: FromPath[str]) -> Response:
    """List requests, newest first, with status, time, outcome and the start of the response."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await push.list_attempts(
            conn,
            endpoint,
            id=_id(query["message_id"]),
            since=timedelta(seconds=query["since"]),
            limit=query["limit"],
            outcome=query["outcome"],
            status=_status(query["status"]),
            start=query["start"],
            end=query["end"],
            after=_place(query["after"]),
        )
    last = rows[-1] if len(rows) == query["limit"] else None
    following = None if last is None else f"{last.started_at.astimezone(UTC).isoformat()}/{last.id}"
    return respond(Attempts(_shown(request, rows), following))


def _shown(request: Request, rows: list[Attempt]) -> list[Attempt]:
    """Hide from the receiver what it does not know: our queues and processes."""
    return [replace(row, queue=None, dispatcher="") for row in rows] if request.portal else rows


def _id(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise invalid("message_id: must be a UUID.") from None


def _status(text: str | None) -> int | None:
    """Return a status, the first digit of a class, or 0 for no response."""
    if text is None:
        return None
    if not _STATUS.fullmatch(text):
        raise invalid("status: must be a status such as 503, a class such as 5xx, or none.")
    return 0 if text == "none" else int(text.removesuffix("xx"))


def _place(text: str | None) -> tuple[datetime, UUID] | None:
    if text is None:
        return None
    at, _, id = text.partition("/")
    try:
        return moment(at), UUID(id)
    except ValueError:
        raise invalid("after: must be `next` of a page.") from None


class EndpointEvents(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[EndpointEvent]
    next: int | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/endpoints/{endpoint:str}/events",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="after", kind=int, low=0, words="`next` of the previous page."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of events."),
        ),
        object="endpoint",
        responses={200: EndpointEvents},
        problems=(404,),
        portal=True,
    ),
)
async def list_events(request: Request, endpoint: FromPath[str]) -> Response:
    """List changes of the endpoint's state and circuit breaker, newest first."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await push.list_endpoint_events(conn, endpoint, before=query["after"], limit=query["limit"])
    return respond(EndpointEvents(rows, rows[-1].event_no if len(rows) == query["limit"] else None))


class Replay(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages by id, or those acked between `start` and `end`."""

    ids: Annotated[list[UUID], Meta(min_length=1, max_length=1000)] | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class Replayed(msgspec.Struct, frozen=True):
    replayed: int


@route(
    "POST",
    "/queues/{queue:str}/replay",
    Doc(
        tag=TAG,
        scope="admin",
        body=Replay,
        object="queue",
        responses={200: Replayed},
        problems=(400, 404, 408, 413),
        audit=True,
    ),
)
async def replay(request: Request, queue: FromPath[str]) -> Response:
    """Deliver messages again that were already delivered."""
    request.query()
    body = await request.read(Replay)
    for at in (body.start, body.end):
        if at is not None and at.tzinfo is None:
            raise invalid("start, end: must have a time zone.")
    count = await request.mq.endpoints.replay(queue, ids=body.ids, start=body.start, end=body.end, limit=body.limit)
    return respond(Replayed(count))


ROUTES = [
    create_endpoint,
    list_endpoints,
    get_endpoint,
    alter_endpoint,
    delete_endpoint,
    pause_endpoint,
    resume_endpoint,
    bind_queue,
    unbind_queue,
    rotate_secret,
    test_endpoint,
    list_attempts,
    list_events,
    replay,
]
