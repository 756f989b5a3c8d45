"""Claims and settlements: the native way to consume a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.server.access import IN_BODY
from trunkline.server.call import Answer, Call, answer
from trunkline.server.fields import Text
from trunkline.server.routing import Doc, route
from trunkline.server.views import DeliveryView, delivery_view
from trunkline.types import Result

TAG = "claims"
Lease = Annotated[float, Meta(ge=1, le=43_200)]


class Claim(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to take, for how long, and how long to wait for it."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
    lease_seconds: Lease | None = None
    """By default the acknowledgement deadline of the queue."""
    labels: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=100)] | None = None
    wait: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """Seconds."""


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
    """Take messages for a time; none, at once or after `wait`, when there are none. Who disconnects waiting holds none."""
    request.query()
    asked = await request.read(Claim, optional=True)
    taken = await request.engine.lines.claim(
        request,
        queue,
        limit=asked.limit,
        lease=None if asked.lease_seconds is None else f"{asked.lease_seconds:.3f}s",
        labels=asked.labels,
        wait=min(asked.wait, request.engine.config.max_wait),
    )
    return answer(Claimed([delivery_view(queue, delivery) for delivery in taken]))


# Settlements

Receipts = Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(min_length=1, max_length=10_000)]


class Settle(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Receipts of deliveries."""

    receipts: Receipts


class SettleError(Settle, kw_only=True, forbid_unknown_fields=True):
    """Receipts, and why."""

    error: Text | None = None


class Retry(SettleError, kw_only=True, forbid_unknown_fields=True):
    """Receipts, why, and when to deliver again; by default after the queue's backoff."""

    delay_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None


class Extend(Settle, kw_only=True, forbid_unknown_fields=True):
    """Receipts, and for how long from now to keep them."""

    lease_seconds: Lease


class Settled(msgspec.Struct, frozen=True):
    receipt: str
    result: Result
    """done; lost: the lease has ended or was replaced, nothing changed; unknown: no receipt of this queue."""


class Settlements(msgspec.Struct, frozen=True):
    """In the order of the receipts."""

    results: list[Settled]


def _doc(body: Any) -> Doc:
    return Doc(
        tag=TAG, scope="consume", body=body, answers={200: Settlements}, problems=(400, 404, 408, 413), object="queue"
    )


async def _settle(
    call: Call, queue: str, receipts: list[str], verb: Callable[[list[str]], Awaitable[list[Result]]]
) -> Answer:
    """Settle those receipts that belong to the queue; the others are unknown here."""
    call.query()
    owners = await call.engine.queue_of(receipts)
    if queue not in owners:
        await call.mq.queues.get(queue)
    ours = [receipt for receipt, owner in zip(receipts, owners, strict=True) if owner == queue]
    answers = iter(await verb(ours) if ours else [])
    results = [
        Settled(receipt, next(answers) if owner == queue else "unknown")
        for receipt, owner in zip(receipts, owners, strict=True)
    ]
    return answer(Settlements(results))


@route("POST", "/queues/{queue:str}/ack", _doc(Settle))
async def ack_many(request: Call, queue: FromPath[str]) -> Answer:
    """These are done and never delivered again."""
    asked = await request.read(Settle)
    return await _settle(request, queue, asked.receipts, partial(_ack, request))


async def _ack(call: Call, receipts: list[str]) -> list[Result]:
    if len(receipts) > 1:
        return await call.mq.ack(receipts)
    # those that come one by one share a statement
    return [await call.mq._living().settler.ack(receipts[0])]


@route("POST", "/queues/{queue:str}/nack", _doc(Retry))
async def nack_many(request: Call, queue: FromPath[str]) -> Answer:
    """Deliver these again after a delay, or never after their last attempt."""
    asked = await request.read(Retry)
    delay = None if asked.delay_seconds is None else f"{asked.delay_seconds:.3f}s"
    return await _settle(request, queue, asked.receipts, lambda ours: request.mq.nack(ours, delay=delay, error=asked.error))


@route("POST", "/queues/{queue:str}/bury", _doc(SettleError))
async def bury_many(request: Call, queue: FromPath[str]) -> Answer:
    """These go to the dead letters at once."""
    asked = await request.read(SettleError)
    return await _settle(request, queue, asked.receipts, lambda ours: request.mq.bury(ours, error=asked.error))


@route("POST", "/queues/{queue:str}/release", _doc(Settle))
async def release_many(request: Call, queue: FromPath[str]) -> Answer:
    """These go back at once, as if they had not been delivered."""
    asked = await request.read(Settle)
    return await _settle(request, queue, asked.receipts, request.mq.release)


@route("POST", "/queues/{queue:str}/extend", _doc(Extend))
async def extend_many(request: Call, queue: FromPath[str]) -> Answer:
    """Keep these for so long from now."""
    asked = await request.read(Extend)
    lease = f"{asked.lease_seconds:.3f}s"
    return await _settle(request, queue, asked.receipts, lambda ours: request.mq.extend(ours, lease=lease))


# Settlements by receipts alone: a receipt knows its queue


def _any_queue(body: Any) -> Doc:
    return Doc(
        tag=TAG, scope="consume", body=body, answers={200: Settlements}, problems=(400, 403, 408, 413), object=IN_BODY
    )


async def _settle_any(call: Call, receipts: list[str], verb: Callable[[list[str]], Awaitable[list[Result]]]) -> Answer:
    """Settle receipts of any queues that the caller's token is for."""
    call.query()
    owners = await call.engine.queue_of(receipts)
    for queue in {owner for owner in owners if owner is not None}:
        await call.allow(queue)
    known = [receipt for receipt, owner in zip(receipts, owners, strict=True) if owner is not None]
    answers = iter(await verb(known) if known else [])
    results = [
        Settled(receipt, "unknown" if owner is None else next(answers))
        for receipt, owner in zip(receipts, owners, strict=True)
    ]
    return answer(Settlements(results))


@route("POST", "/receipts/ack", _any_queue(Settle))
async def ack_any(request: Call) -> Answer:
    """These are done and never delivered again, of whatever queue."""
    asked = await request.read(Settle)
    return await _settle_any(request, asked.receipts, request.mq.ack)


@route("POST", "/receipts/nack", _any_queue(Retry))
async def nack_any(request: Call) -> Answer:
    """Deliver these again after a delay, or never after their last attempt."""
    asked = await request.read(Retry)
    delay = None if asked.delay_seconds is None else f"{asked.delay_seconds:.3f}s"
    return await _settle_any(request, asked.receipts, lambda known: request.mq.nack(known, delay=delay, error=asked.error))


@route("POST", "/receipts/bury", _any_queue(SettleError))
async def bury_any(request: Call) -> Answer:
    """These go to the dead letters at once."""
    asked = await request.read(SettleError)
    return await _settle_any(request, asked.receipts, lambda known: request.mq.bury(known, error=asked.error))


@route("POST", "/receipts/release", _any_queue(Settle))
async def release_any(request: Call) -> Answer:
    """These go back at once, as if they had not been delivered."""
    asked = await request.read(Settle)
    return await _settle_any(request, asked.receipts, request.mq.release)


@route("POST", "/receipts/extend", _any_queue(Extend))
async def extend_any(request: Call) -> Answer:
    """Keep these for so long from now."""
    asked = await request.read(Extend)
    lease = f"{asked.lease_seconds:.3f}s"
    return await _settle_any(request, asked.receipts, lambda known: request.mq.extend(known, lease=lease))


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
