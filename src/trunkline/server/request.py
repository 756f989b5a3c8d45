"""The request class: body limits, parameters, access to the service."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import litestar

from trunkline import Client, telemetry
from trunkline.db.pool import Connection
from trunkline.server import bodies
from trunkline.server.problems import Problem, body_timeout
from trunkline.server.query import read_query

if TYPE_CHECKING:
    from trunkline.server.routing import Doc
    from trunkline.server.service import Service

T = TypeVar("T")
_RECHECK_SECONDS = 2.0
"""Interval at which the token of a request is checked again while its body arrives."""


class ClientGone(Exception):
    """The client closed its connection; no response is possible."""


class Request(litestar.Request[Any, Any, Any]):
    """One request."""

    _headers_by_name: dict[bytes, bytes | list[bytes]] | None = None

    @property
    def service(self) -> Service:
        service: Service = self.scope["trunkline_service"]  # type: ignore[typeddict-item]
        return service

    @property
    def api(self) -> str | None:
        """The API of another system that the request is for; None: our own."""
        _, first, *rest = self.scope["path"].split("/", 3)
        return rest[0] if first == "compat" and rest else None

    @property
    def root(self) -> str:
        """The path at which the client sees the API: empty for our own, and on a separate port."""
        return "" if self.api is None or "trunkline_port" in self.scope else f"/compat/{self.api}"

    @property
    def mq(self) -> Client:
        return self.service.mq

    def writing(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for writes. If it is lost, the error is `OutcomeUnknown`."""
        return self.mq.session.connection(writing=True)

    @property
    def doc(self) -> Doc:
        doc: Doc = self.scope["route_handler"].opt["doc"]
        return doc

    async def allow(
        self, name: str, scope: str | None = None, *, hide: bool = False, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Raise 403 unless the token allows this route (or another scope) on a topic or queue named in the body.

        `hide`: the caller did not name it, so the error must not either.
        """
        await self.service.auth.allow(self.scope, scope or self.doc.scope, name, hide=hide, detail=detail)

    @property
    def caller(self) -> str:
        """The name of the token, or `local` without tokens."""
        return self.service.auth.caller_name(self.scope)

    @property
    def portal(self) -> bool:
        """True if the token is for the portal of one endpoint: it must not see other objects or our processes."""
        return "trunkline_portal" in self.scope

    async def audit(self, name: str, detail: Mapping[str, Any] | None = None) -> None:
        """Write an audit entry with a name from the body, and what the action was applied to."""
        await self.service.auth.record(self.scope, name, detail)

    def header(self, name: str) -> str | None:
        """Return a header that may occur at most once."""
        found = self._by_name().get(name.encode())
        if found is None:
            return None
        if isinstance(found, list):
            raise Problem(400, "bad_header", f"header {name} must occur at most once, got {len(found)}")
        return found.decode("latin-1")

    def _by_name(self) -> dict[bytes, bytes | list[bytes]]:
        if self._headers_by_name is not None:
            return self._headers_by_name
        found: dict[bytes, Any] = {}
        for name, value in self.scope["headers"]:
            if name in found:
                found[name] = [*found[name], value] if isinstance(found[name], list) else [found[name], value]
            else:
                found[name] = value
        self._headers_by_name = found
        return found

    def trace(self) -> str | None:
        """Return the W3C trace context for published messages: our own span's, else the request's."""
        return telemetry.traceparent().get("traceparent") or self.header("traceparent")

    def query(self) -> dict[str, Any]:
        """Parse the declared query parameters of this route."""
        doc = self.doc
        values = read_query(self.scope["query_string"], doc.params, strict=doc.strict)
        if values.get("wait"):
            values["wait"] = min(values["wait"], self.service.config.max_wait)
        return values

    async def bytes(self, limit: int | None = None) -> bytes:
        """Read the body within the size and time limits."""
        limit = limit or self.service.config.max_body
        parts = [part async for part in self.parts(limit)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def parts(self, limit: int) -> AsyncIterator[Any]:
        """Yield the parts of the body as they arrive."""
        self._check_body(limit)
        size, more = 0, True
        checked = time.monotonic()
        end = checked + self.service.config.whole_body_seconds
        while more:
            chunk, more = await self._part()
            now = time.monotonic()
            if more and now > end:
                raise body_timeout("the request body took too long")
            if now - checked > _RECHECK_SECONDS:
                await self.service.auth.recheck(self.scope)
                checked = now
            size += len(chunk)
            if size > limit:
                raise bodies.too_large(limit)
            yield chunk

    async def _part(self) -> tuple[Any, bool]:
        """Return the next part of the body, and whether more follow."""
        try:
            event = await self.service.timeouts.wait(self.receive)
        except TimeoutError:
            raise body_timeout("timed out waiting for the rest of the body") from None
        if event["type"] == "http.disconnect":
            raise ClientGone
        chunk: Any = event.get("body", b"")
        more = bool(event.get("more_body", False))
        if not more:
            self.scope["trunkline_body_read"] = True  # type: ignore[typeddict-unknown-key]
        return chunk, more

    def _check_body(self, limit: int) -> None:
        encoding = self.header("content-encoding")
        if encoding not in (None, "", "identity"):
            raise Problem(
                415, "unsupported_encoding", f"content-encoding {encoding[:20]} is not supported; send the body uncompressed"
            )
        length = self.header("content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise bodies.too_large(limit)

    async def read(self, kind: type[T], *, optional: bool = False) -> T:
        """Decode the JSON body. `optional`: treat an empty body as an empty object."""
        body = await self.bytes()
        if optional and not body.strip():
            body = b"{}"
        return bodies.decode(body, kind, max_depth=self.service.config.max_depth)
