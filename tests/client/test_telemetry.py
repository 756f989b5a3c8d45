"""Traces over OpenTelemetry: what is published, claimed and handled hangs together, and costs nothing where it is absent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trunkline import Client, SyncClient, telemetry
from trunkline.types import NewMessage


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # a provider can be set only once in a process
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    found = [span for span in spans.get_finished_spans() if span.name == name]
    assert len(found) == 1, [span.name for span in spans.get_finished_spans()]
    return found[0]


def id_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def test_a_message_carries_the_trace_from_publisher_to_handler(db: str, spans: InMemorySpanExporter) -> None:
    async with Client(db) as mq:
        await mq.queues.create("mail")
        await mq.enqueue("mail", 1, headers={"a": 1})
        (delivery,) = await mq.claim("mail")
        with pytest.raises(ValueError), telemetry.handling(delivery, "mail"):
            raise ValueError("no")
        assert not await mq.claim("mail")
    published, claimed, handled = (named(spans, f"{verb} mail") for verb in ("publish", "claim", "process"))
    trace_id, span_id = id_of(published)
    assert delivery.headers is not None and delivery.headers["a"] == 1
    assert delivery.headers["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert [(link.context.trace_id, link.context.span_id) for link in claimed.links] == [(trace_id, span_id)]
    assert handled.parent is not None and handled.parent.span_id == span_id
    assert id_of(handled)[0] == trace_id
    assert handled.attributes is not None and handled.attributes["messaging.message.delivery_attempt"] == 1
    assert not handled.status.is_ok and handled.events[0].name == "exception"
    assert [span.kind.name for span in (published, claimed, handled)] == ["PRODUCER", "CLIENT", "CONSUMER"]


async def test_publishes_on_a_connection_are_spans(db: str, spans: InMemorySpanExporter) -> None:
    async with Client(db) as mq, await psycopg.AsyncConnection.connect(db) as conn:
        await mq.topics.create("orders")
        await mq.on(conn).publish("orders", 1)
        await mq.on(conn).publish_many("orders", [2, 3])
        await conn.commit()
        headers = [message.headers for message in await mq.topics.read("orders")]
    ids = [f"{id_of(span)[1]:016x}" for span in spans.get_finished_spans() if span.name == "publish orders"]
    assert [value["traceparent"].split("-")[2] for value in headers if value] == [ids[0], ids[1], ids[1]]


def test_a_batch_is_one_span_and_a_trace_of_its_own_stays(db: str, spans: InMemorySpanExporter) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with SyncClient(db) as mq, trace.get_tracer("app").start_as_current_span("request") as outer:
        mq.topics.create("orders")
        mq.publish_many("orders", [1, NewMessage(body=2, headers={"traceparent": own})])
        first, second = mq.topics.read("orders")
    published = named(spans, "publish orders")
    assert published.parent is not None and published.parent.span_id == outer.get_span_context().span_id
    assert first.headers is not None and f"{id_of(published)[1]:016x}" in first.headers["traceparent"]
    assert second.headers == {"traceparent": own}


def test_a_broken_trace_of_somebody_else_harms_nothing(db: str, spans: InMemorySpanExporter) -> None:
    with SyncClient(db) as mq:
        mq.queues.create("mail")
        mq.enqueue_many("mail", [1, 2], headers={"traceparent": 7})
        for delivery in mq.claim("mail", limit=2):
            with telemetry.handling(delivery):
                pass
    assert named(spans, "claim mail").links == ()
    assert [span.parent for span in spans.get_finished_spans() if span.name == "process"] == [None, None]


def test_without_a_provider_nothing_is_traced_and_without_the_package_nothing_is_imported(db: str) -> None:
    script = """
import sys
from trunkline import SyncClient, telemetry
with SyncClient(sys.argv[1]) as mq:
    mq.queues.create("mail")
    mq.enqueue("mail", 1)
    for delivery in mq.claim("mail"):
        with telemetry.handling(delivery, "mail"):
            assert delivery.headers is None, delivery.headers
assert telemetry.tracer() is None and telemetry.traceparent() == {}
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
import opentelemetry.trace
assert telemetry.tracer() is None
"""
    done = subprocess.run([sys.executable, "-c", script, db], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
