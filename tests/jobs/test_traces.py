"""Spans of jobs: enqueue, claim and attempt are one trace, and what a handler enqueues continues it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.jobs.conftest import dead
from tests.support.waiting import until
from trunkline.jobs import App, Context, SyncContext, Worker


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # a provider can be set only once in a process
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def id_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def claimed_from(spans: InMemorySpanExporter, queue: str) -> set[tuple[int, int]]:
    links = [link for span in named(spans, f"claim {queue}") for link in span.links]
    return {(link.context.trace_id, link.context.span_id) for link in links}


@pytest.mark.parametrize("plain", [False, True], ids=["on the loop", "in a thread"])
async def test_an_attempt_continues_the_trace_of_its_enqueue(app: App, spans: InMemorySpanExporter, plain: bool) -> None:
    @app.job(queue="second", result=True)
    async def second() -> int:
        return 2

    @app.job(queue="first")
    async def on_the_loop(ctx: Context) -> None:
        await second.enqueue()

    @app.job(queue="first")
    def in_a_thread(ctx: SyncContext) -> None:
        assert app.url is not None
        with psycopg.connect(app.url) as conn:
            second.on(conn).enqueue()

    first: Any = in_a_thread if plain else on_the_loop
    await app.setup()
    with trace.get_tracer("app").start_as_current_span("request") as request:
        await first.enqueue()
    async with Worker(app):
        await until(lambda: named(spans, "process second"))
    outer = request.get_span_context()
    chain = [named(spans, name) for name in ("publish first", "process first", "publish second", "process second")]
    assert [len(found) for found in chain] == [1, 1, 1, 1]
    ids = [(outer.trace_id, outer.span_id), *(id_of(found[0]) for found in chain)]
    assert [parent_of(found[0]) for found in chain] == ids[:-1]
    assert claimed_from(spans, "first") == {ids[1]} and claimed_from(spans, "second") == {ids[3]}
    attributes = chain[1][0].attributes
    assert attributes is not None
    assert (attributes["trunkline.label"], attributes["messaging.message.delivery_attempt"]) == (first.name, 1)
    assert attributes["messaging.destination.name"] == "first"


@pytest.mark.parametrize("way", ["unique", "after", "two queues", "on a connection", "on a connection, unique"])
async def test_every_way_to_enqueue_is_a_span(app: App, spans: InMemorySpanExporter, way: str) -> None:
    @app.job(result=True)
    async def work(number: int = 0) -> int:
        return number

    @app.job(queue="other")
    async def other() -> None:
        pass

    await app.setup()
    parent = await work.enqueue() if way == "after" else None
    spans.clear()
    match way:
        case "unique":
            await work.options(unique="k").enqueue(1)
        case "after":
            assert parent is not None
            await work.options(after=[parent]).enqueue(1)
        case "two queues":
            await app.enqueue_many([work.bind(1), other.bind()])
        case _:
            assert app.url is not None
            async with await psycopg.AsyncConnection.connect(app.url) as conn:
                await (work.options(unique="k") if "unique" in way else work).on(conn).enqueue(1)
    [published] = named(spans, "publish default")
    async with Worker(app):
        attempts = await until(
            lambda: [span for span in named(spans, "process default") if parent_of(span) == id_of(published)]
        )
    assert len(attempts) == 1
    assert len(named(spans, "publish other")) == (way == "two queues")


async def fails() -> None:
    raise ValueError("no route")


async def takes_too_long() -> None:
    await asyncio.sleep(30)


@pytest.mark.parametrize(("handler", "error"), [(fails, "ValueError: no route"), (takes_too_long, "CancelledError")])
async def test_the_span_of_a_failed_attempt_has_its_error(
    app: App, spans: InMemorySpanExporter, handler: Callable[[], Any], error: str
) -> None:
    await app.job(max_attempts=1, timeout="300ms")(handler).enqueue()
    async with Worker(app):
        await dead(app)
    [span] = named(spans, "process default")
    assert not span.status.is_ok and (span.status.description or "").startswith(error)
    assert [event.name for event in span.events] == ["exception"]
