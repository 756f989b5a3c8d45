"""Claims and settlements: the native API for consuming a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.db import calls
from trunkline.db.pool import Connection
from trunkline.errors import QueueNotFound
from trunkline.server import parsing
from trunkline.server.access import IN_BODY
from trunkline.server.call import Answer, Call, answer
from trunkline.server.claiming import CONSUMER, settle
from trunkline.server.fields import span
from trunkline.server.problems import invalid
from trunkline.server.routing import Doc, route
from trunkline.server.views import delivery_view
from trunkline.types import Result
from trunkline.wire import DeliveryView

TAG = "claims"
Lease = Annotated[float, Meta(ge=0, le=1_000_000, description="1 second to 12 hours.")]
Consumer = Annotated[str, Meta(min_length=1, max_length=200)]


class Claim(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages to claim, for how long, and how long to wait for them."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
    lease_seconds: Lease | None = None
    """Defaults to the queue's lease."""
    labels: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=100)] | None = None
    consumer: Consumer | None = None
    """The consumer's name in the delivery history; `http` by default."""
    wait: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """Seconds to wait if no message is ready."""


class Claimed(msgspec.Struct, frozen=True):
    deliveries: list[DeliveryView]


@route(
    "POST",
    "/queues/{queue:str}/claims",
    Doc(
        tag=TAG,
        scope="consume",
        body=Claim,
        optional_body=True,
        answers={200: Claimed},
        problems=(400, 404, 408, 413),
        object="queue",
    ),
)
async def claim(request: Call, queue: FromPath[str]) -> Answer:
    """Claim messages, waiting up to `wait` seconds. If the client disconnects while waiting, no message is leased."""
    request.query()
    body = await request.read(Claim, optional=True)
    taken = await request.engine.lines.claim(
        request,
        queue,
        limit=body.limit,
        lease=span(body.lease_seconds),
        labels=body.labels,
        consumer=body.consumer or CONSUMER,
        wait=min(body.wait, request.engine.config.max_wait),
    )
    return answer(Claimed([delivery_view(queue, delivery) for delivery in taken]))


# Settlements

Receipts = Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(min_length=1, max_length=10_000)]


