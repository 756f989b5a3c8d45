"""The API of psqlqueue: its fields, defaults and error numbers, and settling by message id."""

from __future__ import annotations

import asyncio
import base64
import math
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.db import calls
from trunkline.db.calls import compat
from trunkline.errors import AlreadyExists, InUse, SubscriptionNotFound, TrunklineError
from trunkline.hints import Interface
from trunkline.server import problems
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import BLANK, Seconds, name_fault, refuse, span
from trunkline.server.claiming import settle
from trunkline.server.messages import idempotency_key, traced
from trunkline.server.pages import html_page
from trunkline.server.problems import Malformed, Problem, message_not_found
from trunkline.server.query import FORCE, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Health, Page, page
from trunkline.types import Delivery, NewMessage, Queue, QueueStats, Result, Subscription, Topic
from trunkline.wire import seconds

PREFIX = "/compat/psqlqueue"
_TEXT = "text/plain; charset=utf-8"
# psqlqueue retries messages until their retention ends
_MANY_ATTEMPTS = 1000
_REMEMBERED = 100_000
_OFFSET = Param(name="offset", kind=int, default=0, low=0, lenient=True, words="Number of items to skip.")
_LIMIT = Param(
    name="limit", kind=int, default=100, low=0, lenient=True, words="Maximum number of items; `next` indicates more."
)


# Errors

MESSAGES = {
    1: "internal server error",
    2: "malformed request body",
    3: "request validation failed",
    4: "queue already exists",
    5: "queue not found",
    6: "message not found",
    7: "topic already exists",
    8: "topic not found",
    9: "subscription already exists",
    10: "subscription not found",
}
_NOT_FOUND = {"queue_not_found": 5, "message_not_found": 6, "topic_not_found": 8, "subscription_not_found": 10}


class Details(problems.Details, frozen=True, kw_only=True, omit_defaults=True):
    """A problem. `code`, `message` and `details` are psqlqueue's; `error` is our stable code."""

    code: int | None = None
    message: str | None = None
    details: str | None = None


class Taken(Problem):
    """The id is in use, which psqlqueue reports as a 400."""

    def __init__(self, number: int, detail: str, hint: str | None) -> None:
        super().__init__(400, "already_exists", detail, hint=hint)
        self.number = number


def details(problem: Problem, words: Interface = "route") -> Details:
    """Add psqlqueue's fields to a problem."""
    number = _number(problem)
    return Details(
        **msgspec.structs.asdict(problem.details(words)),
        code=number,
        message=None if number is None else MESSAGES[number],
        details=problem.detail if number == 3 else None,
    )


def _number(problem: Problem) -> int | None:
    if isinstance(problem, Taken):
        return problem.number
    if problem.status >= 500:
        return 1
    if problem.status == 400:
        return 2 if isinstance(problem, Malformed) else 3
    return _NOT_FOUND.get(problem.error)


# Queues


class QueueSettings(msgspec.Struct, kw_only=True):
    """Queue settings. The first two are required."""

    ack_deadline_seconds: Seconds | None = None
    message_retention_seconds: Seconds | None = None
    delivery_delay_seconds: Seconds | None = None

    def faults(self) -> dict[str, str | None]:
        return {
            "ack_deadline_seconds": None if self.ack_deadline_seconds else BLANK,
            "message_retention_seconds": None if self.message_retention_seconds else BLANK,
        }

    def settings(self) -> dict[str, Any]:
        return {
            "lease": span(self.ack_deadline_seconds),
            "ttl": span(self.message_retention_seconds),
            "delivery_delay": span(self.delivery_delay_seconds or 0),
        }


class NewQueue(QueueSettings, kw_only=True):
    """A queue to create."""

    id: str | None = None


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    ack_deadline_seconds: float
    message_retention_seconds: float | None
    delivery_delay_seconds: float
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, queue: Queue) -> QueueView:
        return cls(
            id=queue.name,
            ack_deadline_seconds=seconds(queue.lease),
            message_retention_seconds=None if queue.ttl is None else seconds(queue.ttl),
            delivery_delay_seconds=seconds(queue.delivery_delay),
            created_at=queue.created_at,
            updated_at=queue.updated_at,
        )


