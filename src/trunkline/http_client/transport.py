"""HTTP requests with JSON bodies. Errors are raised as the same classes as in the database client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar, overload
from urllib.parse import quote

import httpx
import msgspec

from trunkline import errors, telemetry
from trunkline.errors import DatabaseUnavailable, LeaseLost, OutcomeUnknown, SettingsError, TrunklineError, Unauthorized
from trunkline.wire import from_view, view

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
PAGE = 1000
CONNECT_SECONDS = 2.0
_QUIET = httpx.Timeout(45.0, connect=CONNECT_SECONDS)
"""Timeouts of event streams, on which the server sends a comment at least every 15 seconds."""
_AGAIN_SECONDS = 1.0
"""Pause after a stream that ended without an event."""
_NOT_OURS = "Check the server's URL: it must be that of trunkline serve, without a path."
_ERRORS: dict[str, type[TrunklineError]] = {
    cls.code: cls
    for cls in vars(errors).values()
    # subclasses with the code of their base are raised before anything is sent
    if isinstance(cls, type) and issubclass(cls, TrunklineError) and "code" in vars(cls)
}
_ERRORS[LeaseLost.code] = LeaseLost
_BY_STATUS: dict[int, type[TrunklineError]] = {
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.PayloadTooLarge,
    429: errors.Busy,
}


class _Page(msgspec.Struct):
    data: list[msgspec.Raw]


class Transport:
    """The connections to one server."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        # request hints in SQL terms: only this side knows whether to reword them for the command line or Python
        headers = {"x-trunkline-hints": "sql"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        try:
            # a host that drops packets must not use up the time of a long response
            patience = httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS))
            self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=patience)
        except (httpx.InvalidURL, UnicodeError) as exc:
            raise SettingsError(f"the server URL is invalid: {exc}", hint="Use for example http://host:8080.") from exc

    async def close(self) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        media: str = "application/json",
    ) -> httpx.Response:
        """Send a request. Return the response, or raise if it is an error."""
        params = None if query is None else {name: value for name, value in query.items() if value is not None}
        try:
            response = await self._client.request(
                method, path, content=content, params=params, headers={"content-type": media, **telemetry.traceparent()}
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            raise _unreachable(exc) from exc
        except httpx.RequestError as exc:
            if method == "GET":
                raise DatabaseUnavailable(f"the server did not respond: {exc}") from exc
            raise OutcomeUnknown(
                f"the server did not respond: {exc}; the request may or may not have been applied",
                hint="Retry with the same idempotency key; duplicates are detected.",
            ) from exc
        _check_status(response, response.content)
        return response

    @overload
    async def ask(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Any: ...
    @overload
    async def ask(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, kind: type[T]
    ) -> T: ...
    async def ask(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, kind: Any = Any
    ) -> Any:
        """Send a request and decode the response. Body fields that are None are omitted."""
        content = None if body is None else msgspec.json.encode(given(**body))
        response = await self.send(method, path, content, query)
        return None if kind is Any and not response.content else decoded(response.content, kind)

    async def record(
        self, method: str, path: str, kind: type[R], body: Any = None, *, query: Mapping[str, Any] | None = None
    ) -> R:
        """Send a request and return the record in its response."""
        return from_view(kind, await self.ask(method, path, body, query=query, kind=view(kind)))

    async def records(
        self,
        path: str,
        kind: type[R],
        *,
        after: str | None = None,
        limit: int | None = None,
        **query: str | Sequence[str] | None,
    ) -> list[R]:
        """Return all records of a list, or `limit` records after a name, reading it page by page."""
        rows = await self.every(path, view(kind), after=after, limit=limit, **query)
        return [from_view(kind, row) for row in rows]

    async def every(
        self,
        path: str,
        kind: type[T],
        *,
        after: str | None = None,
        limit: int | None = None,
        **query: str | Sequence[str] | None,
    ) -> list[T]:
        """Return all rows of a list, or `limit` rows after a name, reading it page by page."""
        rows: list[T] = []
        while True:
            size = PAGE if limit is None else min(PAGE, limit - len(rows))
            part = given(after=after, offset=len(rows), limit=size, **query)
            page = await self.ask("GET", path, query=part, kind=_Page)
            rows += [decoded(row, kind) for row in page.data]
            if len(page.data) < PAGE:
                return rows

    async def events(self, path: str, query: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Iterate over the data of server-sent events. After a broken connection, resume after the last event."""
        seen: dict[str, str] = {}
        while True:
            before = seen
            try:
                async with self._client.stream("GET", path, params=query, headers=seen, timeout=_QUIET) as response:
                    if response.status_code != 200:
                        _check_status(response, await response.aread())
                    if not response.headers.get("content-type", "").startswith("text/event-stream"):
                        raise DatabaseUnavailable("the response is not a stream of events", hint=_NOT_OURS)
                    async for event in _parsed(response.aiter_lines()):
                        if event.get("event") == "problem":
                            raise _error(500, event["data"].encode())
                        yield event["data"].encode()
                        seen = {"last-event-id": event["id"]} if "id" in event else seen
            except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
                raise _unreachable(exc) from exc
            except httpx.RequestError as exc:
                if not seen:  # without an event id to resume from, events would be missed
                    raise DatabaseUnavailable(f"the connection to the server broke: {exc}") from exc
            if seen is before:
                await asyncio.sleep(_AGAIN_SECONDS)


async def _parsed(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, str]]:
    """Parse events into their fields. Comments, which only keep the connection alive, are skipped."""
    event: dict[str, str] = {}
    async for line in lines:
        field, colon, value = line.partition(": ")
        if field and colon:
            event[field] = value
        elif not line:
            if "data" in event:
                yield event
            event = {}


def _unreachable(exc: Exception) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"cannot connect to the server: {str(exc) or 'no response'}", hint="Check its URL, and that it is running."
    )


def decoded(content: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode a response or a part of it. Raise if it is not one of this API, such as a page of a proxy."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise DatabaseUnavailable(f"the response is not one of this API: {exc}", hint=_NOT_OURS) from exc


def _check_status(response: httpx.Response, content: bytes) -> None:
    if response.status_code >= 400:
        raise _error(response.status_code, content)
    if not 200 <= response.status_code < 300:
        place = response.headers.get("location")
        raise DatabaseUnavailable(
            f"the server responded with status {response.status_code}{f' and redirects to {place}' if place else ''}",
            hint=_NOT_OURS,
        )


def _error(status: int, content: bytes) -> TrunklineError:
    try:
        body = msgspec.json.decode(content)
        code, detail, hint = body["error"], body["detail"], body.get("hint")
    except (ValueError, KeyError, TypeError):
        return DatabaseUnavailable(f"the server responded with status {status} and no error description")
    if status in (401, 403):
        return Unauthorized(detail, hint=hint)
    cls = _ERRORS.get(code) or _BY_STATUS.get(status)
    if cls is None:
        cls = errors.InvalidArgument if status < 500 else errors.Unavailable
    return cls(detail, hint=hint)


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def quoted(name: str) -> str:
    """Quote a name as a path segment."""
    return quote(name, safe="")
