"""A webhook and its receiver: signed, retried after a failure, and booked exactly once.

TRUNKLINE_DATABASE_URL=postgresql:///app python examples/webhooks.py
"""

from __future__ import annotations

import asyncio
import os

import psycopg
from aiohttp import web

from trunkline import Client
from trunkline.push import Refused, Verifier
from trunkline.push.dispatcher import Dispatcher

URL = os.environ["TRUNKLINE_DATABASE_URL"]


class Receiver:
    """Another service, which books each order once even if the webhook is repeated."""

    def __init__(self, conn: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        self.conn = conn
        self.verifier: Verifier | None = None
        self.booked = asyncio.Event()

    async def hook(self, request: web.Request) -> web.Response:
        assert self.verifier is not None
        try:
            delivery = self.verifier.verify(request.headers, await request.read())
        except Refused as exc:
            return web.Response(status=400, text=str(exc))
        async with self.conn.transaction():
            first = await delivery.first(self.conn, "shop")
            if first:
                await self.conn.execute("insert into booked values (%s)", (delivery.json()["id"],))
        print(f"attempt {delivery.attempt}: {'booked' if first else 'known already'}")
        if delivery.attempt == 1:
            return web.Response(status=500)  # simulates a lost response
        self.booked.set()
        return web.Response(status=204)


async def main() -> None:
    async with Client(URL) as mq, await psycopg.AsyncConnection.connect(URL, autocommit=True) as conn:
        # Remove the rows of an earlier run.
        await conn.execute("drop table if exists booked")
        await conn.execute("create table booked (id int)")
        receiver = Receiver(conn)
        app = web.Application()
        app.router.add_post("/hook", receiver.hook)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]

        if "shop" in [endpoint.name for endpoint in await mq.endpoints.list()]:  # of an earlier run, with its port
            await mq.endpoints.delete("shop", force=True)
        made = await mq.endpoints.create("shop", f"http://{host}:{port}/hook", rate=50)
        receiver.verifier = Verifier(made.secret)
        await mq.queues.ensure("shop-hooks", max_attempts=5, backoff_base="100ms")
        await mq.endpoints.bind("shop-hooks", "shop")
        await mq.enqueue("shop-hooks", {"id": 42})

        # `trunkline up` and `trunkline dispatch` run a dispatcher. Loopback addresses are denied by default.
        stop = asyncio.Event()
        dispatcher = asyncio.create_task(Dispatcher(URL, allow=["127.0.0.0/8"]).run(stop))
        await asyncio.wait_for(receiver.booked.wait(), 30)
        stop.set()
        await dispatcher
        print("orders booked:", await (await conn.execute("select id from booked")).fetchall())
        await runner.cleanup()


asyncio.run(main())
