"""Stylesheet, scripts and icon."""

from __future__ import annotations

from trunkline.server.call import Answer
from trunkline.server.console.pages import static_files
from trunkline.server.console.web import View, page
from trunkline.server.problems import no_route

_YEAR = 365 * 86400


@page("/static/{file:str}", scope="public", object=None)
async def asset(view: View) -> Answer:
    """Serve a file. Its address carries its hash, so browsers keep it for a year."""
    found = static_files().get(view.path["file"])
    if found is None:
        raise no_route()
    etag = f'"{found.etag}"'
    fixed = view.query.get("v") == found.etag
    headers = {"etag": etag, "cache-control": f"public, max-age={_YEAR}, immutable" if fixed else "no-cache"}
    if view.request.header("if-none-match") == etag:
        return Answer(b"", 304, None, headers)
    return Answer(found.body, 200, found.kind, headers)


ROUTES = [asset]
