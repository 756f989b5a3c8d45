"""Waiting for a condition, in tasks and in threads. A condition that never holds fails the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

SECONDS = 60.0


async def until(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until the condition holds, which may be awaitable; return its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds:g} s"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], Any], seconds: float = SECONDS, message: object = "") -> Any:
    """Wait in this thread until the condition holds; return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s {message}"
        time.sleep(0.01)
    return value
