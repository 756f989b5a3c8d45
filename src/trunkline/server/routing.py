"""How a route is declared: once, for the router, the scopes and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from litestar.handlers import HTTPRouteHandler

from trunkline.server.params import Param

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Scope = str
"""public, publish, consume, read or admin."""


class Doc(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know about a route besides its path."""

    tag: str
    scope: Scope
    params: tuple[Param, ...] = ()
    strict: bool = True
    """Refuse parameters that are not declared."""
    body: Any = None
    optional_body: bool = False
    bodies: Mapping[str, Any] = {}
    """Other media types and their schemas."""
    answers: Mapping[int, Any] = {}
    """Status to type; None for no content, a tuple for one of several."""
    problems: tuple[int, ...] = ()
    media: str = "application/json"
    headers: Mapping[str, str] = {}
    """Request headers and what they mean."""
    object: str | None = None
    """Path parameter that names the topic, queue or endpoint of a scope's pattern."""
    audit: bool | Literal["body"] = False
    """Record calls in the audit log; "body": the route does so itself (`Call.audit`) when it has read the name."""
    reads: bool = False
    """Reads, claims or counts messages: see `limits.Limits.reads`."""


def route(method: Method, path: str, doc: Doc) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Make a function a route."""

    def make(function: Callable[..., Any]) -> HTTPRouteHandler:
        name = f"{function.__module__}.{function.__qualname__}"
        # each answer says its own status
        return HTTPRouteHandler(path, http_method=method, opt={"doc": doc}, status_code=200, name=name)(function)

    return make
