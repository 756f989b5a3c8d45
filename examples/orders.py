"""Publish an order's message in the order's transaction; a group books each order exactly once.

TRUNKLINE_DATABASE_URL=postgresql:///app python examples/orders.py
"""

from __future__ import annotations

import asyncio
import os

import psycopg

from trunkline import Client

ORDERS = [("ann", 30), ("bob", 12), ("ann", 7)]


async def place_order(mq: Client, url: str, customer: str, total: int) -> None:
    """Commit the row and the message in one transaction."""
    async with await psycopg.AsyncConnection.connect(url) as conn:
        cursor = await conn.execute(
            "insert into shop_orders (customer, total) values (%s, %s) returning id", (customer, total)
        )
        row = await cursor.fetchone()
        assert row is not None
        await mq.on(conn).publish("shop-orders", {"order": row[0], "customer": customer, "total": total}, key=customer)
    mq.wake()


async def keep_books(mq: Client, expected: int) -> None:
    """Commit the booking and the group's position in one transaction, so that no order is booked twice."""
    booked = 0
    async with mq.subscribe("shop-orders", group="books") as batches:
        async for batch in batches:
            async with batch.transaction() as conn:
                for message in batch:
                    await conn.execute(
                        "insert into shop_books values (%s, %s)"
                        " on conflict (customer) do update set total = shop_books.total + excluded.total",
                        (message.body["customer"], message.body["total"]),
                    )
            booked += len(batch)
            if booked == expected:
                batches.stop()


async def main() -> None:
    url = os.environ["TRUNKLINE_DATABASE_URL"]
    async with Client(url) as mq:
        async with mq.connection() as conn:
            # Remove the rows of an earlier run.
            await conn.execute("drop table if exists shop_orders, shop_books")
            await conn.execute("create table shop_orders (id int generated always as identity, customer text, total int)")
            await conn.execute("create table shop_books (customer text primary key, total int)")
        await mq.topics.ensure("shop-orders")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_books(mq, len(ORDERS)))
            for customer, total in ORDERS:
                tasks.create_task(place_order(mq, url, customer, total))
        async with mq.connection() as conn:
            cursor = await conn.execute("select customer, total from shop_books order by customer")
            print(dict(await cursor.fetchall()))


asyncio.run(main())
