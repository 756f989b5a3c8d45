"""The trace of a request goes along with its messages; with OpenTelemetry each request is a span in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trunkline.server.app import create_app
from trunkline.server.config import Config

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}


@asynccontextmanager
async def serving(db: str) -> AsyncIterator[httpx.AsyncClient]:
    """A server in this process, so that its spans can be seen."""
    app = create_app(Config(database_url=db, upkeep_seconds=None))
    async with (
        app.app.lifespan(),  # type: ignore[attr-defined]
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as client,  # type: ignore[arg-type]
    ):
        await client.post("/v1/queues?ensure=true", json={"name": "mail"})
        yield client


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # a provider can be set only once in a process
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


async def delivered(http: httpx.AsyncClient, headers: dict[str, str]) -> list[str]:
    """Publish one, a batch, lines and bytes; the traces that arrive."""
    path = "/v1/queues/mail/messages"
    await http.post(path, json={"payload": 1}, headers=headers)
    await http.post(path, json=[{"payload": 2}], headers=headers)
    await http.post(path, content=b'{"payload": 3}\n', headers=headers | {"content-type": "application/x-ndjson"})
    await http.post(path, content=b"4", headers=headers | {"content-type": "application/octet-stream"})
    claimed = await http.post("/v1/queues/mail/claims", json={"limit": 10})
    return [row["headers"]["traceparent"] for row in claimed.json()["deliveries"]]


async def test_without_opentelemetry_the_trace_arrives_as_it_was_sent(db: str) -> None:
    async with serving(db) as http:
        assert await delivered(http, SENT) == [SENT["traceparent"]] * 4


async def test_with_opentelemetry_it_goes_through_the_span_of_the_request(db: str, spans: InMemorySpanExporter) -> None:
    async with serving(db) as http:
        arrived = await delivered(http, SENT)
        assert (await http.get("/v1/queues/nobody")).status_code == 404
    requests = [span for span in spans.get_finished_spans() if span.name == "POST /v1/queues/{queue}/messages"]
    assert {span.kind.name for span in requests} == {"SERVER"}
    assert {f"{span.parent.span_id:016x}" for span in requests if span.parent} == {SPAN_ID}
    assert all(text.startswith(f"00-{TRACE_ID}-") for text in arrived)
    assert [text.split("-")[2] for text in arrived] == [f"{span.context.span_id:016x}" for span in requests if span.context]
    published = [span for span in spans.get_finished_spans() if span.name == "publish mail"]
    assert {span.kind.name for span in published} == {"PRODUCER"}
    assert [span.parent.span_id for span in published if span.parent] == [
        span.context.span_id for span in requests if span.context
    ]
    missed = [span for span in spans.get_finished_spans() if span.name == "GET /v1/queues/{queue}"]
    assert [span.attributes["http.response.status_code"] for span in missed if span.attributes] == [404]
