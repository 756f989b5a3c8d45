"""The page that describes an API, and its static files."""

from __future__ import annotations

from importlib import resources

from trunkline.server.request import Request
from trunkline.server.response import Response

_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


def static(name: str) -> bytes:
    return (resources.files("trunkline.server") / "static" / name).read_bytes()


def html_page(request: Request) -> Response:
    """Return the page of the request's API."""
    content = static("docs.html").replace(b"{root}", request.root.encode())
    return Response(content, media_type="text/html; charset=utf-8", headers=_POLICY)
