"""Reads of the pages of queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from trunkline.db.calls import compat, deliveries, inspection, messages, queues, stats, subscriptions
from trunkline.db.calls.deliveries import Completed, DeliveryRun, Totals
from trunkline.db.calls.list_records import ConsumerRow, DelayedRow
from trunkline.db.pool import Connection
from trunkline.types import Queue, QueueStats, ReadyMessage, SeriesPoint, Subscription

_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)
_OPEN = 2000
"""Rows of the delivery history among which open deliveries are looked for."""
MOST_SETTLED = 100
"""Messages that one action releases or buries."""


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its statistics and feeds."""

    queue: Queue
    stats: QueueStats
    subscriptions: list[Subscription]


async def lines(conn: Connection, names: Sequence[str], since: timedelta, step: timedelta) -> list[SeriesPoint]:
    return await inspection.rollup_lines(conn, "queue", names, since=since, step=step)


async def detail(conn: Connection, name: str) -> Detail:
    queue = await queues.get_queue(conn, name)
    found = await stats.queue_stats(conn, name)
    return Detail(queue=queue, stats=found[0], subscriptions=await subscriptions.list_subscriptions(conn, name, None))


async def waiting(conn: Connection, name: str, limit: int) -> list[ReadyMessage[bytes]]:
    """Return the messages that consumers get next, in that order."""
    return await queues.peek_queue(conn, name, limit=limit, max_bytes=1_000_000, type=bytes)


async def delayed(conn: Connection, name: str, after: str | None, limit: int) -> list[DelayedRow]:
    return await queues.list_delayed(conn, queue=name, after=after, limit=limit)


async def in_flight(conn: Connection, name: str) -> list[DeliveryRun]:
    found = await deliveries.list_deliveries(conn, name, since=_DAY, limit=_OPEN)
    return [row for row in found if row.outcome is None]


async def history(conn: Connection, name: str, limit: int) -> list[DeliveryRun]:
    found = await deliveries.list_deliveries(conn, name, since=_DAY, limit=limit)
    return [row for row in found if row.outcome is not None]


async def completed(conn: Connection, name: str, limit: int) -> list[Completed]:
    return await deliveries.list_archive(conn, name, since=_DAY, limit=limit)


async def consumers(conn: Connection, name: str) -> list[ConsumerRow]:
    return await queues.list_consumers(conn, name, since=_HOUR, limit=100)


async def totals(conn: Connection, name: str) -> Totals:
    return await deliveries.audit_queue(conn, name)


async def settle(conn: Connection, name: str, place: tuple[str | None, int, int, int], *, bury: bool, by: str) -> int:
    """Release or bury leased messages at adjoining offsets. Return how many were still leased.

    `place`: topic (None: direct messages), partition, first and last offset.
    """
    topic, partition, first, last = place
    limit = min(MOST_SETTLED, last - first + 1)
    if topic is None:
        rows = await inspection.read_queue(conn, name, partition, start=first, limit=limit)
    else:
        rows = await messages.read(conn, topic, partition, start=first, limit=limit)
    receipts = []
    for row in rows:
        if row.offset <= last:
            held = await compat.delivery_of(conn, name, row.id)
            if held is not None and held.receipt is not None:
                receipts.append(held.receipt)
    if not receipts:
        return 0
    done = await queues.bury(conn, receipts, error=f"buried by {by}") if bury else await queues.release(conn, receipts)
    return sum(result == "done" for result in done)
