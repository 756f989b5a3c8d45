"""The explanation of a message in sentences: a verdict with its cause, and a row for each reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from trunkline.server.console import shapes

_PENDING = ("ready", "delayed", "paused", "blocked", "leased")
_ORDER = ("dead", *_PENDING, "expired", "purged", "gone", "acked", "read", "not_matched")
_STOPPED = ("no_consumer", "no_member", "no_worker")
_BY_ITSELF = "Nothing: it continues by itself."
_REDRIVE = "Read the error, repair its cause, then redrive it."
_HEADLINES = {
    "dead": "{name} gave it up",
    "paused": "Not delivered to {name}: the queue is paused",
    "delayed": "Not delivered to {name} yet: it is delayed",
    "blocked": "Not delivered to {name} yet: a message before it is leased",
    "ready": "Waits for {name}",
    "leased": "{holder} works on it for {name}",
}
_CAUSES = {
    "behind": "{name} works on the messages before it.",
    "no_consumer": "No consumer claims from {name}.",
    "no_member": "No member of {name} owns the partition.",
    "no_worker": "No live worker works on {name}.",
    "kind_unknown": "No live worker of {name} knows jobs of this kind.",
    "limit": "A limit of running jobs is reached.",
    "rate": "A limit of starts per second is reached.",
    "endpoint": "The endpoint of {name} takes no requests now.",
    "endpoint_rate": "The endpoint of {name} takes a limited number of requests per second.",
}
"""Sentences for the causes, for callers who may not read the reason, which can have the text of an error."""


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A reader of a message, with the state of its delivery."""

    kind: str
    name: str
    path: tuple[str, ...]
    state: str
    why: str
    cause: str | None
    holder: str | None
    until: datetime | None
    expected: datetime | None
    ahead: int | None
    rate: float | None
    attempt: int
    last_claim: datetime | None
    claimed: datetime | None
    steps: list[Step]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery. `outcome` is None while it is leased."""

    attempt: int
    consumer: str | None
    claimed_at: datetime | None
    settled_at: datetime | None
    outcome: str | None
    error: str | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The sentence at the top. `kind`: wait, stop or done. `reader`: of whom it speaks."""

    kind: str
    headline: str
    cause: str
    advice: str
    reader: Reader | None = None


def time_of(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None


def readers(found: Mapping[str, Any], may_see: Callable[[str], bool], *, full: bool) -> list[Reader]:
    """Return the readers that the caller may see, what needs attention first. `full`: with the texts of errors."""
    rows = [
        _reader(row, found, full=full)
        for row in found.get("readers") or ()
        if row["kind"] == "group" or may_see(str(row["name"]))
    ]
    order = {state: place for place, state in enumerate(_ORDER)}
    return sorted(rows, key=lambda row: (order.get(row.state, 0), row.name))


def _reader(row: Mapping[str, Any], found: Mapping[str, Any], *, full: bool) -> Reader:
    kind, name, cause = str(row["kind"]), str(row["name"]), row.get("cause")
    group = kind == "group"
    why = str(row.get("reason") or "") if full else _CAUSES.get(str(cause), "").format(name=name)
    return Reader(
        kind=kind,
        name=name,
        path=("groups", str(found.get("topic") or ""), name) if group else ("queues", name),
        state=str(row["state"]),
        why=why,
        cause=None if cause is None else str(cause),
        holder=row.get("consumer"),
        until=time_of(row.get("until")),
        expected=time_of(row.get("expected_at")),
        ahead=row.get("ahead"),
        rate=row.get("rate_per_second"),
        attempt=int(row.get("attempt") or 0),
        last_claim=time_of(row.get("last_claim_at")),
        claimed=time_of(row.get("claimed_at")),
        steps=[
            Step(
                attempt=int(step.get("attempt") or 0),
                consumer=step.get("consumer"),
                claimed_at=time_of(step.get("claimed_at")),
                settled_at=time_of(step.get("settled_at")),
                outcome=step.get("outcome"),
                error=step.get("error") if full else None,
            )
            for step in row.get("history") or ()
        ],
    )


def _said(text: str) -> str:
    """Return a text as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def verdict(found: Mapping[str, Any], rows: list[Reader], *, full: bool) -> Verdict:
    """Return the sentence that a page about this message begins with."""
    reason = _said(str(found.get("reason") or ""))
    match str(found.get("state")):
        case "unknown":
            advice = "Check the id. A message that is not committed yet appears here by itself."
            return Verdict(kind="stop", headline="No message has this id", cause=reason, advice=advice)
        case "delayed":
            return Verdict(kind="wait", headline="Not delivered yet: it is delayed", cause=reason, advice=_BY_ITSELF)
        case "not_sequenced":
            cause = "Upkeep assigns offsets several times a second."
            advice = "Nothing, if upkeep runs: see the foot of the navigation."
            return Verdict(kind="wait", headline="Committed, but without an offset yet", cause=cause, advice=advice)
        case "dead":
            headline = f"A dead letter of queue {found.get('queue')}"
            return Verdict(kind="stop", headline=headline, cause=reason if full else "", advice=_REDRIVE)
    first = next((row for row in rows if row.state == "dead" or row.state in _PENDING), None)
    if first is not None:
        return _of(first, rows)
    if not rows:
        return Verdict(kind="done", headline="No group or queue reads this message", cause=reason if full else "", advice="")
    had = [row.name for row in rows if row.state in ("acked", "read")]
    lost = [row for row in rows if row.state in ("expired", "purged", "gone")]
    if had:
        others = f" {shapes.plural(len(lost), 'reader')} did not take it." if lost else ""
        headline = "Delivered" if lost else "Delivered to all readers"
        return Verdict(kind="done", headline=headline, cause=f"{_list(had)} took it.{others}", advice="")
    if lost:
        return Verdict(kind="stop", headline="It is not delivered any more", cause=_said(lost[0].why), advice="")
    cause = "No pattern and no header filter matches it."
    return Verdict(kind="done", headline="No reader wants this message", cause=cause, advice="")


def _of(row: Reader, rows: list[Reader]) -> Verdict:
    """Return the verdict about the reader that matters most."""
    holder = row.holder or "A consumer"
    headline = _HEADLINES[row.state].format(name=f"{row.kind} {row.name}", holder=holder)
    if row.state == "ready" and row.cause in _STOPPED:
        why = _CAUSES[row.cause].format(name=row.name).rstrip(".")
        headline += f": {why[:1].lower()}{why[1:]}"
    others = [other.name for other in rows if other.state in ("acked", "read")]
    more = [other.name for other in rows if other is not row and other.state in _PENDING]
    still = f"{_list(more)} {'has' if len(more) == 1 else 'have'} not taken it either." if more else ""
    sentences = [_said(row.why), f"{_list(others)} took it." if others else "", still]
    return Verdict(
        kind="stop" if row.state == "dead" else "wait",
        headline=f"{headline[:1].upper()}{headline[1:]}",
        cause=" ".join(text for text in sentences if text),
        advice=_advice(row),
        reader=row,
    )


def _advice(row: Reader) -> str:
    if row.state == "dead":
        return _REDRIVE
    if row.state == "paused":
        return "Resume the queue."
    if row.state in ("delayed", "leased", "blocked"):
        return _BY_ITSELF
    return {
        "no_consumer": "Start a consumer of the queue.",
        "no_member": "Start a member of the group.",
        "no_worker": "Start a worker of the queue.",
        "kind_unknown": "Deploy workers that know this kind.",
        "endpoint": "Look at the endpoint, and test it.",
    }.get(str(row.cause), "Nothing: it is delivered by itself. Add consumers to make it sooner.")


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
