"""The server itself: health, statistics, API description."""

from __future__ import annotations

from typing import Any

from trunkline.server.config import COMPAT_APIS
from trunkline.server.openapi import document
from trunkline.server.pages import html_page, static
from trunkline.server.problems import Problem, no_route
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Health, StatsView

TAG = "system"
# each API of another system has its own page and document
_ROOTS = ("", *(f"/compat/{name}" for name in COMPAT_APIS))


@route("GET", "/healthz", Doc(tag=TAG, scope="public", strict=False, responses={200: Health}))
async def live(request: Request) -> Response:
    """Report that the process is running."""
    return respond(Health(True))


@route("GET", "/readyz", Doc(tag=TAG, scope="public", strict=False, responses={200: Health}))
async def ready(request: Request) -> Response:
    """Report whether the database responds and the server is not stopping."""
    if request.service.stopping.is_set():
        raise Problem(503, "stopping", "the server is stopping")
    await request.service.check_database()
    return respond(Health(True))


@route("GET", "/v1/stats", Doc(tag=TAG, scope="read", responses={200: StatsView}, reads=True))
async def stats(request: Request) -> Response:
    """Get statistics of all topics, groups and queues."""
    request.query()
    found = await request.mq.stats()
    return respond(StatsView(found.topics, found.groups, found.queues))


@route("GET", "/metrics", Doc(tag=TAG, scope="read", strict=False, responses={200: str}, media="text/plain", reads=True))
async def metrics(request: Request) -> Response:
    """Get metrics for Prometheus."""
    content, kind = await request.service.metrics.render(request.mq)
    return Response(content, media_type=kind)


def _everywhere(path: str) -> list[str]:
    return [f"{root}{path}" for root in _ROOTS]


@route(
    "GET",
    _everywhere("/openapi.json"),
    Doc(tag=TAG, scope="public", strict=False, responses={200: dict[str, Any]}),
)
async def schema(request: Request) -> Response:
    """Get this API as an OpenAPI 3.1 document."""
    return Response(document(request.scope["litestar_app"], request.api, request.root))


_PAGE = Doc(tag=TAG, scope="public", strict=False, responses={200: str}, media="text/html")


@route("GET", "/", Doc(tag=TAG, scope="public", strict=False, responses={302: None, 303: None}, problems=(404,)))
async def root(request: Request) -> Response:
    """Redirect a browser to the console, or without one to the page of this API."""
    if not any(name == b"accept" and b"text/html" in value for name, value in request.scope["headers"]):
        raise no_route()
    if request.service.console is not None:
        return Response(b"", 303, None, {"location": f"{request.service.console.prefix}/console", "vary": "accept"})
    # relative: a proxy may serve this API below a path
    return Response(b"", 302, None, {"location": "docs", "vary": "accept"})


@route("GET", _everywhere("/docs"), _PAGE)
async def page(request: Request) -> Response:
    """Show a page to browse and try this API, without external resources."""
    return html_page(request)


@route(
    "GET",
    _everywhere("/docs.js"),
    Doc(tag=TAG, scope="public", strict=False, responses={200: str}, media="text/javascript"),
)
async def script(request: Request) -> Response:
    """Get the script of the API page."""
    return Response(static("docs.js"), media_type="text/javascript; charset=utf-8")


@route(
    "GET",
    _everywhere("/docs.css"),
    Doc(tag=TAG, scope="public", strict=False, responses={200: str}, media="text/css"),
)
async def style(request: Request) -> Response:
    """Get the stylesheet of the API page."""
    return Response(static("docs.css"), media_type="text/css; charset=utf-8")


ROUTES = [live, ready, stats, metrics, schema, root, page, script, style]
