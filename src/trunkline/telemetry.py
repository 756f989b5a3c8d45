"""OpenTelemetry traces. Each message carries the W3C `traceparent` of its publisher in its headers.

Spans are created only if the program has imported OpenTelemetry and set a tracer provider. Otherwise `tracer()` costs
one dictionary lookup, and nothing is imported. Needs `pip install 'trunkline[otel]'` and an SDK.
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
    """Return the program's tracer, or None if it has not imported OpenTelemetry or not set a provider."""
    module = sys.modules.get("opentelemetry.trace")
    if module is None:
        return None
    provider = module.get_tracer_provider()
    return None if isinstance(provider, module.ProxyTracerProvider) else _tracer_of(provider)


@lru_cache(maxsize=4)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer(_SCOPE)


def traceparent() -> Headers:
    """Return the trace headers of the current span, or no headers outside of a span."""
    headers: dict[str, Any] = {}
    if tracer() is not None:
        _propagator().inject(headers)
    return headers


def carried(headers: Headers | None, trace: Headers) -> Headers | None:
    """Return a message's headers with the trace headers, unless they already have a traceparent."""
    if not trace or (headers is not None and "traceparent" in headers):
        return headers
    return {**(headers or {}), **trace}


# Publishing


def publishing(name: str, messages: Iterable[NewMessage]) -> AbstractContextManager[Iterable[NewMessage]]:
    """Start a span for a publish to a topic or queue. Returns the messages with its trace headers."""
    current = tracer()
    return nullcontext(messages) if current is None else _publishing(current, name, messages)


@contextmanager
def _publishing(tracer: Tracer, name: str, messages: Iterable[NewMessage]) -> Iterator[Iterable[NewMessage]]:
    with tracer.start_as_current_span(f"publish {name}", kind=_kind("PRODUCER"), attributes=_about("send", name)):
        trace = traceparent()
        yield (msgspec.structs.replace(message, headers=carried(message.headers, trace)) for message in messages)


# Consuming


def claimed(tracer: Tracer, name: str, messages: Iterable[Message[Any]], began: int) -> None:
    """Record a span for a claim that returned messages, linked to the spans of their publishers."""
    links = [link for message in messages for link in _links(message.headers)]
    about = _about("receive", name)
    tracer.start_span(f"claim {name}", kind=_kind("CLIENT"), attributes=about, links=links, start_time=began).end()


def handling(message: Message[Any], name: str | None = None) -> AbstractContextManager[Any]:
    """Start a span that continues the publisher's trace: `with handling(delivery):` around your own work.

    `name`: queue or group, for the name of the span. The span records an exception and raises it again.
    """
    current = tracer()
    return nullcontext() if current is None else _handling(current, message, name)


@contextmanager
def _handling(tracer: Tracer, message: Message[Any], name: str | None) -> Iterator[Span]:
    about = _about("process", name) | {"messaging.message.id": str(message.id)}
    if isinstance(message, Delivery):
        about["messaging.message.delivery_attempt"] = message.attempt
    if message.label is not None:
        about["trunkline.label"] = message.label
    title = "process" if name is None else f"process {name}"
    with tracer.start_as_current_span(
        title, context=_context(message.headers), kind=_kind("CONSUMER"), attributes=about
    ) as span:
        try:
            yield span
        except Exception:
            raise  # recorded by the SDK
        except BaseException as exc:
            # the work was cancelled or interrupted
            from opentelemetry.trace import StatusCode

            span.record_exception(exc)
            span.set_status(StatusCode.ERROR, f"{type(exc).__name__}: {exc}")
            raise


# HTTP


@contextmanager
def request(tracer: Tracer, method: str, headers: Mapping[str, str]) -> Iterator[Span]:
    """Start a span for a request to the HTTP service, within the client's trace."""
    about = {"http.request.method": method}
    with tracer.start_as_current_span(method, context=_context(headers), kind=_kind("SERVER"), attributes=about) as span:
        yield span


def responded(span: Span, method: str, route: str | None, status: int) -> None:
    """Record route and status of a response on the span of its request."""
    if route is not None:
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR)


# Conversions to OpenTelemetry; called only if it is imported


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
    """Return the trace context of the headers, or the current context if they have none."""
    carrier = {name: value for name in _CARRIED if isinstance(value := (headers or {}).get(name), str)}
    context: Context = _propagator().extract(carrier)
    return context


def _links(headers: Mapping[str, Any] | None) -> list[Link]:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, get_current_span

    carrier = {name: value for name in _CARRIED if isinstance(value := (headers or {}).get(name), str)}
    span = get_current_span(_propagator().extract(carrier, context=Context())).get_span_context()
    return [Link(span)] if span.is_valid else []
