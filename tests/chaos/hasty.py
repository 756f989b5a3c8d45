"""`TRUNKLINE_PLANTED=bug python -m tests.chaos.hasty ...`: `trunkline serve`, with one bug of `BUGS` planted into it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import msgspec

from trunkline.cli.commands.serve import command
from trunkline.runtime.publisher import send
from trunkline.server import claiming, line_stream
from trunkline.server.response import Response, respond
from trunkline.server.routes import claims, events, messages
from trunkline.server.views import PublishedView

LATER_SECONDS = 1.0


def publish_answered_early() -> None:
    async def hasty(request: Any, kind: str, name: str) -> Response:
        sent = await messages.read_messages(request, request.query())  # type: ignore[attr-defined]

        async def store() -> None:
            await asyncio.sleep(LATER_SECONDS)
            await request.mq.publish_many(name, sent.messages)

        request.service.spawn(store())
        return respond(messages.Stored([PublishedView(uuid4(), False) for _ in sent.messages]), 201)

    messages._publish = hasty


def ack_answered_early() -> None:
    async def hasty(request: Any, queue: str, receipts: list[str], verb: Callable[[list[str]], Awaitable[Any]]) -> Response:
        async def settle() -> None:
            await asyncio.sleep(LATER_SECONDS)
            await verb(receipts)

        request.service.spawn(settle())
        return respond(claims.SettlementResults([claims.Settled(receipt, "done") for receipt in receipts]))

    claims._settle = hasty  # type: ignore[assignment]


def key_ignored() -> None:
    right = messages.read_messages  # type: ignore[attr-defined]

    async def careless(request: Any, query: dict[str, Any]) -> Any:
        sent = await right(request, query)
        without = [msgspec.structs.replace(message, idempotency_key=None) for message in sent.messages]
        return msgspec.structs.replace(sent, messages=without)

    messages.read_messages = careless  # type: ignore[attr-defined]


def resume_skips_one() -> None:
    right = events.last_seen
    events.last_seen = lambda text: {partition: offset + 1 for partition, offset in right(text).items()}


def stream_stored_in_parts() -> None:
    async def store(self: Any, conn: Any) -> None:
        async with self._request.mq.connection() as other:
            self._keep(await send(other, self._kind, self._name, self._batch))

    line_stream.LineStream._flush = store  # type: ignore[method-assign]


def delivery_for_two() -> None:
    share = claiming.Claimer._share

    async def share_with_all(self: Any, conn: Any, key: Any, parts: Any) -> bool:
        more = await share(self, conn, key, parts[:1])
        for part in parts[1:]:
            if parts[0].deliveries:
                part.give(parts[0].deliveries)
        return more

    claiming.Claimer._share = share_with_all  # type: ignore[method-assign]


BUGS = {
    bug.__name__: bug
    for bug in (
        publish_answered_early,
        ack_answered_early,
        key_ignored,
        resume_skips_one,
        stream_stored_in_parts,
        delivery_for_two,
    )
}

# At import, because a worker may be a process that imports this module again.
if planted := os.environ.get("TRUNKLINE_PLANTED"):
    BUGS[planted]()

if __name__ == "__main__":
    command()
