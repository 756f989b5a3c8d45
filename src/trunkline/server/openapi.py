"""The OpenAPI 3.1 document, generated from the route declarations."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute

from trunkline import __version__
from trunkline.server.compat import psqlqueue
from trunkline.server.problems import MEDIA_TYPE, Details
from trunkline.server.routing import Doc

_PROBLEMS = "Errors are problem details (RFC 9457). Their `error` is a stable code."
_DESCRIPTIONS = {
    None: f"{_PROBLEMS} The APIs of other systems are described at /compat/NAME/docs.",
    "psqlqueue": f"The API of psqlqueue. {_PROBLEMS} `code`, `message` and `details` are psqlqueue's.",
    "pubsub-queue": f"The API of postgres-backed-pubsub-queue. {_PROBLEMS}",
    "pg-messaging": f"The routes sketched in pg-messaging's documentation. {_PROBLEMS}",
}
_REF = "#/components/schemas/{name}"
# possible responses of every route
_ALWAYS = (400, 401, 403, 404, 405, 408, 413, 414, 415, 429, 431, 500, 503)
_WORDS = {
    200: "Done.",
    201: "Created.",
    204: "Done; no content.",
    302: "See the header Location.",
    303: "See the header Location.",
    400: "The request is not valid.",
    401: "The token is missing or not valid.",
    403: "The token lacks the required scope.",
    404: "Not found.",
    405: "Method not allowed for this path.",
    408: "Timed out reading the request body.",
    409: "Conflict with the current state.",
    413: "Too large.",
    414: "The request target is too long.",
    415: "Unsupported body encoding.",
    416: "Retention has removed this offset.",
    429: "Too many requests; see Retry-After.",
    431: "Too many or too large headers.",
    500: "Internal error.",
    503: "Unavailable; see Retry-After.",
}
_PARAMETER = re.compile(r"\{(\w+):(\w+)\}")
_KINDS: dict[str, dict[str, Any]] = {
    "str": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9._-]+$"},
    "uuid": {"type": "string", "format": "uuid"},
    "int": {"type": "integer", "minimum": 1},
}


@lru_cache(maxsize=32)
def document(app: Litestar, api: str | None = None, root: str = "") -> bytes:
    return msgspec.json.encode(build(app, api, root))


def build(app: Litestar, api: str | None = None, root: str = "") -> dict[str, Any]:
    """Return the document of our own API or of another system's, whose paths begin at `root`."""
    handlers = routes(app, api)
    problem = psqlqueue.Details if api == "psqlqueue" else Details
    types = [problem, *_types(handlers)]
    _, components = msgspec.json.schema_components(types, ref_template=_REF, schema_hook=_hook)
    paths: dict[str, Any] = {}
    for path, method, handler in handlers:
        paths.setdefault(_PARAMETER.sub(r"{\1}", path), {})[method.lower()] = _operation(path, handler, problem)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trunkline",
            "version": __version__,
            "summary": "One Postgres log, every way to consume it.",
            "description": _DESCRIPTIONS[api],
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def routes(app: Litestar, api: str | None = None, *, console: bool = False) -> list[tuple[str, str, HTTPRouteHandler]]:
    """Return path, method and handler of every route of an API. The paths of another system's begin below its prefix.

    `console`: those of the web console instead, which is no API.
    """
    prefix = "" if api is None else f"/compat/{api}"
    found = []
    for route in app.routes:
        if not isinstance(route, HTTPRoute) or not route.path.startswith(f"{prefix}/"):
            continue
        if api is None and route.path.startswith("/compat/"):
            continue
        for handler in route.route_handlers:
            path = route.path.removeprefix(prefix)
            if "doc" in handler.opt and handler.opt["doc"].console is console:
                found += [(path, str(method), handler) for method in handler.http_methods]
    return sorted(found, key=lambda row: (row[0], row[1]))


def _types(handlers: list[tuple[str, str, HTTPRouteHandler]]) -> list[Any]:
    types: list[Any] = []
    for _, _, handler in handlers:
        doc: Doc = handler.opt["doc"]
        for kind in (doc.body, *doc.responses.values()):
            types += [each for each in (kind if isinstance(kind, tuple) else (kind,)) if each not in (None, str, bytes)]
    return types


def _hook(kind: type) -> dict[str, Any]:
    if kind is msgspec.Raw:
        return {}
    raise NotImplementedError


def _schema(kind: Any) -> dict[str, Any]:
    if isinstance(kind, tuple):
        return {"anyOf": [_schema(each) for each in kind]}
    if kind in (str, bytes):
        return {"type": "string"}
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF, schema_hook=_hook)
    return schema


def _operation(path: str, handler: HTTPRouteHandler, problem: type[Details]) -> dict[str, Any]:
    doc: Doc = handler.opt["doc"]
    summary, _, rest = inspect.cleandoc(handler.fn.__doc__ or "").partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": _id(path, handler),
        "tags": [doc.tag],
        "summary": " ".join(summary.split()),
        "parameters": [*_path_parameters(path), *_query_parameters(doc), *_headers(doc)],
        "responses": _responses(doc, problem),
    }
    if rest:
        operation["description"] = " ".join(rest.split())
    if doc.body is not None:
        content = {"application/json": {"schema": _schema(doc.body)}}
        content |= {media: {"schema": _schema(kind)} for media, kind in doc.bodies.items()}
        operation["requestBody"] = {"required": not doc.optional_body, "content": content}
    if doc.scope == "public":
        operation["security"] = [{}]
    else:
        operation["x-scope"] = doc.scope
    return operation


def _id(path: str, handler: HTTPRouteHandler) -> str:
    prefix = path.split("/")[1]
    name = handler.fn.__name__
    return name if prefix == "v1" else f"{prefix.replace('.', '_')}_{name}"


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _KINDS[kind]} for name, kind in _PARAMETER.findall(path)
    ]


def _query_parameters(doc: Doc) -> list[dict[str, Any]]:
    return [
        {
            "name": param.name,
            "in": "query",
            "required": param.required,
            "description": param.words,
            "schema": param.schema(),
        }
        for param in doc.params
    ]


def _headers(doc: Doc) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": words,
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }
        for name, words in doc.headers.items()
    ]


def _responses(doc: Doc, problem: type[Details]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, kind in doc.responses.items():
        entry: dict[str, Any] = {"description": _WORDS[status]}
        if kind is not None:
            entry["content"] = {doc.media: {"schema": _schema(kind)}}
        found[str(status)] = entry
    content = {MEDIA_TYPE: {"schema": _schema(problem)}}
    for status in sorted({*_ALWAYS, *doc.problems}):
        found[str(status)] = {"description": _WORDS[status], "content": content}
    return found
