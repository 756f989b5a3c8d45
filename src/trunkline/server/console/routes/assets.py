"""Stylesheet, scripts and icon."""

from __future__ import annotations

import litestar

from trunkline.server.console.pages import static_files
from trunkline.server.console.web import View, page
from trunkline.server.problems import no_route

_YEAR = 365 * 86400


@page("/static/{file:str}", scope="public", object=None)
async def asset(view: View) -> litestar.Response[bytes]:
    """Serve a file. Its address carries its hash, so browsers keep it for a year."""
    found = static_files().get(view.path["file"])
    if found is None:
        raise no_route()
    etag = f'"{found.etag}"'
    fixed = view.query.get("v") == found.etag
    headers = {
        "etag": etag,
        "x-content-type-options": "nosniff",
        "cache-control": f"public, max-age={_YEAR}, immutable" if fixed else "no-cache",
    }
    if view.request.header("if-none-match") == etag:
        return litestar.Response(b"", status_code=304, headers=headers)
    return litestar.Response(found.body, media_type=found.kind, headers=headers)


ROUTES = [asset]
