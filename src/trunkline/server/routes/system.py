"""The server itself: health, statistics, API description."""

from __future__ import annotations

import asyncio
from importlib import resources
from typing import Any

import msgspec

from trunkline.db import doors
from trunkline.errors import DatabaseUnavailable, TrunklineError
from trunkline.server.call import Answer, Call, answer
from trunkline.server.openapi import document
from trunkline.server.problems import Problem, no_route
from trunkline.server.routing import Doc, route
from trunkline.server.views import StatsView

TAG = "system"
_PATIENCE_SECONDS = 3.0


class Health(msgspec.Struct, frozen=True):
    success: bool


@route("GET", "/healthz", Doc(tag=TAG, scope="public", strict=False, answers={200: Health}))
async def live(request: Call) -> Answer:
    """Report that the process is running."""
    return answer(Health(True))


@route("GET", "/readyz", Doc(tag=TAG, scope="public", strict=False, answers={200: Health}))
async def ready(request: Call) -> Answer:
    """Report whether the database responds and the server is not stopping."""
    if request.engine.stopping.is_set():
        raise Problem(503, "stopping", "the server is stopping", code=1)
    await _ask_database(request)
    return answer(Health(True))


async def _ask_database(call: Call) -> None:
    """Query the database, without the pool's long retries: a health check must fail fast."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), call.mq.connection() as conn:
            await doors.answers(conn)
    except TimeoutError:
        raise DatabaseUnavailable("the database does not respond") from None


@route("GET", "/v1/healthz", Doc(tag=TAG, scope="public", strict=False, answers={200: Health}, problems=(500,)))
async def health(request: Call) -> Answer:
    """Report whether the database responds."""
    try:
        await _ask_database(request)
    except TrunklineError as exc:
        raise Problem(500, exc.code, exc.message, code=1) from None
    return answer(Health(True))


@route("GET", "/v1/stats", Doc(tag=TAG, scope="read", answers={200: StatsView}, reads=True))
async def stats(request: Call) -> Answer:
    """Get statistics of all topics, groups and queues."""
    request.query()
    found = await request.mq.stats()
    return answer(StatsView(found.topics, found.groups, found.queues))


@route("GET", "/metrics", Doc(tag=TAG, scope="read", strict=False, answers={200: str}, media="text/plain", reads=True))
async def metrics(request: Call) -> Answer:
    """Get metrics for Prometheus."""
    content, kind = await request.engine.metrics.render(request.mq)
    return Answer(content, media_type=kind)


@route("GET", "/openapi.json", Doc(tag=TAG, scope="public", strict=False, answers={200: dict[str, Any]}))
async def schema(request: Call) -> Answer:
    """Get this API as an OpenAPI 3.1 document."""
    return Answer(document(request.scope["litestar_app"]))


_PAGE = Doc(tag=TAG, scope="public", strict=False, answers={200: str}, media="text/html")
_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


def _static(name: str) -> bytes:
    return (resources.files("trunkline.server") / "static" / name).read_bytes()


@route("GET", "/", Doc(tag=TAG, scope="public", strict=False, answers={302: None}, problems=(404,)))
async def root(request: Call) -> Answer:
    """Redirect a browser to the page of this API."""
    if not any(name == b"accept" and b"text/html" in value for name, value in request.scope["headers"]):
        raise no_route()
    # relative: a proxy may serve this API below a path
    return Answer(b"", 302, None, {"location": "docs", "vary": "accept"})


@route("GET", "/docs", _PAGE)
async def page(request: Call) -> Answer:
    """Show a page to browse and try this API, without external resources."""
    return Answer(_static("docs.html"), media_type="text/html; charset=utf-8", headers=_POLICY)


@route("GET", "/v1/swagger/index.html", _PAGE)
async def swagger_page(request: Call) -> Answer:
    """Show the API page at psqlqueue's address."""
    return Answer(_static("docs.html"), media_type="text/html; charset=utf-8", headers=_POLICY)


@route("GET", "/docs.js", Doc(tag=TAG, scope="public", strict=False, answers={200: str}, media="text/javascript"))
async def script(request: Call) -> Answer:
    """Get the script of the API page."""
    return Answer(_static("docs.js"), media_type="text/javascript; charset=utf-8")


@route("GET", "/docs.css", Doc(tag=TAG, scope="public", strict=False, answers={200: str}, media="text/css"))
async def style(request: Call) -> Answer:
    """Get the stylesheet of the API page."""
    return Answer(_static("docs.css"), media_type="text/css; charset=utf-8")


ROUTES = [live, ready, health, stats, metrics, schema, root, page, swagger_page, script, style]
