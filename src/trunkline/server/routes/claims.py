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
from trunkline.server import bodies
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import span
from trunkline.server.claiming import CONSUMER, settle
from trunkline.server.problems import invalid
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
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
        responses={200: Claimed},
        problems=(400, 404, 408, 413),
        object="queue",
    ),
)
async def claim(request: Request, queue: FromPath[str]) -> Response:
    """Claim messages, waiting up to `wait` seconds. If the client disconnects while waiting, no message is leased."""
    request.query()
    body = await request.read(Claim, optional=True)
    taken = await request.service.long_poll.claim(
        request,
        queue,
        limit=body.limit,
        lease=span(body.lease_seconds),
        labels=body.labels,
        consumer=body.consumer or CONSUMER,
        wait=min(body.wait, request.service.config.max_wait),
    )
    return respond(Claimed([delivery_view(queue, delivery) for delivery in taken]))


# Settlements

Receipts = Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(min_length=1, max_length=10_000)]


class Settle(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Receipts of deliveries."""

    receipts: Receipts


class SettleError(Settle, kw_only=True, forbid_unknown_fields=True):
    """Receipts, and the reason."""

    error: str | None = None
    """Stored with the message, truncated to 10,000 characters. Characters that cannot be stored are replaced."""


class NackRequest(SettleError, kw_only=True, forbid_unknown_fields=True):
    """Receipts, the reason, and the delay before redelivery. The default delay is the queue's backoff."""

    delay_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None


class Extend(Settle, kw_only=True, forbid_unknown_fields=True):
    """Receipts, and their new lease, counted from now."""

    lease_seconds: Lease


class Settled(msgspec.Struct, frozen=True):
    receipt: str
    result: Result
    """done; lost: the lease ended or was replaced, no effect; unknown: not a receipt of this queue."""


class SettlementResults(msgspec.Struct, frozen=True):
    """Results in the order of the receipts."""

    results: list[Settled]


E = TypeVar("E", bound=SettleError)


async def _read(request: Request, kind: type[E]) -> E:
    """Read a settlement. Invalid Unicode in the error text must not prevent it."""
    return bodies.decode(
        bodies.without_lone_surrogates(await request.bytes()), kind, max_depth=request.service.config.max_depth
    )


def _doc(body: Any) -> Doc:
    return Doc(
        tag=TAG,
        scope="consume",
        body=body,
        responses={200: SettlementResults},
        problems=(400, 404, 408, 413),
        object="queue",
    )


Verb = Callable[[str, list[str]], Awaitable[list[Result]]]
"""Settles receipts of a queue and returns the results in order."""


def _on_connection(request: Request, function: Callable[[Connection, Sequence[str]], Awaitable[list[Result]]]) -> Verb:
    async def verb(queue: str, receipts: list[str]) -> list[Result]:
        async with request.writing() as conn:
            return await settle(conn, queue, receipts, partial(function, conn))

    return verb


def _nack(request: Request, body: NackRequest) -> Verb:
    return _on_connection(request, partial(calls.nack, delay=span(body.delay_seconds), error=body.error))


def _bury(request: Request, body: SettleError) -> Verb:
    return _on_connection(request, partial(calls.bury, error=body.error))


def _extend(request: Request, body: Extend) -> Verb:
    if not 1 <= body.lease_seconds <= 43_200:  # also if no receipt is of the queue
        raise invalid(f"lease must be between 1 s and 12 h, got {body.lease_seconds:g} s", "invalid_duration")
    return _on_connection(request, partial(calls.extend, lease=timedelta(seconds=body.lease_seconds)))


async def _settle(request: Request, queue: str, receipts: list[str], verb: Verb) -> Response:
    """Settle the receipts that belong to the queue; the others are unknown."""
    request.query()
    return _settlements(receipts, await verb(queue, receipts))


def _settlements(receipts: list[str], results: list[Result]) -> Response:
    return respond(SettlementResults([Settled(receipt, result) for receipt, result in zip(receipts, results, strict=True)]))


@route("POST", "/queues/{queue:str}/ack", _doc(Settle))
async def ack_many(request: Request, queue: FromPath[str]) -> Response:
    """Ack messages: they are done and are never delivered again."""
    body = await request.read(Settle)
    return await _settle(request, queue, body.receipts, request.service.acker.ack)


@route("POST", "/queues/{queue:str}/nack", _doc(NackRequest))
async def nack_many(request: Request, queue: FromPath[str]) -> Response:
    """Nack messages: redeliver them after a delay, or bury them after their last attempt."""
    body = await _read(request, NackRequest)
    return await _settle(request, queue, body.receipts, _nack(request, body))


@route("POST", "/queues/{queue:str}/bury", _doc(SettleError))
async def bury_many(request: Request, queue: FromPath[str]) -> Response:
    """Move messages to the dead letters now."""
    body = await _read(request, SettleError)
    return await _settle(request, queue, body.receipts, _bury(request, body))


@route("POST", "/queues/{queue:str}/release", _doc(Settle))
async def release_many(request: Request, queue: FromPath[str]) -> Response:
    """Return messages to the queue without counting an attempt."""
    body = await request.read(Settle)
    return await _settle(request, queue, body.receipts, _on_connection(request, calls.release))


@route("POST", "/queues/{queue:str}/extend", _doc(Extend))
async def extend_many(request: Request, queue: FromPath[str]) -> Response:
    """Extend leases, counted from now."""
    body = await request.read(Extend)
    return await _settle(request, queue, body.receipts, _extend(request, body))


# Settlements without a queue: the receipt identifies it


def _any_queue(body: Any) -> Doc:
    return Doc(
        tag=TAG,
        scope="consume",
        body=body,
        responses={200: SettlementResults},
        problems=(400, 403, 408, 413),
        object=IN_BODY,
    )


async def _settle_any(request: Request, receipts: list[str], verb: Verb) -> Response:
    """Settle receipts of any queue that the caller's token allows."""
    request.query()
    owners = await request.service.queue_of(receipts)
    queues = sorted({owner for owner in owners if owner is not None})
    for queue in queues:
        await request.allow(queue, hide=True)
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
async def ack_any(request: Request) -> Response:
    """Ack messages of any queue: they are done and are never delivered again."""
    body = await request.read(Settle)
    return await _settle_any(request, body.receipts, request.service.acker.ack)


@route("POST", "/receipts/nack", _any_queue(NackRequest))
async def nack_any(request: Request) -> Response:
    """Nack messages of any queue: redeliver them after a delay, or bury them after their last attempt."""
    body = await _read(request, NackRequest)
    return await _settle_any(request, body.receipts, _nack(request, body))


@route("POST", "/receipts/bury", _any_queue(SettleError))
async def bury_any(request: Request) -> Response:
    """Move messages of any queue to the dead letters now."""
    body = await _read(request, SettleError)
    return await _settle_any(request, body.receipts, _bury(request, body))


@route("POST", "/receipts/release", _any_queue(Settle))
async def release_any(request: Request) -> Response:
    """Return messages of any queue to it without counting an attempt."""
    body = await request.read(Settle)
    return await _settle_any(request, body.receipts, _on_connection(request, calls.release))


@route("POST", "/receipts/extend", _any_queue(Extend))
async def extend_any(request: Request) -> Response:
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
