"""Subscriptions: what feeds queues from topics."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.db import doors
from trunkline.errors import AlreadyExists, SubscriptionNotFound
from trunkline.server.access import IN_BODY
from trunkline.server.call import Answer, Call, answer, nothing
from trunkline.server.fields import name_fault, refuse
from trunkline.server.params import LIMIT, OFFSET, Param
from trunkline.server.problems import Problem, invalid
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, SubscriptionView, page
from trunkline.types import Reader, Subscription

TAG = "subscriptions"
_QUEUE = Param(name="queue", words="Of this queue, where several have a subscription of that name.")


class NewSubscription(msgspec.Struct, kw_only=True):
    """A subscription to create: messages must have each header of `message_filters` with one of its values, and a routing
    key that matches `pattern`."""

    id: str | None = None
    topic_id: str | None = None
    queue_id: str | None = None
    message_filters: dict[str, list[str]] | None = None
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)] = "#"
    start: Annotated[str, Meta(min_length=1, max_length=100)] = "latest"
    """latest, earliest, an offset or a time."""


@route(
    "POST",
    "/subscriptions",
    Doc(
        tag=TAG,
        scope="admin",
        strict=False,
        body=NewSubscription,
        object=IN_BODY,
        answers={201: SubscriptionView},
        problems=(400, 404, 409, 416),
        audit=True,
    ),
)
async def create_subscription(request: Call) -> Answer:
    """Feed a queue from a topic, from now on unless `start` says otherwise."""
    asked = await request.read(NewSubscription)
    refuse(id=name_fault(asked.id), topic_id=name_fault(asked.topic_id), queue_id=name_fault(asked.queue_id))
    assert asked.id and asked.topic_id and asked.queue_id  # noqa: S101
    request.engine.access.check(request.scope, "admin", asked.topic_id)
    await request.allow(asked.queue_id)
    try:
        async with request.writing() as conn:
            await doors.subscribe_once(
                conn,
                asked.id,
                queue=asked.queue_id,
                topic=asked.topic_id,
                pattern=asked.pattern,
                headers=asked.message_filters,
                start=asked.start,
            )
    except AlreadyExists as exc:
        raise Problem(400, "already_exists", exc.message, code=9, hint=exc.hint_in("sql")) from None
    return answer(SubscriptionView.of(await _find(request, asked.id, asked.queue_id)), 201)


async def _find(call: Call, id: str, queue: str | None = None) -> Subscription:
    """Those made over HTTP have names of their own; those made in SQL may be called the same on several queues."""
    found = [row for row in await call.mq.subscriptions.list(queue) if row.name == id]
    if not found:
        raise SubscriptionNotFound(f"there is no subscription {id}", hint="see trunkline.list_subscriptions")
    if len(found) > 1:
        raise Problem(409, "ambiguous", f"{len(found)} queues have a subscription {id}", hint="say which with ?queue=")
    return found[0]


@route(
    "GET",
    "/subscriptions/{subscription:str}",
    Doc(tag=TAG, scope="read", params=(_QUEUE,), strict=False, answers={200: SubscriptionView}, problems=(404, 409)),
)
async def get_subscription(request: Call, subscription: FromPath[str]) -> Answer:
    """One subscription."""
    return answer(SubscriptionView.of(await _find(request, subscription, request.query()["queue"])))


@route("GET", "/subscriptions", Doc(tag=TAG, scope="read", params=(OFFSET, LIMIT), strict=False, answers={200: Page}))
async def list_subscriptions(request: Call) -> Answer:
    """Subscriptions by id, 100 at a time unless `limit` says otherwise."""
    query = request.query()
    rows = sorted(await request.mq.subscriptions.list(), key=lambda row: row.name)
    return answer(page([SubscriptionView.of(row) for row in rows], query))


@route(
    "DELETE",
    "/subscriptions/{subscription:str}",
    Doc(tag=TAG, scope="admin", params=(_QUEUE,), strict=False, answers={204: None}, problems=(404, 409), audit=True),
)
async def delete_subscription(request: Call, subscription: FromPath[str]) -> Answer:
    """Stop feeding. What is not settled of it is forgotten."""
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
            Param(name="routing_key", words="The routing key of a message to try."),
            Param(name="headers", words="Its headers, a JSON object."),
        ),
        answers={200: Readers},
        problems=(404,),
        object="topic",
    ),
)
async def readers(request: Call, topic: FromPath[str]) -> Answer:
    """Who reads the topic, and whether a message with this routing key and headers would be for them. Publishes nothing."""
    query = request.query()
    try:
        headers = msgspec.json.decode(query["headers"] or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise invalid("headers: is not a JSON object.") from None
    return answer(Readers(await request.mq.subscriptions.test(topic, query["routing_key"], headers)))


ROUTES = [create_subscription, get_subscription, list_subscriptions, delete_subscription, readers]
