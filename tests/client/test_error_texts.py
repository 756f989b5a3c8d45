"""The text of an exception never prevents its message from being settled."""

from __future__ import annotations

from typing import Any

import pytest

BAD = ["a\0b", "bad \udcff byte", "\ud83d", "x" * 50_000]


@pytest.mark.parametrize("error", BAD)
@pytest.mark.parametrize("verb", ["nack", "bury"])
async def test_an_error_text_is_cleaned_not_refused(mq: Any, verb: str, error: str) -> None:
    await mq.queues.create("q", max_attempts=1)
    await mq.enqueue("q", 1)
    (delivery,) = await mq.claim("q")
    assert await getattr(delivery, verb)(error=error) == "done"
    (dead,) = await mq.dead.list("q")
    assert dead.error is not None and len(dead.error) <= 10_000
    expected = error[:10_000].replace("\0", "\ufffd").replace("\udcff", "\ufffd").replace("\ud83d", "\ufffd")
    assert dead.error == expected