class Settle(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Receipts of deliveries."""

    receipts: Receipts


class SettleError(Settle, kw_only=True, forbid_unknown_fields=True):
    """Receipts, and the reason."""

    error: str | None = None
    """Stored with the message, truncated to 10,000 characters. Characters that cannot be stored are replaced."""


class Retry(SettleError, kw_only=True, forbid_unknown_fields=True):
    """Receipts, the reason, and the delay before redelivery. The default delay is the queue's backoff."""

    delay_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None


class Extend(Settle, kw_only=True, forbid_unknown_fields=True):
    """Receipts, and their new lease, counted from now."""

    lease_seconds: Lease


class Settled(msgspec.Struct, frozen=True):
    receipt: str
    result: Result
    """done; lost: the lease ended or was replaced, no effect; unknown: not a receipt of this queue."""


class Settlements(msgspec.Struct, frozen=True):
    """Results in the order of the receipts."""

    results: list[Settled]


E = TypeVar("E", bound=SettleError)


async def _read(call: Call, kind: type[E]) -> E:
    """Read a settlement. Invalid Unicode in the error text must not prevent it."""
    return parsing.decode(parsing.without_lone_surrogates(await call.bytes()), kind, max_depth=call.engine.config.max_depth)


def _doc(body: Any) -> Doc:
    return Doc(
        tag=TAG, scope="consume", body=body, answers={200: Settlements}, problems=(400, 404, 408, 413), object="queue"
    )


Verb = Callable[[str, list[str]], Awaitable[list[Result]]]
"""Settles receipts of a queue and returns the results in order."""


def _on_connection(call: Call, function: Callable[[Connection, Sequence[str]], Awaitable[list[Result]]]) -> Verb:
    async def verb(queue: str, receipts: list[str]) -> list[Result]:
        async with call.writing() as conn:
            return await settle(conn, queue, receipts, partial(function, conn))

    return verb


def _nack(call: Call, body: Retry) -> Verb:
    return _on_connection(call, partial(calls.nack, delay=span(body.delay_seconds), error=body.error))


def _bury(call: Call, body: SettleError) -> Verb:
    return _on_connection(call, partial(calls.bury, error=body.error))


def _extend(call: Call, body: Extend) -> Verb:
    if not 1 <= body.lease_seconds <= 43_200:  # also if no receipt is of the queue
        raise invalid(f"lease must be between 1 s and 12 h, got {body.lease_seconds:g} s", "invalid_duration")
    return _on_connection(call, partial(calls.extend, lease=timedelta(seconds=body.lease_seconds)))


async def _settle(call: Call, queue: str, receipts: list[str], verb: Verb) -> Answer:
    """Settle the receipts that belong to the queue; the others are unknown."""
    call.query()
    return _settlements(receipts, await verb(queue, receipts))


def _settlements(receipts: list[str], results: list[Result]) -> Answer:
    return answer(Settlements([Settled(receipt, result) for receipt, result in zip(receipts, results, strict=True)]))


@route("POST", "/queues/{queue:str}/ack", _doc(Settle))
async def ack_many(request: Call, queue: FromPath[str]) -> Answer:
    """Ack messages: they are done and are never delivered again."""
    body = await request.read(Settle)
    return await _settle(request, queue, body.receipts, request.engine.acker.ack)


@route("POST", "/queues/{queue:str}/nack", _doc(Retry))
async def nack_many(request: Call, queue: FromPath[str]) -> Answer:
    """Nack messages: redeliver them after a delay, or bury them after their last attempt."""
    body = await _read(request, Retry)
    return await _settle(request, queue, body.receipts, _nack(request, body))


@route("POST", "/queues/{queue:str}/bury", _doc(SettleError))
async def bury_many(request: Call, queue: FromPath[str]) -> Answer:
    """Move messages to the dead letters now."""
    body = await _read(request, SettleError)
    return await _settle(request, queue, body.receipts, _bury(request, body))


@route("POST", "/queues/{queue:str}/release", _doc(Settle))
async def release_many(request: Call, queue: FromPath[str]) -> Answer:
    """Return messages to the queue without counting an attempt."""
    body = await request.read(Settle)
    return await _settle(request, queue, body.receipts, _on_connection(request, calls.release))


@route("POST", "/queues/{queue:str}/extend", _doc(Extend))
async def extend_many(request: Call, queue: FromPath[str]) -> Answer:
    """Extend leases, counted from now."""
    body = await request.read(Extend)
    return await _settle(request, queue, body.receipts, _extend(request, body))


# Settlements without a queue: the receipt identifies it


def _any_queue(body: Any) -> Doc:
    return Doc(
        tag=TAG, scope="consume", body=body, answers={200: Settlements}, problems=(400, 403, 408, 413), object=IN_BODY
    )


async def _settle_any(call: Call, receipts: list[str], verb: Verb) -> Answer:
    """Settle receipts of any queue that the caller's token allows."""
    call.query()
    owners = await call.engine.queue_of(receipts)
    queues = sorted({owner for owner in owners if owner is not None})
    for queue in queues:
        await call.allow(queue, hide=True)
    results: list[Result] = ["unknown"] * len(receipts)
    for queue in queues:
        places = [place for place, owner in enumerate(owners) if owner == queue]
        # if the queue was just deleted, its receipts are unknown
        with suppress(QueueNotFound):
            settled = await verb(queue, [receipts[place] for place in places])
            for place, result in zip(places, settled, strict=True):
                results[place] = result
    return _settlements(receipts, results)


@route("POST", "/receipts/ack", _any_queue(Settle))
async def ack_any(request: Call) -> Answer:
    """Ack messages of any queue: they are done and are never delivered again."""
    body = await request.read(Settle)
    return await _settle_any(request, body.receipts, request.engine.acker.ack)


@route("POST", "/receipts/nack", _any_queue(Retry))
async def nack_any(request: Call) -> Answer:
    """Nack messages of any queue: redeliver them after a delay, or bury them after their last attempt."""
    body = await _read(request, Retry)
    return await _settle_any(request, body.receipts, _nack(request, body))


@route("POST", "/receipts/bury", _any_queue(SettleError))
async def bury_any(request: Call) -> Answer:
    """Move messages of any queue to the dead letters now."""
    body = await _read(request, SettleError)
    return await _settle_any(request, body.receipts, _bury(request, body))


@route("POST", "/receipts/release", _any_queue(Settle))
async def release_any(request: Call) -> Answer:
    """Return messages of any queue to it without counting an attempt."""
    body = await request.read(Settle)
    return await _settle_any(request, body.receipts, _on_connection(request, calls.release))


@route("POST", "/receipts/extend", _any_queue(Extend))
async def extend_any(request: Call) -> Answer:
    """Extend leases of any queue, counted from now."""
    body = await request.read(Extend)
    return await _settle_any(request, body.receipts, _extend(request, body))


ROUTES = [
    claim,
    ack_many,
    nack_many,
    bury_many,
    release_many,
    extend_many,
    ack_any,
    nack_any,
    bury_any,
    release_any,
    extend_any,
]