class QueueStatsView(msgspec.Struct, frozen=True, kw_only=True):
    num_undelivered_messages: int
    oldest_unacked_message_age_seconds: int
    ready: int
    delayed: int
    leased: int
    dead: int
    acked: int
    expired: int
    purged: int
    paused: bool

    @classmethod
    def of(cls, row: QueueStats) -> QueueStatsView:
        return cls(
            num_undelivered_messages=row.ready,
            oldest_unacked_message_age_seconds=math.floor(row.oldest_age) if row.ready else 0,
            ready=row.ready,
            delayed=row.delayed,
            leased=row.leased,
            dead=row.dead,
            acked=row.acked,
            expired=row.expired,
            purged=row.purged,
            paused=row.paused,
        )


def _doc(tag: str, scope: str, **more: Any) -> Doc:
    """Declare a route. As in psqlqueue, unknown parameters are ignored."""
    return Doc(tag=tag, scope=scope, strict=False, **more)


@route(
    "POST",
    "/queues",
    _doc("queues", "admin", body=NewQueue, object=IN_BODY, responses={201: QueueView}, problems=(400,), audit=True),
)
async def create_queue(request: Request) -> Response:
    """Create a queue."""
    body = await request.read(NewQueue)
    refuse(id=name_fault(body.id), **body.faults())
    assert body.id is not None  # noqa: S101
    await request.allow(body.id)
    try:
        queue = await request.mq.queues.create(body.id, max_attempts=_MANY_ATTEMPTS, **body.settings())
    except AlreadyExists as exc:
        raise Taken(4, f"queue {body.id} already exists", exc.hint_in("sql")) from None
    return respond(QueueView.of(queue), 201)


@route(
    "PUT",
    "/queues/{queue:str}",
    _doc("queues", "admin", object="queue", body=QueueSettings, responses={200: QueueView}, problems=(400, 404), audit=True),
)
async def replace_queue(request: Request, queue: FromPath[str]) -> Response:
    """Replace the settings. The delivery delay is 0 if omitted."""
    body = await request.read(QueueSettings)
    refuse(**body.faults())
    return respond(QueueView.of(await request.mq.queues.alter(queue, **body.settings())))


@route("GET", "/queues/{queue:str}", _doc("queues", "read", object="queue", responses={200: QueueView}, problems=(404,)))
async def get_queue(request: Request, queue: FromPath[str]) -> Response:
    """Get one queue."""
    return respond(QueueView.of(await request.mq.queues.get(queue)))


@route("GET", "/queues", _doc("queues", "read", params=(_OFFSET, _LIMIT), responses={200: Page}))
async def list_queues(request: Request) -> Response:
    """List queues by id, 100 per page by default."""
    return respond(page([QueueView.of(row) for row in await request.mq.queues.list()], request.query()))


@route(
    "DELETE",
    "/queues/{queue:str}",
    _doc("queues", "admin", object="queue", params=(FORCE,), responses={204: None}, problems=(404, 409), audit=True),
)
async def delete_queue(request: Request, queue: FromPath[str]) -> Response:
    """Delete a queue with its messages and subscriptions. Refused while it has dead letters, unless forced."""
    await request.mq.queues.delete(queue, force=request.query()["force"])
    request.service.long_poll.look(queue)
    return nothing()


@route(
    "GET",
    "/queues/{queue:str}/stats",
    _doc("queues", "read", object="queue", responses={200: QueueStatsView}, problems=(404,), reads=True),
)
async def queue_stats(request: Request, queue: FromPath[str]) -> Response:
    """Count the messages by state, with the age of the oldest ready one."""
    return respond(QueueStatsView.of((await request.mq.queues.stats(queue))[0]))


_CHANGE: dict[str, Any] = {"object": "queue", "responses": {204: None}, "problems": (404,), "audit": True}


@route("PUT", "/queues/{queue:str}/purge", _doc("queues", "admin", **_CHANGE))
async def purge_queue(request: Request, queue: FromPath[str]) -> Response:
    """Remove all messages of the queue, including leased ones."""
    await request.mq.queues.purge(queue)
    async with request.writing() as conn:
        await compat.drop_leases(conn, queue)
    return nothing()


