"""Requests and their answers: JSON both ways, errors as the classes that the database client raises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar, overload
from urllib.parse import quote

import httpx
import msgspec

from trunkline import errors, telemetry
from trunkline.client.refusals import LeaseLost
from trunkline.errors import DatabaseUnavailable, OutcomeUnknown, SettingsError, TrunklineError, Unauthorized

T = TypeVar("T")
PAGE = 1000
CONNECT_SECONDS = 2.0
_QUIET = httpx.Timeout(45.0, connect=CONNECT_SECONDS)
"""A stream of events says at least every 15 seconds that it is there."""
_ERRORS: dict[str, type[TrunklineError]] = {
    cls.code: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TrunklineError)
}
_ERRORS[LeaseLost.code] = LeaseLost
_BY_STATUS: dict[int, type[TrunklineError]] = {
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.PayloadTooLarge,
    429: errors.Busy,
}


class Page(msgspec.Struct):
    data: list[msgspec.Raw]


class Transport:
    """The connections to one server."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        # hints come as SQL has them: whether a command or Python asks is known only here
        headers = {"content-type": "application/json", "x-trunkline-hints": "sql"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        try:
            # a host that drops packets must not use up the time of a long response
            patience = httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS))
            self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=patience)
        except (httpx.InvalidURL, UnicodeError) as exc:
            raise SettingsError(f"the URL of the server cannot be read: {exc}", hint="write http://host:8080") from exc

    async def close(self) -> None:
        await self._client.aclose()

    async def send(
        self, method: str, path: str, content: bytes | None = None, query: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        """The answer, if it is one of success."""
        given = None if query is None else {name: value for name, value in query.items() if value is not None}
        try:
            answer = await self._client.request(method, path, content=content, params=given, headers=telemetry.traceparent())
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            raise _unreachable(exc) from exc
        except httpx.TransportError as exc:
            if method == "GET":
                raise DatabaseUnavailable(f"the server did not answer: {exc}") from exc
            raise OutcomeUnknown(
                f"the server did not answer: {exc}", hint="retry with the same idempotency key; duplicates are detected"
            ) from exc
        if answer.status_code >= 400:
            raise _error(answer.status_code, answer.content)
        return answer

    @overload
    async def ask(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Any: ...
    @overload
    async def ask(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, kind: type[T]
    ) -> T: ...
    async def ask(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, kind: Any = Any
    ) -> Any:
        """What the answer holds. Fields of the body that are None are left out."""
        content = None if body is None else msgspec.json.encode(given(**body))
        answer = await self.send(method, path, content, query)
        return msgspec.json.decode(answer.content, type=kind) if answer.content else None

    async def every(self, path: str, kind: type[T], *, after: str | None = None, limit: int | None = None) -> list[T]:
        """All rows of a list, or `limit` of them after a name; a page at a time."""
        rows: list[T] = []
        while True:
            size = PAGE if limit is None else min(PAGE, limit - len(rows))
            query = given(after=after, offset=len(rows), limit=size)
            page = await self.ask("GET", path, query=query, kind=Page)
            rows += [msgspec.json.decode(row, type=kind) for row in page.data]
            if len(page.data) < PAGE:
                return rows

    async def events(self, path: str, query: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """The data of server-sent events. A connection that breaks goes on where it ended."""
        seen: dict[str, str] = {}
        while True:
            try:
                async with self._client.stream("GET", path, params=query, headers=seen, timeout=_QUIET) as answer:
                    if answer.status_code >= 400:
                        raise _error(answer.status_code, await answer.aread())
                    async for event in _parsed(answer.aiter_lines()):
                        if event.get("event") == "problem":
                            raise _error(500, event["data"].encode())
                        yield event["data"].encode()
                        seen = {"last-event-id": event["id"]}
            except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
                raise _unreachable(exc) from exc
            except httpx.TransportError as exc:
                if not seen:  # what came meanwhile would be missed
                    raise DatabaseUnavailable(f"the connection to the server broke: {exc}") from exc


async def _parsed(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, str]]:
    """Events as their fields; comments, which only say that the server is there, are left out."""
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
    return DatabaseUnavailable(f"the server cannot be reached: {exc}", hint="check that it runs, and its URL")


def _error(status: int, content: bytes) -> TrunklineError:
    try:
        body = msgspec.json.decode(content)
        code, detail, hint = body["error"], body["detail"], body.get("hint")
    except (ValueError, KeyError, TypeError):
        return DatabaseUnavailable(f"the server answered {status} without saying why")
    if status in (401, 403):
        return Unauthorized(detail, hint=hint)
    cls = _ERRORS.get(code) or _BY_STATUS.get(status)
    if cls is None:
        cls = errors.InvalidArgument if status < 500 else errors.Unavailable
    return cls(detail, hint=hint)


def given(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def quoted(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")
