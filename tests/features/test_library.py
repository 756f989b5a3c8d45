"""The library inside a program."""

from __future__ import annotations

from trunkline import Client


async def test_the_library_needs_only_a_database(db: str) -> None:
    """Inside any program, with nothing but a database URL: no server, no broker, no background process."""
    async with Client(db) as client:
        await client.queues.ensure("mail")
        sent = await client.enqueue("mail", b"hello", headers={"to": "me"})
        [delivery] = await client.claim("mail")
        assert (delivery.id, delivery.payload, delivery.headers) == (sent.id, b"hello", {"to": "me"})
        assert await client.ack([delivery.receipt]) == ["done"]
        assert list(await client.claim("mail")) == []
