"""The payloads that a dispatcher holds are limited by bytes."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conftest import Connection
from tests.push.dispatch import dispatching
from tests.push.receivers import receiving
from tests.push.test_dispatch import make, value
from tests.support.waiting import until


async def test_large_payloads_are_held_in_small_numbers(db: str, conn: Connection) -> None:
    """A receiver that does not respond: the first requests wait, and the rest is in memory."""

    def leased(queue: str) -> Any:
        return value(conn, "select leased from trunkline.queue_stats(%s)", queue)

    with receiving(lambda seen: "hang") as receiver:
        make(conn, receiver.url, "large")
        payload = b"x" * 700_000
        for _ in range(60):
            conn.execute("select trunkline.enqueue_bytes('large', %s)", (payload,))
        conn.execute("select trunkline.create_endpoint('small', %s)", (receiver.url,))
        conn.execute("select trunkline.create_queue('small')")
        conn.execute("select trunkline.bind_queue('small', 'small')")
        conn.execute("select trunkline.enqueue('small', to_jsonb(n)) from generate_series(1, 100) n")
        async with dispatching(db):
            await asyncio.to_thread(receiver.wait, lambda seen: len(seen) >= 16)
            # small payloads are held until the limit by count
            await until(lambda: leased("small") >= 60)
            assert 8 <= leased("large") <= 24, "16 MiB of 700 kB"
