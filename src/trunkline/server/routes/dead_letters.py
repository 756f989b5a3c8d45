"""Dead letters."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import Meta, Raw

from trunkline.server.bodies import Name
from trunkline.server.budget import dead_letters
from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import dead_view
from trunkline.wire import DeadLetterView

TAG = "dead letters"


class DeadLetterPage(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[DeadLetterView]
    next: int | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/queues/{queue:str}/dead-letters",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="after", kind=int, default=0, low=0, words="`next` of the previous page."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of dead letters."),
        ),
        responses={200: DeadLetterPage},
        problems=(404,),
        object="queue",
    ),
)
async def list_dead(request: Request, queue: FromPath[str]) -> Response:
    """List dead letters, oldest first."""
    query = request.query()
    budget = request.service.config.max_response_bytes
    rows, more = await dead_letters(request.mq, queue, after=query["after"], limit=query["limit"], max_bytes=budget)
    following = rows[-1].dead_id if more else None
    return respond(DeadLetterPage([dead_view(queue, row) for row in rows], following))


@route(
    "GET",
    "/queues/{queue:str}/dead-letters/{message:uuid}",
    Doc(tag=TAG, scope="read", responses={200: DeadLetterView}, problems=(404,), object="queue"),
)
async def get_dead(request: Request, queue: FromPath[str], message: FromPath[UUID]) -> Response:
    """Get one dead letter by message id."""
    request.query()
    return respond(dead_view(queue, await request.mq.dead.get(queue, message)))


Ids = Annotated[list[UUID], Meta(min_length=1, max_length=1000)]


class Redrive(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Redrive these ids, the oldest `limit`, or all; to another queue or back to their own."""

    ids: Ids | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    to: Name | None = None


class Redriven(msgspec.Struct, frozen=True):
    redriven: int
    left: int
    """Dead letters that the queue still has; counted up to 100,000."""


@route(
    "POST",
    "/queues/{queue:str}/dead-letters/redrive",
    Doc(
        tag=TAG,
        scope="admin",
        body=Redrive,
        optional_body=True,
        responses={200: Redriven},
        problems=(400, 404, 408, 413),
        object="queue",
        audit=True,
    ),
)
async def redrive(request: Request, queue: FromPath[str]) -> Response:
    """Move dead letters back to the queue. Their attempts start again from 1."""
    request.query()
    body = await request.read(Redrive, optional=True)
    if body.to is not None:
        request.service.auth.check(request.scope, "admin", body.to)
    await request.mq.queues.get(queue)
    redriven = await request.mq.dead.redrive(queue, ids=body.ids, to=body.to, limit=body.limit)
    return respond(Redriven(redriven, await _left(request, queue)))


class Edited(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The payload that replaces that of a dead letter, and headers and content type unless they are null."""

    payload: Raw
    headers: dict[str, Any] | None = None
    content_type: Annotated[str, Meta(max_length=200)] | None = None


@route(
    "POST",
    "/queues/{queue:str}/dead-letters/{message:uuid}/redrive",
    Doc(
        tag=TAG,
        scope="admin",
        body=Edited,
        responses={204: None},
        problems=(400, 404, 408, 413),
        object="queue",
        audit=True,
    ),
)
async def redrive_edited(request: Request, queue: FromPath[str], message: FromPath[UUID]) -> Response:
    """Move one dead letter back to the queue with another JSON payload. It keeps its id, key and label."""
    request.query()
    body = await request.read(Edited)
    payload = msgspec.json.decode(body.payload)
    await request.mq.dead.redrive_edited(queue, message, payload, headers=body.headers, content_type=body.content_type)
    return nothing()


class Purge(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Purge these ids, the oldest `limit`, or all."""

    ids: Ids | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class Purged(msgspec.Struct, frozen=True):
    purged: int
    left: int
    """Dead letters that the queue still has; counted up to 100,000."""


@route(
    "POST",
    "/queues/{queue:str}/dead-letters/purge",
    Doc(
        tag=TAG,
        scope="admin",
        body=Purge,
        optional_body=True,
        responses={200: Purged},
        problems=(400, 404, 408, 413),
        object="queue",
        audit=True,
    ),
)
async def purge_dead(request: Request, queue: FromPath[str]) -> Response:
    """Delete dead letters permanently."""
    request.query()
    body = await request.read(Purge, optional=True)
    await request.mq.queues.get(queue)
    purged = await request.mq.dead.purge(queue, ids=body.ids, limit=body.limit)
    return respond(Purged(purged, await _left(request, queue)))


async def _left(request: Request, queue: str) -> int:
    return (await request.mq.queues.stats(queue))[0].dead


ROUTES = [list_dead, get_dead, redrive, redrive_edited, purge_dead]
