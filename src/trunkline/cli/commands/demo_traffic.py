"""Sample data of `trunkline demo`: a shop with orders, mails, thumbnails and reports, in which some things fail."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING
from uuid import UUID

from trunkline.types import NewMessage

if TYPE_CHECKING:
    from trunkline import Client

_REGIONS = ("eu", "us", "asia")
_ERRORS = ("ConnectTimeout: smtp.example.com:25", "SMTP 451: greylisted", "SMTP 421: too many connections")
_MAX_ATTEMPTS = 3


class Traffic:
    """Creates the resources and then rounds of traffic. Each round exercises everything."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        # a fixed seed makes each demo the same
        self._random = random.Random(7)  # noqa: S311  # nosec B311
        self._orders = itertools.count(1)
        self._rounds = itertools.count()
        self.failed_id: UUID | None = None
        """Publish a message that passes through many stages."""

    async def prepare(self) -> None:
        """Create topics, queues, groups, subscriptions and schedules. Existing ones are not changed."""
        mq = self._mq
        await mq.topics.ensure("orders", partitions=2, retention="30d")
        await mq.topics.ensure("events")
        await mq.groups.ensure("orders", "billing")
        await mq.groups.ensure("orders", "analytics")
        await mq.groups.ensure("events", "search")
        await mq.queues.ensure("mail", lease="10s", max_attempts=_MAX_ATTEMPTS, backoff_base="2s", backoff_cap="30s")
        await mq.queues.ensure("thumbnails", ordered=True, partitions=4)
        await mq.queues.ensure("reports", priorities=3, ttl="1h")
        await mq.queues.ensure("audit")
        there = {(each.queue, each.name) for each in await mq.subscriptions.list()}
        if ("mail", "orders") not in there:
            await mq.subscriptions.add("mail", "orders", pattern="order.created.#")
        if ("audit", "orders") not in there:
            await mq.subscriptions.add("audit", "orders", headers={"audit": "yes"})
        await mq.queues.pause("audit")
        await mq.schedules.ensure("pulse", "* * * * *", topic="events", body={"kind": "pulse"}, routing_key="system.pulse")
        await mq.schedules.ensure(
            "daily-report", "0 3 * * *", queue="reports", body={"kind": "daily"}, timezone="Europe/Berlin"
        )
        await mq.schedules.ensure("old-report", "0 4 * * 1", queue="reports", body={"kind": "weekly"})
        await mq.schedules.pause("old-report")

    async def round(self) -> None:
        """Run one round of everything."""
        number = next(self._rounds)
        await self._publish()
        await self._bill()
        await self._mail(number)
        await self._draw()
        await self._report(number)
        if number % 5 == 0:
            await self._fail()
            await self._crash()
            await self._mq.schedules.run("pulse")

    async def _publish(self) -> None:
        chance = self._random
        orders = []
        for number in itertools.islice(self._orders, 20):
            customer, region = f"cust-{chance.randrange(50)}", chance.choice(_REGIONS)
            event = "created" if chance.random() < 0.6 else "paid"
            orders.append(
                NewMessage(
                    body={"id": number, "customer": customer, "total": chance.randrange(100, 20_000) / 100},
                    key=customer,
                    routing_key=f"order.{event}.{region}",
                    label=event,
                    headers={"audit": "yes"} if number % 10 == 0 else None,
                    idempotency_key=f"order-{number}" if number % 7 == 0 else None,
                )
            )
        await self._mq.publish_many("orders", orders)
        await self._mq.publish("orders", {"id": 0, "note": "later"}, routing_key="order.reminder", delay="1m")
        await self._mq.publish(
            "events", b"page opened\r\n\x1b[31mred\x1b[0m", routing_key="page.opened", content_type="text/plain"
        )
        await self._mq.publish("events", bytes(range(16)), routing_key="page.icon")

    async def _bill(self) -> None:
        """Read as two groups: billing keeps up, analytics falls behind."""
        for group, most in (("billing", 1000), ("analytics", 3)):
            for _ in range(2):
                batch = await self._mq.fetch("orders", group, member=f"{group}-1", limit=most, lease="5s")
                if batch is not None:
                    await batch.commit()

    async def _mail(self, number: int) -> None:
        deliveries = await self._mq.claim("mail", limit=15, consumer=f"mailer-{number % 2}")
        for delivery in deliveries:
            fate = self._random.random()
            if fate < 0.8:
                await delivery.ack()
            elif fate < 0.95:
                await delivery.nack(error=self._random.choice(_ERRORS))
            else:
                await delivery.bury("no such mailbox")

    async def _draw(self) -> None:
        """Process pictures of an album in order. One consumer holds its partition for a while."""
        await self._mq.enqueue_many(
            "thumbnails",
            [NewMessage(body={"picture": n}, key=f"album-{self._random.randrange(40)}", label="resize") for n in range(6)],
        )
        for _ in range(4):
            deliveries = await self._mq.claim("thumbnails", limit=4, consumer="painter", lease="4s")
            if deliveries and self._random.random() < 0.9:
                await deliveries.ack()

    async def _report(self, number: int) -> None:
        await self._mq.enqueue("reports", {"report": number}, priority=number % 3)
        await self._mq.enqueue("reports", {"report": number, "when": "later"}, delay="10m")
        if number % 3 == 0:
            await (await self._mq.claim("reports", limit=2, consumer="reporter")).ack()

    async def _fail(self) -> None:
        """Fail one mail until it is a dead letter, and bury another."""
        bad = await self._mq.enqueue("mail", {"to": "nobody@example.invalid"}, label="bad")
        gone = await self._mq.enqueue("mail", {"to": "gone@example.com"}, label="bad")
        for _ in range(_MAX_ATTEMPTS):
            for delivery in await self._mq.claim("mail", limit=10, labels=["bad"], consumer="mailer-0"):
                if delivery.id == gone.id:
                    await delivery.bury("no such mailbox")
                else:
                    await delivery.nack(delay="0s", error=self._random.choice(_ERRORS))
        self.failed_id = self.failed_id or bad.id

    async def _crash(self) -> None:
        """Claim messages and never settle them, like a crashed worker. They are redelivered when the lease expires."""
        await self._mq.claim("mail", limit=2, lease="1s", consumer="crashed")
