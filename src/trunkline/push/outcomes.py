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


def no_answer(error: str, seconds: float) -> Reply:
    return Reply(None, {}, b"", error, seconds)


class Verdict(NamedTuple):
    """The outcome of one delivery. `delay` None: use the queue's backoff."""

    outcome: Literal["acked", "nacked", "buried", "released"]
    delay: timedelta | None = None
    error: str | None = None


ACKED = Verdict("acked")

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


def health(answer: Reply) -> Health:
    if answer.refused:
        return "unknown"
    if answer.status is None or answer.error is not None or answer.status >= 500:
        return "busy" if answer.status == 503 and "retry-after" in answer.headers else "failing"
    if answer.status == 410:
        return "gone"
    return "busy" if answer.status in (408, 429) else "good"


def pause_asked_for(answer: Reply, now: float) -> timedelta | None:
    """Parse `Retry-After` of a 429 or 503: seconds, or a date."""
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


def judge(response: Reply, now: float) -> Verdict:
    """Return the outcome of one delivery from the response status."""
    if response.refused:
        # egress denied is not the receiver's failure: another dispatcher may send it
        return Verdict("released", None, response.error)
    if response.status is None:
        return Verdict("nacked", None, response.error)
    if response.error is not None:
        # the response broke off after the status, so the status cannot be trusted
        return Verdict("nacked", None, f"HTTP {response.status}, {response.error}")
    if 200 <= response.status < 300:
        return ACKED
    words = f"HTTP {response.status}"
    if response.status == 410:
        # the endpoint is gone, which is not the message's fault
        return Verdict("released", None, words)
    if 300 <= response.status < 400:
        return Verdict("nacked", None, f"{words}: redirects are not followed")
    if response.headers.get(_BURY, "").lower() == "bury":
        return Verdict("buried", None, words)
    return Verdict("nacked", pause_asked_for(response, now), words)


def judge_batch(answer: Reply, ids: Sequence[UUID], now: float) -> list[Verdict]:
    """Return the outcome of each delivery of a batch: from its item in the response, else from the status. Messages
    missing from the list are retried. If the list is invalid, all are."""
    whole = judge(answer, now)
    if whole.outcome != "acked" or not answer.body.strip():
        return [whole] * len(ids)
    try:
        said = msgspec.json.decode(answer.body, type=Results)
    except (msgspec.DecodeError, RecursionError):
        if b'"results"' in answer.body:
            # results were sent but are invalid: retry all rather than lose one
            whole = Verdict("nacked", None, "the results in the response are not valid")
        return [whole] * len(ids)
    items = {item.id: item for item in said.results}
    return [_judge_item(items.get(id)) for id in ids]


def _judge_item(item: ReplyItem | None) -> Verdict:
    if item is None:
        return Verdict("nacked", None, "the response has no result for this message")
    if item.outcome == "ack":
        return ACKED
    error = (item.error or "the receiver gave no reason")[:1000]
    if item.outcome == "bury":
        return Verdict("buried", None, error)
    pause = None
    if item.retry_after is not None and item.retry_after >= 0:
        pause = timedelta(seconds=min(item.retry_after, LONGEST_PAUSE.total_seconds()))
    return Verdict("nacked", pause, error)
