"""Which fragments are stale: one event stream per browser, or polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from litestar.response import Stream

from trunkline.server.console.web import View, page
from trunkline.server.response import Response, respond

_QUIET_SECONDS = 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


def _since(view: View) -> int:
    text = view.request.header("last-event-id") or view.query.get("since", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else view.console.live.number
    # numbers begin at 0 again with each worker
    return number if number <= view.console.live.number else 0


def _event(number: int, dirty: list[str]) -> bytes:
    data = msgspec.json.encode({"n": number, "dirty": dirty})
    return b"id: %d\ndata: %b\n\n" % (number, data)


@page("/live")
async def live(view: View) -> Stream:
    """Stream the keys of stale fragments. Each browser holds one stream, whatever the number of its tabs."""
    since = _since(view)

    async def events() -> AsyncIterator[bytes]:
        state, service, number = view.console.live, view.request.service, since
        yield b"retry: 3000\n\n"
        with state.listening(), service.auth.watch(view.request.scope) as ended:
            while not (service.stopping.is_set() or ended.done()):
                await state.wait(number, _QUIET_SECONDS)
                now, dirty = state.number, state.since(number, view.caller)
                number = now
                yield _event(number, dirty) if dirty else b": quiet\n\n"

    return Stream(events(), media_type="text/event-stream", headers=_HEADERS)


@page("/changes")
async def changes(view: View) -> Response:
    """Get the keys of stale fragments since a number, for browsers that cannot hold a stream."""
    state, since = view.console.live, _since(view)
    state.poll()
    await asyncio.sleep(0)
    return respond({"n": state.number, "dirty": state.since(since, view.caller)})


ROUTES = [live, changes]
