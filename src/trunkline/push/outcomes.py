"""Maps a response to the outcome of a delivery and the endpoint's health. No clock, no I/O; `now` is Unix time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

LONGEST_PAUSE = timedelta(days=1)
_BURY = "trunkline-outcome"


class Reply(NamedTuple):
    """A response, or its absence: then `status` is None and `error` has the reason."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    error: str | None
    seconds: float
    refused: bool = False
    """Egress was denied; nothing was sent."""


def no_response(error: str, seconds: float) -> Reply:
    return Reply(None, {}, b"", error, seconds)


class Outcome(NamedTuple):
    """The outcome of one delivery. `delay` None: use the queue's backoff."""

    outcome: Literal["acked", "nacked", "buried", "released"]
    delay: timedelta | None = None
    error: str | None = None


ACKED = Outcome("acked")

Health = Literal["good", "busy", "failing", "gone", "unknown"]
"""Endpoint health. Good responses raise the window, busy ones lower it, failing ones count towards the breaker, gone
disables the endpoint. Unknown: no request was made."""


class ReplyItem(msgspec.Struct):
    """The receiver's result for one message of a batch."""

    id: UUID
    outcome: Literal["ack", "retry", "bury"] = "ack"
    retry_after: float | None = None
    error: str | None = None


class Results(msgspec.Struct):
    results: list[ReplyItem]


def health(response: Reply) -> Health:
    if response.refused:
        return "unknown"
    if response.status is None or response.error is not None or response.status >= 500:
        return "busy" if response.status == 503 and "retry-after" in response.headers else "failing"
    if response.status == 410:
        return "gone"
    return "busy" if response.status in (408, 429) else "good"


def pause_asked_for(response: Reply, now: float) -> timedelta | None:
    """Parse `Retry-After` of a 429 or 503: seconds, or a date."""
    text = response.headers.get("retry-after", "").strip()
    if response.status not in (429, 503) or not text:
        return None
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), LONGEST_PAUSE)
    try:
        at = parsedate_to_datetime(text)
        pause = at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(timedelta(seconds=max(0.0, pause)), LONGEST_PAUSE)


def judge(response: Reply, now: float) -> Outcome:
    """Return the outcome of one delivery from the response status."""
    if response.refused:
        # egress denied is not the receiver's failure: another dispatcher may send it
        return Outcome("released", None, response.error)
    if response.status is None:
        return Outcome("nacked", None, response.error)
    if response.error is not None:
        # the response broke off after the status, so the status cannot be trusted
        return Outcome("nacked", None, f"HTTP {response.status}, {response.error}")
    if 200 <= response.status < 300:
        return ACKED
    words = f"HTTP {response.status}"
    if response.status == 410:
        # the endpoint is gone, which is not the message's fault
        return Outcome("released", None, words)
    if 300 <= response.status < 400:
        return Outcome("nacked", None, f"{words}: redirects are not followed")
    if response.headers.get(_BURY, "").lower() == "bury":
        return Outcome("buried", None, words)
    return Outcome("nacked", pause_asked_for(response, now), words)


def judge_batch(response: Reply, ids: Sequence[UUID], now: float) -> list[Outcome]:
    """Return the outcome of each delivery of a batch: from its item in the response, else from the status. Messages
    missing from the list are retried. If the list is invalid, all are."""
    whole = judge(response, now)
    if whole.outcome != "acked" or not response.body.strip():
        return [whole] * len(ids)
    try:
        said = msgspec.json.decode(response.body, type=Results)
    except (msgspec.DecodeError, RecursionError):
        if b'"results"' in response.body:
            # results were sent but are invalid: retry all rather than lose one
            whole = Outcome("nacked", None, "the results in the response are not valid")
        return [whole] * len(ids)
    items = {item.id: item for item in said.results}
    return [_judge_item(items.get(id)) for id in ids]


def _judge_item(item: ReplyItem | None) -> Outcome:
    if item is None:
        return Outcome("nacked", None, "the response has no result for this message")
    if item.outcome == "ack":
        return ACKED
    error = (item.error or "the receiver gave no reason")[:1000]
    if item.outcome == "bury":
        return Outcome("buried", None, error)
    pause = None
    if item.retry_after is not None and item.retry_after >= 0:
        pause = timedelta(seconds=min(item.retry_after, LONGEST_PAUSE.total_seconds()))
    return Outcome("nacked", pause, error)
