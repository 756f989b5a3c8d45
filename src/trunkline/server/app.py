"""The application: routes, errors, limits and counters around them."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from functools import lru_cache
from typing import Any

import msgspec
from litestar import Litestar, Response, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from litestar.utils import normalize_path

from trunkline import telemetry
from trunkline.hints import Words
from trunkline.server import engine, limits, logs
from trunkline.server.browsers import foreign
from trunkline.server.call import SAFE, Answer, Call, ClientGone
from trunkline.server.compat import pg_messaging, psqlqueue, pubsub_queue
from trunkline.server.config import Config
from trunkline.server.console import routes as console_routes
from trunkline.server.console.errors import is_page, problem_page
from trunkline.server.parent import end_with
from trunkline.server.problems import HINTS, MEDIA_TYPE, Problem, busy, from_any, no_route
from trunkline.server.routes import (
    claims,
    dead,
    delayed,
    endpoints,
    events,
    groups,
    inspection,
    jobs,
    messages,
    operations,
    pipelines,
    queues,
    runs,
    schedules,
    search,
    subscriptions,
    system,
    tokens,
    topics,
)

log = logging.getLogger("trunkline.server")
_SAFE = {name.decode(): value.decode() for name, value in SAFE}
_MAX_HEADERS = 64
_MAX_HEADER = 8192
_MAX_TARGET = 8192
_MAX_DRAIN = 65536
_MAX_DRAIN_TOO_LARGE = 1024**3
"""Bytes to discard of a body that is too large, so that clients that write before they read get the response."""
_MAX_DRAIN_CHUNKED = 64 * 1024 * 1024
_MAX_DISCARD = 8 * 1024 * 1024
_DISCARD_SECONDS = 30.0
_DISCARD_IDLE_SECONDS = 0.5
"""A client that sends nothing for this long may be waiting for the response."""
_CLOSE = (b"connection", b"close")


def create_app(config: Config) -> ASGIApp:
    """The server as an ASGI application."""
    v1 = Router(
        "/v1",
        route_handlers=[
            *queues.ROUTES,
            *topics.ROUTES,
            *messages.ROUTES,
            *claims.ROUTES,
            *groups.ROUTES,
            *events.ROUTES,
            *subscriptions.ROUTES,
            *dead.ROUTES,
            *runs.ROUTES,
            *schedules.ROUTES,
            *endpoints.ROUTES,
            *inspection.ROUTES,
            *search.ROUTES,
            *delayed.ROUTES,
            *jobs.ROUTES,
            *pipelines.ROUTES,
            *operations.ROUTES,
            *tokens.ROUTES,
        ],
    )
    app = Litestar(
        [
            v1,
            *system.ROUTES,
            Router(f"{psqlqueue.PREFIX}/v1", route_handlers=psqlqueue.ROUTES),
            Router("/compat/pubsub-queue", route_handlers=pubsub_queue.ROUTES),
            Router("/compat/pg-messaging", route_handlers=pg_messaging.ROUTES),
            *(console_routes.ROUTES if config.console else ()),
        ],
        request_class=Call,
        openapi_config=None,
        exception_handlers={Exception: _problem},
        lifespan=[engine.running],
        before_request=_guard,
        state=State({"config": config, "psqlqueue_receipts": psqlqueue.Receipts()}),
        logging_config=None,
        request_max_body_size=None,
    )
    return Frontier(app, config)


async def _guard(request: Any) -> Response[bytes] | None:
    """Run before each route: count the request and check the caller's rights."""
    scope = request.scope
    doc = scope["route_handler"].opt.get("doc")
    if doc is None:  # OPTIONS; Litestar would name the methods of one handler of the path only
        allowed = _allowed(scope["litestar_app"])[scope["path_template"]]
        return Response(b"", status_code=204, headers={**_SAFE, "allow": ", ".join(allowed)})
    if "trunkline_head" in scope and doc.scope == "consume":
        # a HEAD on a GET that claims messages would lose them
        raise MethodNotAllowedException(headers={"allow": ""})
    engine = scope["trunkline_engine"]
    template = scope["path_template"]
    engine.metrics.begun(template)
    scope["trunkline_begun"] = template
    await engine.access.admit(scope, doc)
    limits.enter_route(doc, scope, engine.config)
    return None


