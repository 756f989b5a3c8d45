"""Errors as pages: browsers get HTML where the API sends problem details."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import litestar

from trunkline.server.console.web import HTML, POLICY, ROOT, View
from trunkline.server.problems import Problem

_SAFE = {"x-content-type-options": "nosniff", "cache-control": "no-store", **POLICY}
_TITLES = {
    401: "Sign in",
    403: "Not allowed",
    404: "Not found",
    429: "Too many requests",
    503: "Not available now",
}


def is_page(scope: Any) -> bool:
    """Return whether a request is for the console, as far as its path tells."""
    path = scope["path"]
    return (path == ROOT or path.startswith(f"{ROOT}/")) and any(
        name == b"accept" and b"text/html" in value for name, value in scope["headers"]
    )


def problem_page(request: Any, problem: Problem) -> litestar.Response[bytes]:
    """Return a problem as a page. A caller without a session goes to the form, and comes back to this address."""
    view = View(request)
    if request.service.console is None:
        return litestar.Response(problem.body(), status_code=problem.status, headers={**_SAFE, **problem.headers})
    fragment = request.header("hx-request") is not None
    if problem.status == 401:
        back = view.base if fragment or request.method != "GET" else view.with_query()
        address = f"{view.base}/login?next={quote(back, safe='')}"
        if fragment:
            return litestar.Response(b"", status_code=401, headers={**_SAFE, "hx-redirect": address})
        return litestar.Response(b"", status_code=303, headers={**_SAFE, "location": address})
    text = view.console.pages.render(
        "problem.html",
        view.values(
            title=_TITLES.get(problem.status, "This did not work"),
            detail=problem.detail,
            hint=problem.details("command").hint,
            status=problem.status,
            code=problem.error,
        ),
    )
    headers = {name: value for name, value in problem.headers.items() if name != "www-authenticate"}
    return litestar.Response(text.encode(), status_code=problem.status, media_type=HTML, headers={**_SAFE, **headers})