@route("PUT", "/queues/{queue:str}/cleanup", _doc("queues", "admin", **_CHANGE))
async def trim_queue(request: Request, queue: FromPath[str]) -> Response:
    """Remove finished messages now instead of waiting for upkeep."""
    await request.mq.queues.trim(queue)
    return nothing()


# Topics


class NewTopic(msgspec.Struct, kw_only=True):
    """A topic to create."""

    id: str | None = None


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: datetime

    @classmethod
    def of(cls, topic: Topic) -> TopicView:
        return cls(id=topic.name, created_at=topic.created_at)


@route(
    "POST",
    "/topics",
    _doc("topics", "admin", body=NewTopic, object=IN_BODY, responses={201: TopicView}, problems=(400,), audit=True),
)
async def create_topic(request: Request) -> Response:
    """Create a topic."""
    body = await request.read(NewTopic)
    refuse(id=name_fault(body.id))
    assert body.id is not None  # noqa: S101
    await request.allow(body.id)
    try:
        return respond(TopicView.of(await request.mq.topics.create(body.id)), 201)
    except AlreadyExists as exc:
        raise Taken(7, f"topic {body.id} already exists", exc.hint_in("sql")) from None


@route("GET", "/topics/{topic:str}", _doc("topics", "read", object="topic", responses={200: TopicView}, problems=(404,)))
async def get_topic(request: Request, topic: FromPath[str]) -> Response:
    """Get one topic."""
    return respond(TopicView.of(await request.mq.topics.get(topic)))


@route("GET", "/topics", _doc("topics", "read", params=(_OFFSET, _LIMIT), responses={200: Page}))
async def list_topics(request: Request) -> Response:
    """List topics by id, 100 per page by default."""
    return respond(page([TopicView.of(row) for row in await request.mq.topics.list()], request.query()))


@route(
    "DELETE",
    "/topics/{topic:str}",
    _doc("topics", "admin", object="topic", params=(FORCE,), responses={204: None}, problems=(404, 409), audit=True),
)
async def delete_topic(request: Request, topic: FromPath[str]) -> Response:
    """Delete a topic with its subscriptions.

    Unless forced, this is refused while a group reads the topic, a schedule publishes to it, or a subscribed queue has
    unsettled messages.
    """
    try:
        await request.mq.topics.delete(topic, force=request.query()["force"])
    except InUse:
        # psqlqueue deletes subscriptions with their topic; we do so only if no message is lost
        if not await _only_drained_queues(request, topic):
            raise
        await request.mq.topics.delete(topic, force=True)
    return nothing()


async def _only_drained_queues(request: Request, topic: str) -> bool:
    """Return whether the topic's only readers are queues that have settled all their messages."""
    mq = request.mq
    # on a separate connection: this route runs in a transaction
    await mq.session.wakeup.sequence("topic", topic)
    if await mq.groups.list(topic) or any(row.topic == topic for row in await mq.schedules.list()):
        return False
    if any(row.delayed for row in await mq.topics.stats(topic)):
        return False
    for queue in {row.queue for row in await mq.subscriptions.list(topic=topic)}:
        (stats,) = await mq.queues.stats(queue)
        if stats.ready + stats.delayed + stats.leased:
            return False
    return True


# Subscriptions


class NewSubscription(msgspec.Struct, kw_only=True):
    """A subscription to create. Messages match if each attribute in `message_filters` has one of its values."""

    id: str | None = None
    topic_id: str | None = None
    queue_id: str | None = None
    message_filters: dict[str, list[str]] | None = None


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    topic_id: str
    queue_id: str
    message_filters: dict[str, Any] | None
    created_at: datetime

    @classmethod
    def of(cls, row: Subscription) -> SubscriptionView:
        return cls(
            id=row.name, topic_id=row.topic, queue_id=row.queue, message_filters=row.headers, created_at=row.created_at
        )


_QUEUE = Param(name="queue", words="Queue of the subscription, if several queues have one of that name.")


