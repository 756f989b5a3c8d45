"""`trunkline serve` with an additional route that reads the request body and does nothing."""

from __future__ import annotations

from typing import Any

from trunkline.cli.commands.serve import command
from trunkline.server import app
from trunkline.server.request import Request, Response
from trunkline.server.response import nothing
from trunkline.server.routing import Doc, route

PATH = "/nothing"


@route("POST", PATH, Doc(tag="bench", scope="public", strict=False))
async def _nothing(request: Request) -> Response:
    await request.bytes()
    return nothing()


def serve() -> None:
    """Run the command. Workers are forked, so they inherit the additional route."""
    made = app.create_app

    def longer(config: Any) -> Any:
        frontier: Any = made(config)
        frontier.app.register(_nothing)
        return frontier

    app.create_app = longer
    command()
