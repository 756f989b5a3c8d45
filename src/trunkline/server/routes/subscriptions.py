"""Subscriptions, which feed queues from topics."""

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
_QUEUE = Param(name="queue", words="Queue of the subscription, if several queues have one of that name.")


class NewSubscription(msgspec.Struct, kw_only=True):
    """A subscription to create. Messages match if each header in `message_filters` has one of its values and the
    routing key matches `pattern`."""

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
    """Feed a queue from a topic, from now on or from `start`."""
    body = await request.read(NewSubscription)
    refuse(id=name_fault(body.id), topic_id=name_fault(body.topic_id), queue_id=name_fault(body.queue_id))
    assert body.id and body.topic_id and body.queue_id  # noqa: S101
    request.engine.access.check(request.scope, "admin", body.topic_id)
    await request.allow(body.queue_id)
    try:
        async with request.writing() as conn:
            await doors.subscribe_once(
                conn,
                body.id,
                queue=body.queue_id,
                topic=body.topic_id,
                pattern=body.pattern,
                headers=body.message_filters,
                start=body.start,
            )
    except AlreadyExists as exc:
        raise Problem(400, "already_exists", exc.message, code=9, hint=exc.hint_in("sql")) from None
    return answer(SubscriptionView.of(await _find(request, body.id, body.queue_id)), 201)


async def _find(call: Call, id: str, queue: str | None = None) -> Subscription:
    """Find a subscription. Names created over HTTP are unique; in SQL they are unique per queue only."""
    found = [row for row in await call.mq.subscriptions.list(queue) if row.name == id]
    if not found:
        raise SubscriptionNotFound(
            f"subscription {id} does not exist", hint="List subscriptions with trunkline.list_subscriptions."
        )
    if len(found) > 1:
        raise Problem(409, "ambiguous", f"{len(found)} queues have a subscription {id}", hint="Choose one with ?queue=.")
    return found[0]


@route(
    "GET",
    "/subscriptions/{subscription:str}",
    Doc(tag=TAG, scope="read", params=(_QUEUE,), strict=False, answers={200: SubscriptionView}, problems=(404, 409)),
)
async def get_subscription(request: Call, subscription: FromPath[str]) -> Answer:
    """Get one subscription."""
    return answer(SubscriptionView.of(await _find(request, subscription, request.query()["queue"])))


@route("GET", "/subscriptions", Doc(tag=TAG, scope="read", params=(OFFSET, LIMIT), strict=False, answers={200: Page}))
async def list_subscriptions(request: Call) -> Answer:
    """List subscriptions by id, 100 per page by default."""
    query = request.query()
    rows = sorted(await request.mq.subscriptions.list(), key=lambda row: row.name)
    return answer(page([SubscriptionView.of(row) for row in rows], query))


@route(
    "DELETE",
    "/subscriptions/{subscription:str}",
    Doc(tag=TAG, scope="admin", params=(_QUEUE,), strict=False, answers={204: None}, problems=(404, 409), audit=True),
)
async def delete_subscription(request: Call, subscription: FromPath[str]) -> Answer:
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
        answers={200: Readers},
        problems=(404,),
        object="topic",
    ),
)
async def readers(request: Call, topic: FromPath[str]) -> Answer:
    """List the readers of a topic, and whether they would get a message with this routing key and headers."""
    query = request.query()
    try:
        headers = msgspec.json.decode(query["headers"] or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise invalid("headers: must be a JSON object.") from None
    return answer(Readers(await request.mq.subscriptions.test(topic, query["routing_key"], headers)))


ROUTES = [create_subscription, get_subscription, list_subscriptions, delete_subscription, readers]
