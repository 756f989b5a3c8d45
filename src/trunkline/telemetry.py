"""Traces: each message carries the W3C `traceparent` of whoever published it, and OpenTelemetry is used where it is.

A program that has loaded OpenTelemetry and set a tracer provider gets spans; for every other one `tracer()` is None after a
look into a dictionary, and nothing is imported. Needs `pip install 'trunkline[otel]'` and an SDK of your choice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.types import Delivery, Headers, Message, NewMessage

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

_SCOPE = "trunkline"
_CARRIED = ("traceparent", "tracestate")


def tracer() -> Tracer | None:
    """The program's tracer, or None when it has no OpenTelemetry or has set no provider."""
    module = sys.modules.get("opentelemetry.trace")
    if module is None:
        return None
    provider = module.get_tracer_provider()
    return None if isinstance(provider, module.ProxyTracerProvider) else _tracer_of(provider)


@lru_cache(maxsize=4)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer(_SCOPE)


def traceparent() -> Headers:
    """The headers that name the span we are in; empty outside of one."""
    found: dict[str, Any] = {}
    if tracer() is not None:
        _propagator().inject(found)
    return found


def carried(headers: Headers | None, trace: Headers) -> Headers | None:
    """Headers of a message, with the trace unless they have one of their own."""
    if not trace or (headers is not None and "traceparent" in headers):
        return headers
    return {**(headers or {}), **trace}


# Publishing


@contextmanager
def publishing(tracer: Tracer, name: str, messages: Iterable[NewMessage]) -> Iterator[Iterator[NewMessage]]:
    """A span around a publish to a topic or queue; the messages of the block carry it."""
    with tracer.start_as_current_span(f"publish {name}", kind=_kind("PRODUCER"), attributes=_about("send", name)):
        trace = traceparent()
        yield (msgspec.structs.replace(message, headers=carried(message.headers, trace)) for message in messages)


# Consuming


def claimed(tracer: Tracer, name: str, messages: Iterable[Message[Any]], began: int) -> None:
    """A span for a claim that brought something, linked to the publishers'. Claims that bring nothing leave no trace."""
    links = [link for message in messages for link in _links(message.headers)]
    about = _about("receive", name)
    tracer.start_span(f"claim {name}", kind=_kind("CLIENT"), attributes=about, links=links, start_time=began).end()


def handling(message: Message[Any], name: str | None = None) -> AbstractContextManager[Any]:
    """`with handling(delivery):` around your own work: a span that continues the publisher's trace.

    `name` is that of the queue or group, for the title of the span. An exception is recorded and goes on.
    """
    found = tracer()
    return nullcontext() if found is None else _handling(found, message, name)


@contextmanager
def _handling(tracer: Tracer, message: Message[Any], name: str | None) -> Iterator[Span]:
    about = _about("process", name) | {"messaging.message.id": str(message.id)}
    if isinstance(message, Delivery):
        about["messaging.message.delivery_attempt"] = message.attempt
    title = "process" if name is None else f"process {name}"
    with tracer.start_as_current_span(
        title, context=_context(message.headers), kind=_kind("CONSUMER"), attributes=about
    ) as span:
        yield span


# HTTP


@contextmanager
def request(tracer: Tracer, method: str, headers: Mapping[str, str]) -> Iterator[Span]:
    """A span around a request to our server, within the trace of whoever asked."""
    about = {"http.request.method": method}
    with tracer.start_as_current_span(method, context=_context(headers), kind=_kind("SERVER"), attributes=about) as span:
        yield span


def answered(span: Span, method: str, route: str | None, status: int) -> None:
    """What became of the request."""
    if route is not None:
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR)


# OpenTelemetry's own words; only called when it is loaded


def _about(operation: str, name: str | None) -> dict[str, Any]:
    about = {"messaging.system": "trunkline", "messaging.operation.type": operation}
    return about if name is None else {**about, "messaging.destination.name": name}


def _kind(name: str) -> Any:
    from opentelemetry.trace import SpanKind

    return SpanKind[name]


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _context(headers: Mapping[str, Any] | None) -> Context:
    """The context that headers name; without one, the present."""
    told = {name: value for name in _CARRIED if isinstance(value := (headers or {}).get(name), str)}
    found: Context = _propagator().extract(told)
    return found


def _links(headers: Mapping[str, Any] | None) -> list[Link]:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, get_current_span

    told = {name: value for name in _CARRIED if isinstance(value := (headers or {}).get(name), str)}
    span = get_current_span(_propagator().extract(told, context=Context())).get_span_context()
    return [Link(span)] if span.is_valid else []