@route(
    "POST",
    "/subscriptions",
    _doc(
        "subscriptions",
        "admin",
        body=NewSubscription,
        object=IN_BODY,
        responses={201: SubscriptionView},
        problems=(400, 404),
        audit=True,
    ),
)
async def create_subscription(request: Request) -> Response:
    """Feed a queue from a topic, from now on."""
    body = await request.read(NewSubscription)
    refuse(id=name_fault(body.id), topic_id=name_fault(body.topic_id), queue_id=name_fault(body.queue_id))
    assert body.id and body.topic_id and body.queue_id  # noqa: S101
    request.service.auth.check(request.scope, "admin", body.topic_id)
    await request.allow(body.queue_id)
    try:
        async with request.writing() as conn:
            await compat.subscribe_once(
                conn, body.id, queue=body.queue_id, topic=body.topic_id, headers=body.message_filters
            )
    except AlreadyExists as exc:
        raise Taken(9, exc.message, exc.hint_in("sql")) from None
    return respond(SubscriptionView.of(await _find(request, body.id, body.queue_id)), 201)


async def _find(request: Request, id: str, queue: str | None = None) -> Subscription:
    """Find a subscription. Names created here are unique; natively they are unique per queue only."""
    found = [row for row in await request.mq.subscriptions.list(queue) if row.name == id]
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
    _doc("subscriptions", "read", params=(_QUEUE,), responses={200: SubscriptionView}, problems=(404, 409)),
)
async def get_subscription(request: Request, subscription: FromPath[str]) -> Response:
    """Get one subscription."""
    return respond(SubscriptionView.of(await _find(request, subscription, request.query()["queue"])))


@route("GET", "/subscriptions", _doc("subscriptions", "read", params=(_OFFSET, _LIMIT), responses={200: Page}))
async def list_subscriptions(request: Request) -> Response:
    """List subscriptions by id, 100 per page by default."""
    rows = sorted(await request.mq.subscriptions.list(), key=lambda row: row.name)
    return respond(page([SubscriptionView.of(row) for row in rows], request.query()))


@route(
    "DELETE",
    "/subscriptions/{subscription:str}",
    _doc("subscriptions", "admin", params=(_QUEUE,), responses={204: None}, problems=(404, 409), audit=True),
)
async def delete_subscription(request: Request, subscription: FromPath[str]) -> Response:
    """Delete a subscription. Its unsettled messages are dropped."""
    row = await _find(request, subscription, request.query()["queue"])
    await request.mq.subscriptions.remove(row.queue, row.name)
    return nothing()


# Publishing


class NewTextMessage(msgspec.Struct, kw_only=True):
    """A message."""

    body: str | None = None
    label: Annotated[str, Meta(max_length=200)] | None = None
    attributes: dict[str, str] | None = None


class PublishedView(msgspec.Struct, frozen=True):
    id: UUID
    duplicate: bool


_PUBLISH: dict[str, Any] = {
    "body": NewTextMessage,
    "responses": {204: None, 201: PublishedView},
    "problems": (400, 404, 409, 413),
    "headers": {
        "Idempotency-Key": "A repeated publish with the same key stores nothing and returns the first id.",
        "Prefer": "return=representation: respond 201 with the id instead of 204.",
        "traceparent": "W3C trace context, stored as an attribute.",
    },
}


async def _publish(request: Request, kind: str, name: str) -> Response:
    body = await request.read(NewTextMessage)
    refuse(body=None if body.body else BLANK)
    assert body.body is not None  # noqa: S101
    message = NewMessage(
        body=body.body.encode(),
        content_type=_TEXT,
        label=body.label,
        headers=traced(body.attributes, request.trace()),
        idempotency_key=idempotency_key(request),
    )
    stored = await request.service.publish(kind, name, message)
    headers = {"message-id": str(stored.id)}
    if "return=representation" not in (request.header("prefer") or ""):
        return nothing(headers)
    return respond(PublishedView(stored.id, stored.duplicate), 201, headers)


@route("POST", "/topics/{topic:str}/messages", _doc("messages", "publish", object="topic", **_PUBLISH))
async def publish(request: Request, topic: FromPath[str]) -> Response:
    """Publish a message. The response has its id in the header Message-Id."""
    return await _publish(request, "topic", topic)


