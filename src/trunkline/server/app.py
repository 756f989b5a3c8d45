"""The application: routes, errors, limits and counters around them."""

from __future__ import annotations

import logging
import multiprocessing
from functools import lru_cache
from typing import Any

import litestar
from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.types import ASGIApp
from litestar.utils import normalize_path

from trunkline.hints import Interface
from trunkline.server import json_logs, limits, service
from trunkline.server.compat import pg_messaging, psqlqueue, pubsub_queue
from trunkline.server.config import Config
from trunkline.server.console import routes as console_routes
from trunkline.server.console.errors import is_page, problem_page
from trunkline.server.guard import RequestGuard, problem_body
from trunkline.server.parent_death import end_with
from trunkline.server.problems import HINTS, MEDIA_TYPE, Problem, from_any, no_route
from trunkline.server.request import ClientGone, Request
from trunkline.server.response import SAFE
from trunkline.server.routes import (
    claims,
    dead_letters,
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
            *dead_letters.ROUTES,
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
        request_class=Request,
        openapi_config=None,
        exception_handlers={Exception: _problem},
        lifespan=[service.running],
        before_request=_guard,
        state=State({"config": config, "psqlqueue_receipts": psqlqueue.Receipts()}),
        logging_config=None,
        request_max_body_size=None,
    )
    return RequestGuard(app, config)


async def _guard(request: Any) -> litestar.Response[bytes] | None:
    """Run before each route: count the request and check the caller's rights."""
    scope = request.scope
    doc = scope["route_handler"].opt.get("doc")
    if doc is None:  # OPTIONS; Litestar would name the methods of one handler of the path only
        allowed = _allowed(scope["litestar_app"])[scope["path_template"]]
        return litestar.Response(b"", status_code=204, headers={**_SAFE, "allow": ", ".join(allowed)})
    if "trunkline_head" in scope and doc.scope == "consume":
        # a HEAD on a GET that claims messages would lose them
        raise MethodNotAllowedException(headers={"allow": ""})
    service = scope["trunkline_service"]
    template = scope["path_template"]
    service.metrics.begun(template)
    scope["trunkline_begun"] = template
    await service.auth.admit(scope, doc)
    limits.enter_route(doc, scope, service.config)
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


def _problem(request: Any, exc: Exception) -> litestar.Response[bytes]:
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
    words: Interface = "sql" if HINTS in request.headers else "route"
    return litestar.Response(
        problem_body(request.scope, problem, words), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )


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


def from_environment() -> ASGIApp:
    """Create the application in a worker process."""
    main = multiprocessing.parent_process()
    if main is not None and main.pid is not None:
        end_with(main.pid)
    json_logs.set_up()
    return create_app(Config.from_environment())
