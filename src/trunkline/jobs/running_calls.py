"""Calls a handler with its middleware: on the event loop, in a thread or in a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from trunkline.jobs.context import Context, ProcessContext, SyncContext
from trunkline.jobs.running import Item

if TYPE_CHECKING:
    from trunkline.jobs.worker import Worker

LEAVE_SECONDS = 5.0
"""Seconds that a cancelled handler may take to end before it is abandoned."""


async def call(worker: Worker, item: Item) -> Any:
    """Run the handler of an item and return its result."""
    args, kwargs = item.job.arguments.decode(item.delivery.payload)
    if not worker.app.middlewares:
        return await _call(worker, item, args, kwargs)
    step: Callable[[], Awaitable[Any]] = partial(_call, worker, item, args, kwargs)
    context = Context(worker, item)
    for around in reversed(worker.app.middlewares):
        step = partial(around, context, step)
    return await step()


async def _call(worker: Worker, item: Item, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    job = item.job
    if job.is_async:
        return await _call_async(worker, item, args, kwargs)
    if job.definition.process:
        assert job.function is not None  # noqa: S101
        about = ProcessContext(item.delivery.id, job.name, item.delivery.attempt, item.delivery.headers or {})
        where = (job.function.__module__, job.function.__qualname__)
        return await _elsewhere(item, *worker.processes.start(*where, about, item.delivery.payload))
    return await _elsewhere(item, *worker.threads.start(partial(_call_plain, worker, item, args, kwargs)))


async def _call_async(worker: Worker, item: Item, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    job = item.job
    assert job.function is not None  # noqa: S101
    item.calling = True
    try:
        if not job.wants_context:
            return await job.function(*args, **kwargs)
        context = Context(worker, item)
        return await (job.function(*args, context) if job.context_last else job.function(context, *args, **kwargs))
    finally:
        item.calling = False
        worker.leave_if_forked()


def _call_plain(worker: Worker, item: Item, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    job = item.job
    assert job.function is not None  # noqa: S101
    try:
        if not job.wants_context:
            return job.function(*args, **kwargs)
        context = SyncContext(worker, item)
        return job.function(*args, context) if job.context_last else job.function(context, *args, **kwargs)
    finally:
        worker.leave_if_forked()


async def _elsewhere(item: Item, done: asyncio.Future[Any], stop: Callable[[], None]) -> Any:
    """Wait for a handler in a thread or process. On cancellation, interrupt it, and abandon it if it does not end."""
    item.stop = stop
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if done.done() and not done.cancelled():
            raise
        stop()
        await asyncio.wait([done], timeout=LEAVE_SECONDS)
        if not done.done():
            done.add_done_callback(_ignore)
        else:
            _ignore(done)
        raise


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