@route("POST", "/queues/{queue:str}/messages", _doc("messages", "publish", object="queue", **_PUBLISH))
async def enqueue(request: Request, queue: FromPath[str]) -> Response:
    """Enqueue a message. The response has its id in the header Message-Id."""
    return await _publish(request, "inbox", queue)


# Consuming


class Receipts:
    """Receipts of recent deliveries of this process, by queue and message id. Older ones are looked up in the database."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, UUID], str] = OrderedDict()

    def remember(self, queue: str, id: UUID, receipt: str) -> None:
        self._known[queue, id] = receipt
        self._known.move_to_end((queue, id))
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def take(self, queue: str, id: UUID) -> str | None:
        return self._known.pop((queue, id), None)


def _receipts(request: Request) -> Receipts:
    receipts: Receipts = request.app.state.psqlqueue_receipts
    return receipts


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery in psqlqueue's form, plus its receipt."""

    id: UUID
    queue_id: str
    label: str | None
    body: str
    attributes: dict[str, str] | None
    delivery_attempts: int
    created_at: datetime
    receipt: str
    deadline: datetime
    topic_id: str | None
    key: str | None
    routing_key: str | None
    content_type: str
    base64: bool

    @classmethod
    def of(cls, queue: str, delivery: Delivery[Any]) -> DeliveryView:
        body, encoded = _as_text(delivery.payload)
        return cls(
            id=delivery.id,
            queue_id=queue,
            label=delivery.label,
            body=body,
            attributes=_attributes(delivery.headers),
            delivery_attempts=delivery.attempt,
            created_at=delivery.created_at,
            receipt=delivery.receipt,
            deadline=delivery.deadline,
            topic_id=delivery.topic,
            key=delivery.key,
            routing_key=delivery.routing_key,
            content_type=delivery.content_type,
            base64=encoded,
        )


def _as_text(payload: bytes) -> tuple[str, bool]:
    """Represent a payload as a string. The flag is set if it is base64, because the payload is not UTF-8."""
    try:
        return payload.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), True


