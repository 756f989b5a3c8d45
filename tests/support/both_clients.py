"""One suite for the async and sync versions: a sync object used as if it were async, each call in a separate thread."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from trunkline import Client, SyncClient

_END = object()


@asynccontextmanager
async def client(kind: str, url: str, **settings: Any) -> AsyncIterator[Any]:
    """A client of this kind, to be awaited either way."""
    if kind == "async":
        async with Client(url, **settings) as mq:
            yield mq
    else:
        async with Twin(SyncClient(url, **settings)) as mq:
            yield mq


def bare(value: Any) -> Any:
    """Return the wrapped object, for functions that need the sync type itself."""
    return value.__dict__["_inner"] if isinstance(value, Twin) else value


class Twin:
    """Stands for a sync object. What its async twin would await is awaited, what it would call plainly is called plainly."""

    def __init__(self, inner: Any) -> None:
        self.__dict__["_inner"] = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value) or isinstance(value, type):
            return _wrapped(value)
        if inspect.iscoroutinefunction(getattr(_async_class(type(self._inner)), name, None)):

            async def call(*args: Any, **kwargs: Any) -> Any:
                return _wrapped(await asyncio.to_thread(value, *map(bare, args), **kwargs))

            return call
        return lambda *args, **kwargs: _wrapped(value(*map(bare, args), **kwargs))

    async def __aenter__(self) -> Any:
        return _wrapped(await asyncio.to_thread(self._inner.__enter__))

    async def __aexit__(self, *exc: Any) -> Any:
        return await asyncio.to_thread(self._inner.__exit__, *exc)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        value = await asyncio.to_thread(next, self._inner, _END)
        if value is _END:
            raise StopAsyncIteration
        return _wrapped(value)

    def __iter__(self) -> Iterator[Any]:
        return (_wrapped(value) for value in self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, number: int) -> Any:
        return _wrapped(self._inner[number])


def _wrapped(value: Any) -> Any:
    ours = type(value).__module__.startswith("trunkline.client.sync.") or type(value).__name__ == "_GeneratorContextManager"
    return (
        Twin(value)
        if ours or inspect.isgenerator(value) or isinstance(value, psycopg.Cursor | psycopg.Connection)
        else value
    )


def _async_class(cls: type) -> Any:
    if issubclass(cls, psycopg.Cursor):
        return psycopg.AsyncCursor
    if issubclass(cls, psycopg.Connection):
        return psycopg.AsyncConnection
    if cls.__module__.startswith("trunkline.client.sync."):
        module = importlib.import_module(cls.__module__.replace(".sync.", "."))
        return getattr(module, cls.__name__.removeprefix("Sync"))
    return None