@lru_cache(maxsize=4)
def _allowed(app: Litestar) -> dict[str, list[str]]:
    """Return the allowed methods of each path template."""
    methods: dict[str, set[str]] = {}
    for path in app.routes:
        for handler in getattr(path, "route_handlers", ()):
            doc = handler.opt.get("doc")
            named = {str(method) for method in handler.http_methods}
            if doc is not None and "GET" in named and doc.scope != "consume":
                named.add("HEAD")
            methods.setdefault(path.path_format, {"OPTIONS"}).update(named)
    return {path: sorted(names) for path, names in methods.items()}


def _template(scope: Any, allowed: str) -> str:
    """Return the path template of a request whose method is not among these allowed ones."""
    if "path_template" in scope:
        return str(scope["path_template"])
    method = allowed.partition(",")[0]
    return str(scope["litestar_app"].asgi_router.handle_routing(path=normalize_path(scope["path"]), method=method)[4])


def _problem(request: Any, exc: Exception) -> Response[bytes]:
    problem = _translate(exc)
    if problem.status == 405:
        problem.headers["allow"] = ", ".join(_allowed(request.app)[_template(request.scope, problem.headers["allow"])])
    if problem.status >= 500 and not isinstance(exc, Problem):
        log.log(
            logging.ERROR if problem.status == 500 else logging.WARNING,
            "%s %s: %s",
            request.method,
            request.scope["path"],
            exc,
            exc_info=exc if problem.status == 500 else None,
        )
    if is_page(request.scope):
        return problem_page(request, problem)
    headers = {**_SAFE, **problem.headers}
    words: Words = "sql" if HINTS in request.headers else "route"
    return Response(_body(request.scope, problem, words), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def _body(scope: Any, problem: Problem, words: Words = "route") -> bytes:
    """Encode a problem in the form of the API that was called."""
    psql = scope["path"].startswith(f"{psqlqueue.PREFIX}/")
    return msgspec.json.encode(psqlqueue.details(problem, words) if psql else problem.details(words))


def _translate(exc: Exception) -> Problem:
    if isinstance(exc, ClientGone):
        return Problem(499, "client_gone", "the client closed the connection")
    if isinstance(exc, MethodNotAllowedException):
        return Problem(405, "method_not_allowed", "method not allowed for this path", headers=dict(exc.headers or {}))
    if isinstance(exc, NotFoundException):
        return no_route()
    if isinstance(exc, HTTPException):
        return Problem(
            exc.status_code, "bad_request", exc.detail or "the request is not valid", headers=dict(exc.headers or {})
        )
    return from_any(exc)


class _HeadSent(BaseException):
    """Ends a HEAD request after the response head. Not an Exception, so that no handler responds to it."""


class Frontier:
    """ASGI middleware around every request: limits, counters, access log."""

    def __init__(self, app: Litestar, config: Config) -> None:
        self.app = app
        self._config = config
        self._apis = {str(port): name for name, port in config.compat_ports.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if str(scope["type"]) == "http":
            await self._http(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        engine = scope["trunkline_engine"] = self.app.state.engine
        api = self._apis.get(str(scope["server"][1]))
        if api is not None:
            # on its own port an API is at the root
            scope["trunkline_port"] = api
            scope["path"] = f"/compat/{api}{scope['path']}"
        start = time.perf_counter()
        status, size = 0, 0
        head = scope["method"] == "HEAD"
        if head:
            scope["method"], scope["trunkline_head"] = "GET", True

        async def tell(event: Message) -> None:
            nonlocal status, size
            if event["type"] == "http.response.start":
                status = event["status"]
                too_large, closes = status == 413, _CLOSE in event["headers"]
                drained = bool(scope.get("trunkline_body_read"))
                if not drained and "trunkline_stream" in scope:
                    drained = await _discard_stream(receive, _MAX_DISCARD)
                # after a body timeout (which also closes), do not wait for the body again
                elif not drained and (not closes or (too_large and not _awaits_consent(scope))):
                    drained = await _drained(scope, receive, _MAX_DRAIN_TOO_LARGE if too_large else _MAX_DRAIN)
                if not drained and not closes:
                    event = {**event, "headers": [*event["headers"], _CLOSE]}
                if head:
                    await send(event)
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    raise _HeadSent
            elif event["type"] == "http.response.body":
                size += len(event.get("body", b""))
            await send(event)

        engine.under_way += 1
        try:
            refused = self._refusal(scope, engine)
            if refused is not None:
                engine.metrics.refused(refused.error)
                await _send(scope, receive, tell, refused)
                return
            tracer = telemetry.tracer()
            if tracer is None:
                await self.app(scope, receive, tell)
            else:
                with telemetry.request(tracer, scope["method"], _trace(scope["headers"])) as span:
                    await self.app(scope, receive, tell)
                    telemetry.answered(span, scope["method"], scope.get("trunkline_begun"), status)
        except _HeadSent:
            pass
        finally:
            engine.under_way -= 1
            took = time.perf_counter() - start
            template = scope.get("trunkline_begun")
            if template is not None:
                engine.metrics.ended(template)
            engine.metrics.observed(template or "none", scope["method"], status or 499, took, size)
            if self._config.access_log:
                fields = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(took, 6)}
                log.info("request", extra={"fields": fields})

    def _refusal(self, scope: Any, engine: Any) -> Problem | None:
        headers = scope["headers"]
        if len(headers) > _MAX_HEADERS or max([len(name) + len(value) for name, value in headers], default=0) > _MAX_HEADER:
            return Problem(
                431, "headers_too_large", f"more than {_MAX_HEADERS} headers, or a header longer than {_MAX_HEADER} bytes"
            )
        if len(scope["path"]) + len(scope["query_string"]) > _MAX_TARGET:
            return Problem(414, "uri_too_long", f"the request target is longer than {_MAX_TARGET} bytes")
        if "\x00" in scope["path"] or "//" in scope["path"] or "\ufffd" in scope["path"] or _hides_a_slash(scope):
            return Problem(400, "bad_path", "the path is not valid")
        if engine.access.open and (refused := foreign(headers, self._config.host)) is not None:
            return refused
        if engine.under_way > self._config.max_requests:
            return busy("too many concurrent requests")
        return None


def _awaits_consent(scope: Any) -> bool:
    """Return whether the client sends its body only after a 100 Continue, which reading would send."""
    return any(name == b"expect" for name, _ in scope["headers"])


async def _drained(scope: Any, receive: Receive, limit: int) -> bool:
    """Read an unused body, unless it is large. Return whether the connection can be reused.

    The HTTP server silently closes a connection with an unread body, so the next request on it would fail.
    """
    length = 0
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            if limit <= _MAX_DRAIN:
                return False
            # of unknown length, and perhaps without an end
            length = limit = _MAX_DRAIN_CHUNKED
        if name == b"content-length":
            length = int(value)
    if length == 0:
        return True
    if length > limit:
        return False
    try:
        # with the usual size and time limits
        async for _ in Call(scope, receive).parts(limit):
            pass
    except (Problem, ClientGone):
        return False
    return True


async def _discard_stream(receive: Receive, limit: int) -> bool:
    """Discard the rest of a failed stream while it keeps arriving: its client may not read before it has written.

    Return whether the connection can be reused.
    """
    end = time.monotonic() + _DISCARD_SECONDS
    size = 0
    while size < limit and time.monotonic() < end:
        try:
            async with asyncio.timeout(_DISCARD_IDLE_SECONDS):
                event: Any = await receive()
        except TimeoutError:
            return False
        size += len(event.get("body", b""))
        if not event.get("more_body", False):
            return bool(event["type"] != "http.disconnect")
    return False


def _trace(headers: Any) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in headers if name in (b"traceparent", b"tracestate")}


def _hides_a_slash(scope: Any) -> bool:
    """Detect an encoded slash: a proxy that authorises by path would see a different one."""
    raw = scope.get("raw_path") or b""
    return b"%" in raw and b"%2f" in raw.lower()


async def _send(scope: Any, receive: Receive, send: Send, problem: Problem) -> None:
    answer = Answer(_body(scope, problem), problem.status, MEDIA_TYPE, problem.headers)
    await answer(scope, receive, send)


def from_environment() -> ASGIApp:
    """Create the application in a worker process."""
    main = multiprocessing.parent_process()
    if main is not None and main.pid is not None:
        end_with(main.pid)
    logs.set_up()
    return create_app(Config.from_environment())
