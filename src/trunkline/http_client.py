"""A client that speaks HTTP to a server: the everyday methods of `Client`, with the same names, records and errors.

For programs that may reach the server and not its database. Needs `pip install 'trunkline[http]'`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec

from trunkline import errors
from trunkline.client.refusals import LeaseLost
from trunkline.db.codec import decoder, duration, encode_message, place
from trunkline.errors import DatabaseUnavailable, OutcomeUnknown, SettingsError, TrunklineError, Unauthorized
from trunkline.types import (
    Delivery,
    Duration,
    Explanation,
    GroupStats,
    Headers,
    Message,
    NewMessage,
    Place,
    Published,
    Queue,
    QueueStats,
    Result,
    Stats,
    Subscription,
    Topic,
    TopicStats,
)

_ERRORS: dict[str, type[TrunklineError]] = {
    cls.code: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TrunklineError)
}
_BY_STATUS: dict[int, type[TrunklineError]] = {
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.PayloadTooLarge,
    429: errors.Busy,
}
_MESSAGES = 1000


_ERRORS[LeaseLost.code] = LeaseLost


class HttpDelivery(Delivery[Any], frozen=True, kw_only=True, eq=False):
    """A message claimed from a queue until `deadline`."""

    _http: HttpClient
    _queue: str

    async def ack(self) -> Result:
        """It is done and never delivered again."""
        return (await self._http.ack(self._queue, [self.receipt]))[0]

    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> Result:
        """Deliver it again after `delay`, or never when this was its last attempt."""
        return (await self._http.nack(self._queue, [self.receipt], delay=delay, error=error))[0]

    async def bury(self, error: str | None = None) -> Result:
        """To the dead letters at once."""
        return (await self._http.bury(self._queue, [self.receipt], error=error))[0]

    async def release(self) -> Result:
        """Back to the queue at once; the attempt does not count."""
        return (await self._http.release(self._queue, [self.receipt]))[0]

    async def extend(self, lease: Duration) -> Result:
        """Keep it for `lease` from now."""
        return (await self._http.extend(self._queue, [self.receipt], lease=lease))[0]


class HttpBatch:
    """Messages of one partition, fetched for a group; commit it when they are handled."""

    def __init__(self, http: HttpClient, topic: str, group: str, body: dict[str, Any]) -> None:
        self.topic = topic
        self.group = group
        self.member: str = body["member"]
        self.partition: int = body["partition"]
        self.generation = UUID(body["generation"])
        self.deadline = _moment(body["deadline"])
        self.messages = [_message(row) for row in body["messages"]]
        self._http = http

    async def commit(self, offset: int | None = None) -> Result:
        """Everything up to `offset` (by default all of it) is done; `lost` when another member has the partition."""
        body = {
            "partition": self.partition,
            "generation": self.generation,
            "offset": self.messages[-1].offset if offset is None else offset,
        }
        try:
            await self._http._ask("POST", _group(self.topic, self.group, "commit"), body)
        except LeaseLost:
            return "lost"
        return "done"


class HttpClient:
    """`async with HttpClient(url, token) as mq:`; without arguments TRUNKLINE_URL and TRUNKLINE_TOKEN."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 60.0) -> None:
        url = url or os.environ.get("TRUNKLINE_URL")
        token = token or os.environ.get("TRUNKLINE_TOKEN")
        if not url:
            raise SettingsError("there is no URL of a server", hint="pass it to the client, or set TRUNKLINE_URL")
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout)
        self.topics = HttpTopics(self)
        self.queues = HttpQueues(self)
        self.subscriptions = HttpSubscriptions(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, method: str, path: str, body: Any = None, *, query: dict[str, Any] | None = None) -> Any:
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._client.request(
                method, path, content=content, params=query, headers={"content-type": "application/json"}
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            raise DatabaseUnavailable(
                f"the server cannot be reached: {exc}", hint="check that it runs, and its URL"
            ) from exc
        except httpx.TransportError as exc:
            if method == "GET":
                raise DatabaseUnavailable(f"the server did not answer: {exc}") from exc
            raise OutcomeUnknown(
                f"the server did not answer: {exc}", hint="a repeat with the same ids is recognised"
            ) from exc
        if answer.status_code >= 400:
            raise _error(answer)
        return msgspec.json.decode(answer.content) if answer.content else None

    # Publishing

    async def publish(self, topic: str, body: Any, **fields: Any) -> Published:
        """The message is on disk when this returns; the fields are those of `NewMessage`."""
        return await self._publish(f"/v1/topics/{_name(topic)}/messages", NewMessage(body=body, **fields))

    async def enqueue(self, queue: str, body: Any, **fields: Any) -> Published:
        """`publish`, straight into a queue."""
        return await self._publish(f"/v1/queues/{_name(queue)}/messages", NewMessage(body=body, **fields))

    async def publish_many(self, topic: str, bodies: Iterable[Any]) -> list[Published]:
        """Bodies or `NewMessage`s, in batches of 1,000; each batch is stored as a whole or not at all."""
        return await self._publish_many(f"/v1/topics/{_name(topic)}/messages", bodies)

    async def enqueue_many(self, queue: str, bodies: Iterable[Any]) -> list[Published]:
        """`publish_many`, straight into a queue."""
        return await self._publish_many(f"/v1/queues/{_name(queue)}/messages", bodies)

    async def _publish(self, path: str, message: NewMessage) -> Published:
        body = await self._ask("POST", path, _envelope(message))
        return Published(UUID(body["id"]), body["duplicate"])

    async def _publish_many(self, path: str, bodies: Iterable[Any]) -> list[Published]:
        answers: list[Published] = []
        for batch in _batches(bodies):
            body = await self._ask("POST", path, batch)
            answers += [Published(UUID(row["id"]), row["duplicate"]) for row in body["messages"]]
        return answers

    # Queues

    async def claim(
        self,
        queue: str,
        *,
        max_messages: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        wait: Duration | None = None,
        type: Any = None,
    ) -> list[HttpDelivery]:
        """Up to `max_messages` for the time of the lease; none, at once or after `wait`, when there are none."""
        asked = {
            "limit": max_messages,
            "lease_seconds": _seconds(lease),
            "labels": None if labels is None else list(labels),
            "wait": _seconds(wait) or 0,
        }
        body = await self._ask("POST", f"/v1/queues/{_name(queue)}/claims", asked)
        return [_delivery(self, queue, row, type) for row in body["deliveries"]]

    async def ack(self, queue: str, receipts: Sequence[str]) -> list[Result]:
        """These are done and never delivered again; `lost` for those whose lease ended or was replaced."""
        return await self._settle(queue, "ack", receipts)

    async def nack(
        self, queue: str, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        """Deliver these again after `delay` (by default the queue's backoff)."""
        return await self._settle(queue, "nack", receipts, delay_seconds=_seconds(delay), error=error)

    async def bury(self, queue: str, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        """These go to the dead letters at once."""
        return await self._settle(queue, "bury", receipts, error=error)

    async def release(self, queue: str, receipts: Sequence[str]) -> list[Result]:
        """These go back at once, as if they had not been delivered."""
        return await self._settle(queue, "release", receipts)

    async def extend(self, queue: str, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        """Keep these for `lease` from now."""
        return await self._settle(queue, "extend", receipts, lease_seconds=_seconds(lease))

    async def _settle(self, queue: str, verb: str, receipts: Sequence[str], **more: Any) -> list[Result]:
        if not receipts:
            return []
        body = await self._ask("POST", f"/v1/queues/{_name(queue)}/{verb}", {"receipts": list(receipts), **more})
        return [row["result"] for row in body["results"]]

    async def deliveries(self, queue: str, **claim: Any) -> AsyncIterator[HttpDelivery]:
        """Deliveries as they come, without an end; settle each."""
        while True:
            for delivery in await self.claim(queue, wait="20s", **claim):
                yield delivery

    # Groups

    async def fetch(
        self,
        topic: str,
        group: str,
        *,
        member: str | None = None,
        max_messages: int = 100,
        lease: Duration = "30s",
        wait: Duration | None = None,
    ) -> HttpBatch | None:
        """The next messages of a partition that is leased to this member, or None."""
        asked = {"member": member, "limit": max_messages, "lease_seconds": _seconds(lease), "wait": _seconds(wait) or 0}
        body = await self._ask("POST", _group(topic, group, "fetch"), asked)
        return HttpBatch(self, topic, group, body) if body["messages"] else None

    async def seek(self, topic: str, group: str, to: Place, *, partition: int | None = None) -> dict[int, int]:
        """Move a group; answers the next offset by partition."""
        body = await self._ask("POST", _group(topic, group, "seek"), {"to": place(to), "partition": partition})
        return {int(number): offset for number, offset in body["next_offsets"].items()}

    async def leave(self, topic: str, group: str, *, member: str) -> int:
        """The member gives its partitions back."""
        partitions: int = (await self._ask("POST", _group(topic, group, "leave"), {"member": member}))["partitions"]
        return partitions

    # Reasons and numbers

    async def explain(self, id: UUID) -> Explanation:
        """Where the message is, who holds it, and why it is not delivered now."""
        return Explanation(await self._ask("GET", f"/v1/messages/{id}/explanation"))

    async def stats(self) -> Stats:
        """The numbers of all topics, groups and queues."""
        body = await self._ask("GET", "/v1/stats")
        return Stats(
            topics=msgspec.convert(body["topics"], list[TopicStats]),
            groups=msgspec.convert(body["groups"], list[GroupStats]),
            queues=msgspec.convert(body["queues"], list[QueueStats]),
        )


class _Noun:
    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def _all(self, path: str) -> list[Any]:
        rows: list[Any] = []
        while True:
            body = await self._http._ask("GET", path, query={"offset": len(rows), "limit": _MESSAGES})
            rows += body["data"]
            if len(body["data"]) < _MESSAGES:
                return rows


class HttpTopics(_Noun):
    """`client.topics`"""

    async def ensure(self, name: str, *, partitions: int | None = None, retention: Duration | None = None) -> Topic:
        """The topic is there. One that exists stays as it is."""
        asked = {"id": name, "partitions": partitions, "retention_seconds": _seconds(retention)}
        return _topic(await self._http._ask("POST", "/v1/topics", asked, query={"ensure": "true"}))

    async def get(self, name: str) -> Topic:
        return _topic(await self._http._ask("GET", f"/v1/topics/{_name(name)}"))

    async def list(self) -> list[Topic]:
        """All topics, by name."""
        return [_topic(row) for row in await self._all("/v1/topics")]

    async def delete(self, name: str, *, force: bool = False) -> None:
        await self._http._ask("DELETE", f"/v1/topics/{_name(name)}", query={"force": str(force).lower()})

    async def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, wait: Duration | None = None
    ) -> Sequence[Message[Any]]:
        """Messages from an offset on, whoever consumed them."""
        query = {"partition": partition, "start": start, "limit": limit, "wait": _seconds(wait) or 0}
        body = await self._http._ask("GET", f"/v1/topics/{_name(topic)}/messages", query=query)
        return [_message(row) for row in body["messages"]]


class HttpQueues(_Noun):
    """`client.queues`"""

    async def ensure(
        self, name: str, *, lease: Duration | None = None, max_attempts: int | None = None, ttl: Duration | None = None
    ) -> Queue:
        """The queue is there. One that exists stays as it is."""
        asked = {
            "id": name,
            "ack_deadline_seconds": _whole(lease),
            "message_retention_seconds": _whole(ttl),
            "max_attempts": max_attempts,
        }
        return _queue(await self._http._ask("POST", "/v1/queues", asked, query={"ensure": "true"}))

    async def get(self, name: str) -> Queue:
        return _queue(await self._http._ask("GET", f"/v1/queues/{_name(name)}"))

    async def list(self) -> list[Queue]:
        """All queues, by name."""
        return [_queue(row) for row in await self._all("/v1/queues")]

    async def delete(self, name: str, *, force: bool = False) -> None:
        await self._http._ask("DELETE", f"/v1/queues/{_name(name)}", query={"force": str(force).lower()})

    async def pause(self, name: str) -> None:
        await self._http._ask("PUT", f"/v1/queues/{_name(name)}/pause")

    async def resume(self, name: str) -> None:
        await self._http._ask("PUT", f"/v1/queues/{_name(name)}/resume")


class HttpSubscriptions(_Noun):
    """`client.subscriptions`"""

    async def add(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: Headers | None = None,
        start: Place = "latest",
        name: str | None = None,
    ) -> Subscription:
        """Feed the queue from the topic too."""
        asked = {
            "id": name or f"{topic}-to-{queue}",
            "topic_id": topic,
            "queue_id": queue,
            "pattern": pattern,
            "message_filters": headers,
            "start": place(start),
        }
        return _subscription(await self._http._ask("POST", "/v1/subscriptions", asked))

    async def list(self) -> list[Subscription]:
        """All subscriptions, by name."""
        return [_subscription(row) for row in await self._all("/v1/subscriptions")]

    async def remove(self, name: str) -> None:
        await self._http._ask("DELETE", f"/v1/subscriptions/{_name(name)}")


# From and to JSON


def _error(answer: httpx.Response) -> TrunklineError:
    try:
        body = answer.json()
        code, detail, hint = body["error"], body["detail"], body.get("hint")
    except (ValueError, KeyError, TypeError):
        return DatabaseUnavailable(f"the server answered {answer.status_code} without saying why")
    if answer.status_code in (401, 403):
        return Unauthorized(detail, hint=hint)
    cls = _ERRORS.get(code) or _BY_STATUS.get(answer.status_code)
    if cls is None:
        cls = errors.InvalidArgument if answer.status_code < 500 else errors.Unavailable
    return cls(detail, hint=hint)


def _name(text: str) -> str:
    return quote(text, safe="")


def _group(topic: str, group: str, verb: str) -> str:
    return f"/v1/topics/{_name(topic)}/groups/{_name(group)}/{verb}"


def _seconds(value: Duration | None) -> float | None:
    span = duration(value)
    return None if span is None else span.total_seconds()


def _whole(value: Duration | None) -> int | None:
    seconds = _seconds(value)
    return None if seconds is None else round(seconds)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _envelope(message: NewMessage) -> dict[str, Any]:
    encoded = encode_message(message)
    found: dict[str, Any] = {
        "content_type": encoded.content_type,
        "key": encoded.key,
        "routing_key": encoded.routing_key,
        "label": encoded.label,
        "headers": message.headers,
        "id": encoded.id,
        "occurred_at": encoded.occurred_at,
        "idempotency_key": encoded.idempotency_key,
        "delay_seconds": None if encoded.delay is None else encoded.delay.total_seconds(),
        "deliver_at": encoded.deliver_at,
        "priority": encoded.priority,
    }
    found = {name: value for name, value in found.items() if value is not None}
    if encoded.content_type.startswith("application/json"):
        return {"payload": msgspec.Raw(encoded.payload), **found}
    return {"payload_base64": base64.b64encode(encoded.payload).decode(), **found}


def _batches(bodies: Iterable[Any]) -> Iterable[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for body in bodies:
        batch.append(_envelope(body if isinstance(body, NewMessage) else NewMessage(body=body)))
        if len(batch) == _MESSAGES:
            yield batch
            batch = []
    if batch:
        yield batch


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    if row["encoding"] == "base64":
        payload = base64.b64decode(row["payload"])
    elif row["encoding"] == "text":
        payload = row["payload"].encode()
    else:
        payload = msgspec.json.encode(row["payload"])
    return {
        "partition": row["partition"],
        "offset": row["offset"],
        "id": UUID(row["id"]),
        "key": row["key"],
        "routing_key": row["routing_key"],
        "label": row["label"],
        "headers": row["headers"],
        "payload": payload,
        "content_type": row["content_type"],
        "occurred_at": None if row["occurred_at"] is None else _moment(row["occurred_at"]),
        "created_at": _moment(row["created_at"]),
    }


def _message(row: dict[str, Any]) -> Message[Any]:
    return Message(**_fields(row), _decode=decoder(None))


def _delivery(http: HttpClient, queue: str, row: dict[str, Any], kind: Any) -> HttpDelivery:
    return HttpDelivery(
        **_fields(row),
        _decode=decoder(kind),
        receipt=row["receipt"],
        attempt=row["attempt"],
        deadline=_moment(row["deadline"]),
        topic=row["topic_id"],
        _http=http,
        _queue=queue,
    )


def _span(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _topic(row: dict[str, Any]) -> Topic:
    return Topic(
        name=row["id"],
        partitions=row["partitions"],
        retention=timedelta(seconds=row["retention_seconds"]),
        retention_bytes=row["retention_bytes"],
        hard_retention=_span(row["hard_retention_seconds"]),
        max_payload=row["max_payload"],
        created_at=_moment(row["created_at"]),
    )


def _queue(row: dict[str, Any]) -> Queue:
    return Queue(
        name=row["id"],
        lease=timedelta(seconds=row["ack_deadline_seconds"]),
        max_attempts=row["max_attempts"],
        backoff_base=timedelta(seconds=row["backoff_base_seconds"]),
        backoff_factor=row["backoff_factor"],
        backoff_cap=timedelta(seconds=row["backoff_cap_seconds"]),
        backoff_jitter=row["backoff_jitter"],
        ttl=_span(row["message_retention_seconds"]),
        delivery_delay=timedelta(seconds=row["delivery_delay_seconds"]),
        ordered=row["ordered"],
        paused=row["paused"],
        partitions=row["partitions"],
        retention=timedelta(seconds=row["retention_seconds"]),
        max_payload=row["max_payload"],
        created_at=_moment(row["created_at"]),
        updated_at=_moment(row["updated_at"]),
        priorities=row["priorities"],
        history=_span(row["history_seconds"]),
    )


def _subscription(row: dict[str, Any]) -> Subscription:
    return Subscription(
        queue=row["queue_id"],
        name=row["id"],
        topic=row["topic_id"],
        pattern=row["pattern"],
        headers=row["message_filters"],
        created_at=_moment(row["created_at"]),
    )
