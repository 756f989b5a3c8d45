"""Subscriptions, which feed queues from topics."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.errors import SubscriptionNotFound
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import name_fault, refuse
from trunkline.server.problems import Problem, invalid
from trunkline.server.query import LIMIT, OFFSET, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, page
from trunkline.types import Reader, Subscription
from trunkline.wire import to_view, view

SubscriptionView = view(Subscription)
TAG = "subscriptions"
_QUEUE = Param(name="queue", words="Queue of the subscription, if several queues have one of that name.")


class SubscriptionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A subscription to create. Messages match if each header in `headers` has one of its values and the routing key
    matches `pattern`."""

    queue: str | None = None
    topic: str | None = None
    name: str | None = None
    """Unique per queue; defaults to the topic's name."""
    headers: dict[str, Any] | None = None
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)] = "#"
    start: Annotated[str, Meta(min_length=1, max_length=100)] = "latest"
    """latest, earliest, an offset or a time."""


@route(
    "POST",
    "/subscriptions",
    Doc(
        tag=TAG,
        scope="admin",
        body=SubscriptionBody,
        object=IN_BODY,
        responses={201: SubscriptionView},
        problems=(400, 404, 409, 416),
        audit=True,
    ),
)
async def create_subscription(request: Request) -> Response:
    """Feed a queue from a topic, from now on or from `start`."""
    request.query()
    body = await request.read(SubscriptionBody)
    refuse(
        queue=name_fault(body.queue),
        topic=name_fault(body.topic),
        name=None if body.name is None else name_fault(body.name),
    )
    assert body.queue and body.topic  # noqa: S101
    request.service.auth.check(request.scope, "admin", body.topic)
    await request.allow(body.queue)
    added = await request.mq.subscriptions.add(
        body.queue, body.topic, pattern=body.pattern, headers=body.headers, start=body.start, name=body.name
    )
    return respond(to_view(added), 201)


async def _find(request: Request, name: str, queue: str | None) -> Subscription:
    """Find a subscription. Names are unique per queue only."""
    found = [row for row in await request.mq.subscriptions.list(queue) if row.name == name]
    if not found:
        raise SubscriptionNotFound(
            f"subscription {name} does not exist", hint="List subscriptions with trunkline.list_subscriptions."
        )
    if len(found) > 1:
        raise Problem(409, "ambiguous", f"{len(found)} queues have a subscription {name}", hint="Choose one with ?queue=.")
    return found[0]


@route(
    "GET",
    "/subscriptions/{subscription:str}",
    Doc(tag=TAG, scope="read", params=(_QUEUE,), responses={200: SubscriptionView}, problems=(404, 409)),
)
async def get_subscription(request: Request, subscription: FromPath[str]) -> Response:
    """Get one subscription."""
    return respond(to_view(await _find(request, subscription, request.query()["queue"])))


@route(
    "GET",
    "/subscriptions",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="queue", words="Only subscriptions of this queue."),
            Param(name="topic", words="Only subscriptions to this topic."),
            OFFSET,
            LIMIT,
        ),
        responses={200: Page},
    ),
)
async def list_subscriptions(request: Request) -> Response:
    """List subscriptions by queue and name, 100 per page by default."""
    query = request.query()
    rows = await request.mq.subscriptions.list(query["queue"], query["topic"])
    return respond(page([to_view(row) for row in rows], query))


@route(
    "DELETE",
    "/subscriptions/{subscription:str}",
    Doc(tag=TAG, scope="admin", params=(_QUEUE,), responses={204: None}, problems=(404, 409), audit=True),
)
async def delete_subscription(request: Request, subscription: FromPath[str]) -> Response:
    """Delete a subscription. Its unsettled messages are dropped."""
    row = await _find(request, subscription, request.query()["queue"])
    await request.mq.subscriptions.remove(row.queue, row.name)
    return nothing()


class Readers(msgspec.Struct, frozen=True):
    data: list[Reader]


@route(
    "GET",
    "/topics/{topic:str}/readers",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="routing_key", words="Routing key to test."),
            Param(name="headers", words="Headers to test, a JSON object."),
        ),
        responses={200: Readers},
        problems=(404,),
        object="topic",
    ),
)
async def readers(request: Request, topic: FromPath[str]) -> Response:
    """List the readers of a topic, and whether they would get a message with this routing key and headers."""
    query = request.query()
    try:
        headers = msgspec.json.decode(query["headers"] or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise invalid("headers: must be a JSON object.") from None
    return respond(Readers(await request.mq.subscriptions.test(topic, query["routing_key"], headers)))


ROUTES = [create_subscription, get_subscription, list_subscriptions, delete_subscription, readers]
