"""What an answer means for a delivery and for its endpoint. Pure: no clock, no I/O; `now` is in seconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

LONGEST_PAUSE = timedelta(days=1)
_BURY = "trunkline-outcome"


class Answer(NamedTuple):
    """What came back; `status` is None when nothing did, and then `error` says why."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    error: str | None
    seconds: float
    refused: bool = False
    """Nothing was sent: the guard of this dispatcher does not let requests go there."""


def no_answer(error: str, seconds: float) -> Answer:
    return Answer(None, {}, b"", error, seconds)


class Verdict(NamedTuple):
    """What happens to one delivery. `delay` None: the queue's backoff."""

    outcome: Literal["acked", "nacked", "buried", "released"]
    delay: timedelta | None = None
    error: str | None = None


ACKED = Verdict("acked")

Health = Literal["good", "busy", "failing", "gone", "unknown"]
"""Of the endpoint: good answers raise its window, busy ones lower it, failing ones open its breaker, gone disables it.
Unknown: it was not asked."""


class Item(msgspec.Struct):
    """What the receiver says about one message of a batch."""

    id: UUID
    outcome: Literal["ack", "retry", "bury"] = "ack"
    retry_after: float | None = None
    error: str | None = None


class Results(msgspec.Struct):
    results: list[Item]


def health(answer: Answer) -> Health:
    if answer.refused:
        return "unknown"
    if answer.status is None or answer.error is not None or answer.status >= 500:
        return "busy" if answer.status == 503 and "retry-after" in answer.headers else "failing"
    if answer.status == 410:
        return "gone"
    return "busy" if answer.status in (408, 429) else "good"


def pause_asked_for(answer: Answer, now: float) -> timedelta | None:
    """`Retry-After` of a 429 or 503: seconds, or a date."""
    text = answer.headers.get("retry-after", "").strip()
    if answer.status not in (429, 503) or not text:
        return None
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), LONGEST_PAUSE)
    try:
        at = parsedate_to_datetime(text)
        pause = at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(timedelta(seconds=max(0.0, pause)), LONGEST_PAUSE)


def judge(answer: Answer, now: float) -> Verdict:
    """One delivery by the status of its answer."""
    if answer.refused:
        # not the receiver's failure: another dispatcher may send it
        return Verdict("released", None, answer.error)
    if answer.status is None:
        return Verdict("nacked", None, answer.error)
    if answer.error is not None:
        # a status came, the rest of the answer did not: nobody knows whether it was meant
        return Verdict("nacked", None, f"HTTP {answer.status}, {answer.error}")
    if 200 <= answer.status < 300:
        return ACKED
    words = f"HTTP {answer.status}"
    if answer.status == 410:
        # not the fault of this message: it waits for the endpoint
        return Verdict("released", None, words)
    if 300 <= answer.status < 400:
        return Verdict("nacked", None, f"{words}: redirects are not followed")
    if answer.headers.get(_BURY, "").lower() == "bury":
        return Verdict("buried", None, words)
    return Verdict("nacked", pause_asked_for(answer, now), words)


def judge_batch(answer: Answer, ids: Sequence[UUID], now: float) -> list[Verdict]:
    """Each delivery of a batch: by what the answer says about it, else by the status. What a list leaves out is retried,
    and so is all of it if the list cannot be read."""
    whole = judge(answer, now)
    if whole.outcome != "acked" or not answer.body.strip():
        return [whole] * len(ids)
    try:
        said = msgspec.json.decode(answer.body, type=Results)
    except (msgspec.DecodeError, RecursionError):
        if b'"results"' in answer.body:
            # it says something about messages, and not to know what must not lose any of them
            whole = Verdict("nacked", None, "the results in the answer cannot be read")
        return [whole] * len(ids)
    items = {item.id: item for item in said.results}
    return [_judge_item(items.get(id)) for id in ids]


def _judge_item(item: Item | None) -> Verdict:
    if item is None:
        return Verdict("nacked", None, "the answer does not name this message")
    if item.outcome == "ack":
        return ACKED
    error = (item.error or "the receiver said so")[:1000]
    if item.outcome == "bury":
        return Verdict("buried", None, error)
    pause = None
    if item.retry_after is not None and item.retry_after >= 0:
        pause = timedelta(seconds=min(item.retry_after, LONGEST_PAUSE.total_seconds()))
    return Verdict("nacked", pause, error)
