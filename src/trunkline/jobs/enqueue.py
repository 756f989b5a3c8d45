"""Enqueues calls as messages, on the client's connections or on the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import psycopg

from trunkline import telemetry
from trunkline.client import Client, SyncClient
from trunkline.client.foreign_connections import async_driver, sync_driver
from trunkline.codec import encode_message
from trunkline.db.calls import jobs as calls
from trunkline.db.pool import Connection
from trunkline.db.sync.calls import jobs as sync_calls
from trunkline.db.sync.pool import Connection as SyncConnection
from trunkline.errors import from_psycopg
from trunkline.jobs.job import Call
from trunkline.runtime.publisher import send
from trunkline.runtime.sync.publisher import send as send_sync
from trunkline.types import Published


async def enqueue(client: Client, todo: Sequence[Call]) -> list[Published]:
    """Enqueue calls. Either all are on disk when this returns, or none is stored."""
    if len(todo) == 1 and todo[0].plain:
        return [await _one(client, todo[0])]
    queue = todo[0].queue
    if all(call.queue == queue and call.unique is None and not call.after for call in todo):
        return await client.enqueue_many(queue, [call.message for call in todo])
    async with client.session.connection(writing=True) as conn, conn.transaction():
        results = await enqueue_on(conn, todo)
    for queue in {call.queue for call in todo}:
        client.session.wakeup.published("inbox", queue)
    return results


async def _one(client: Client, call: Call) -> Published:
    return await client.session.publisher.publish("inbox", call.queue, call.message)


async def enqueue_on(conn: Connection, todo: Sequence[Call]) -> list[Published]:
    """Enqueue calls in the transaction that is open on this connection."""
    results: list[Published] = []
    for (queue, plain), run in groupby(todo, lambda call: (call.queue, call.plain)):
        if plain:
            results += await send(conn, "inbox", queue, [call.message for call in run])
            continue
        for call in run:
            with telemetry.publishing(queue, (call.message,)) as (traced,):
                message = encode_message(traced)
                if call.after:
                    published = await calls.enqueue_after(conn, queue, message, after=call.after)
                else:
                    unique = call.unique or ""
                    published = await calls.enqueue_unique(conn, queue, message, unique=unique, hold=call.hold)
            results.append(published)
    return results


async def enqueue_borrowed(conn: Any, todo: Sequence[Call]) -> list[Published]:
    driver = await async_driver(conn)
    try:
        return await enqueue_on(driver, todo)
    except psycopg.Error as exc:
        raise from_psycopg(exc, writing=True) from exc


def enqueue_on_sync(conn: SyncConnection, todo: Sequence[Call]) -> list[Published]:
    results: list[Published] = []
    for (queue, plain), run in groupby(todo, lambda call: (call.queue, call.plain)):
        if plain:
            results += send_sync(conn, "inbox", queue, [call.message for call in run])
            continue
        for call in run:
            with telemetry.publishing(queue, (call.message,)) as (traced,):
                message = encode_message(traced)
                if call.after:
                    published = sync_calls.enqueue_after(conn, queue, message, after=call.after)
                else:
                    unique = call.unique or ""
                    published = sync_calls.enqueue_unique(conn, queue, message, unique=unique, hold=call.hold)
            results.append(published)
    return results


def enqueue_borrowed_sync(conn: Any, todo: Sequence[Call]) -> list[Published]:
    if isinstance(conn, SyncClient):
        with conn.session.connection(writing=True) as own, own.transaction():
            results = enqueue_on_sync(own, todo)
        for queue in {call.queue for call in todo}:
            conn.session.wakeup.published("inbox", queue)
        return results
    driver = sync_driver(conn)
    try:
        return enqueue_on_sync(driver, todo)
    except psycopg.Error as exc:
        raise from_psycopg(exc, writing=True) from exc