def _attributes(headers: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Convert header values to strings."""
    if headers is None:
        return None
    return {key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in headers.items()}


class Deliveries(msgspec.Struct, frozen=True):
    data: list[DeliveryView]
    limit: int


@route(
    "GET",
    "/queues/{queue:str}/messages",
    _doc(
        "messages",
        "consume",
        object="queue",
        params=(
            Param(name="label", words="Only messages with this label."),
            Param(name="limit", kind=int, default=10, low=0, lenient=True, words="Maximum number of messages."),
            Param(
                name="wait",
                kind=float,
                default=0.0,
                low=0,
                high=30,
                lenient=True,
                words="Seconds to wait if no message is ready.",
            ),
        ),
        responses={200: Deliveries},
        problems=(404,),
    ),
)
async def consume(request: Request, queue: FromPath[str]) -> Response:
    """Lease messages for the queue's acknowledgement deadline. Settle them by id, or preferably by receipt."""
    query = request.query()
    limit = min(query["limit"], request.service.config.max_pull)
    if limit == 0:
        await request.mq.queues.get(queue)
        return respond(Page([], 0))
    labels = [query["label"]] if query["label"] else None
    if query["wait"]:
        await request.bytes()
    taken = await request.service.long_poll.claim(request, queue, limit=limit, labels=labels, wait=query["wait"])
    receipts = _receipts(request)
    for delivery in taken:
        receipts.remember(queue, delivery.id, delivery.receipt)
    return respond(Deliveries([DeliveryView.of(queue, delivery) for delivery in taken], limit))


class Again(msgspec.Struct, kw_only=True):
    """The delay before redelivery."""

    visibility_timeout_seconds: Annotated[int, Meta(ge=0, le=31_536_000)] = 0


_BY_ID: dict[str, Any] = {"object": "queue", "responses": {204: None}, "problems": (400, 404)}
_DELAY = Param(
    name="visibility_timeout_seconds", kind=int, low=0, high=31_536_000, lenient=True, words="Same as in the body."
)


@route("PUT", "/queues/{queue:str}/messages/{message:str}/ack", _doc("messages", "consume", **_BY_ID))
async def ack(request: Request, queue: FromPath[str], message: FromPath[str]) -> Response:
    """Ack a message. By receipt: only if that delivery still holds it. By id: whichever delivery holds it."""
    await _settle_one(request, queue, message, None)
    return nothing()


@route(
    "PUT",
    "/queues/{queue:str}/messages/{message:str}/nack",
    _doc("messages", "consume", **_BY_ID, params=(_DELAY,), body=Again, optional_body=True),
)
async def nack(request: Request, queue: FromPath[str], message: FromPath[str]) -> Response:
    """Redeliver the message after a delay, by default immediately."""
    given = request.query()["visibility_timeout_seconds"]
    body = await request.read(Again, optional=True)
    await _settle_one(request, queue, message, body.visibility_timeout_seconds if given is None else given)
    return nothing()


async def _settle_one(request: Request, queue: str, message: str, delay: int | None) -> None:
    """Ack, or nack with `delay`. Settling an acked message has no effect and is not an error."""
    if "." in message:
        await _settle_receipt(request, queue, message, delay)
        return
    try:
        id = UUID(message)
    except ValueError:
        await request.mq.queues.get(queue)
        raise message_not_found(f"{message[:100]!r} is not a message id") from None
    receipt = _receipts(request).take(queue, id)
    if receipt is not None and await _settle(request, queue, receipt, delay) == "done":
        return
    # delivered by another worker, or evicted from memory: ask the database
    for _ in range(3):
        async with request.mq.connection() as conn:
            held = await compat.delivery_of(conn, queue, id)
        if held is None:
            state = await _not_readable_yet(request, queue, id)
            if state is None:
                raise message_not_found(f"queue {queue} has no message {id}")
            raise message_not_found(f"message {id} is not leased: it is {state}")
        if held.state == "acked":
            return
        if held.receipt is None:
            raise message_not_found(f"message {id} is not leased: it is {held.state}")
        if await _settle(request, queue, held.receipt, delay) == "done":
            return
        await asyncio.sleep(0.01)
    raise message_not_found(f"the delivery of message {id} keeps changing")


async def _not_readable_yet(request: Request, queue: str, id: UUID) -> str | None:
    """Return the state of a message that has no offset yet, or None if the queue has no such message."""
    found = await request.mq.explain(id)
    state = {"not_sequenced": "ready", "delayed": "delayed"}.get(found.state)
    if state is None or found.get("queue") == queue:
        return state
    topics = {row.topic for row in await request.mq.subscriptions.list(queue)}
    return state if found.get("topic") in topics else None


async def _settle_receipt(request: Request, queue: str, receipt: str, delay: int | None) -> None:
    result = await _settle(request, queue, receipt, delay)
    if result == "unknown":
        raise message_not_found(f"not a receipt of queue {queue}")
    if result != "done":
        raise message_not_found(f"the delivery is {result}: its lease expired or it was already settled")


async def _settle(request: Request, queue: str, receipt: str, delay: int | None) -> Result:
    if delay is None:
        return (await request.service.acker.ack(queue, [receipt]))[0]
    async with request.writing() as conn:
        nack = partial(calls.nack, conn, delay=timedelta(seconds=delay), error=None)
        return (await settle(conn, queue, [receipt], nack))[0]


# The service


@route("GET", "/healthz", Doc(tag="service", scope="public", strict=False, responses={200: Health}, problems=(500,)))
async def health(request: Request) -> Response:
    """Report whether the database responds."""
    try:
        await request.service.check_database()
    except TrunklineError as exc:
        raise Problem(500, exc.code, exc.message) from None
    return respond(Health(True))


@route(
    "GET",
    "/swagger/index.html",
    Doc(tag="service", scope="public", strict=False, responses={200: str}, media="text/html"),
)
async def swagger_page(request: Request) -> Response:
    """Show a page to browse and try this API."""
    return html_page(request)


ROUTES = [
    create_queue,
    replace_queue,
    get_queue,
    list_queues,
    delete_queue,
    queue_stats,
    purge_queue,
    trim_queue,
    create_topic,
    get_topic,
    list_topics,
    delete_topic,
    create_subscription,
    get_subscription,
    list_subscriptions,
    delete_subscription,
    publish,
    enqueue,
    consume,
    ack,
    nack,
    health,
    swagger_page,
]
"""Routes below `/v1`."""
