"""Route declarations, shared by the router, the access control and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from litestar.handlers import HTTPRouteHandler

from trunkline.server.query import Param

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Scope = str
"""One of public, publish, consume, view, read, operate, admin."""


class Doc(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a route, except its method and path."""

    tag: str
    scope: Scope
    params: tuple[Param, ...] = ()
    strict: bool = True
    """Reject undeclared parameters."""
    body: Any = None
    optional_body: bool = False
    bodies: Mapping[str, Any] = {}
    """Schemas of other media types."""
    responses: Mapping[int, Any] = {}
    """Status to type. None: no content. A tuple: one of several types."""
    problems: tuple[int, ...] = ()
    media: str = "application/json"
    headers: Mapping[str, str] = {}
    """Request headers and their descriptions."""
    object: str | None = None
    """The path parameter to match against the scope's pattern: a topic, queue or endpoint."""
    portal: bool = False
    """Open to a token for the portal of the endpoint `object`, whatever the scope."""
    audit: bool | Literal["body"] = False
    """Record calls in the audit log; "body": the route does so itself (`Request.audit`) after reading the name."""
    reads: bool = False
    """Reads, claims or counts messages: see `limits.Limits.reads`."""
    console: bool = False
    """A page or action of the console: a session's cookie is accepted as well as a token."""


def route(method: Method, path: str | list[str], doc: Doc) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Declare a function as a route, at one path or at several."""

    def make(function: Callable[..., Any]) -> HTTPRouteHandler:
        name = f"{function.__module__}.{function.__qualname__}"
        # each response sets its own status
        return HTTPRouteHandler(path, http_method=method, opt={"doc": doc}, status_code=200, name=name)(function)

    return make
