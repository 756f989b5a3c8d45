"""Runs in words: their selection and progress, and the fields of the form that starts them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from trunkline.errors import InvalidValue
from trunkline.server.console import shapes
from trunkline.settings import parse_duration
from trunkline.types import Run

KINDS = {
    "redrive": ("Redrive", "dead letter"),
    "retry_jobs": ("Retry", "dead job"),
    "purge_dead_letters": ("Purge", "dead letter"),
    "replay": ("Replay", "acked message"),
    "purge_queue": ("Purge", "undelivered message"),
    "seek": ("Seek", "message"),
}
"""The verb of each kind, and what it applies to."""
FIELDS = ("fingerprint", "label", "key", "topic", "reason", "error", "since", "until", "from", "to")
MOVES = ("redrive", "retry_jobs")
_IDS = 100


class Step(msgspec.Struct, frozen=True):
    word: str
    at: str
    """ok, here or empty."""


def purges(kind: str) -> bool:
    return kind.startswith("purge")


def queue_of(run: Run) -> str:
    """Return the queue of a run, or the topic of a seek."""
    return str(run.selector.get("queue") or run.selector.get("topic", ""))


def selector(queue: str, fields: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Return the selector that the fields of a form stand for. Ages such as 1h become times."""
    found: dict[str, Any] = {"queue": queue}
    for name in FIELDS:
        value = fields.get(name, "").strip()
        if value:
            found[name] = _time(value, now) if name in ("since", "until", "from", "to") else value
    ids = [part for part in fields.get("ids", "").replace(",", " ").split() if part]
    if len(ids) > _IDS:
        raise InvalidValue(f"a form names at most {_IDS} messages, got {len(ids)}")
    if ids:
        found["ids"] = ids
    if fields.get("all") == "1":
        found["all"] = True
    return found


def _time(value: str, now: datetime) -> str:
    """Return a time that was typed as one, or as an age."""
    try:
        return datetime.fromisoformat(value).astimezone(UTC).isoformat()
    except ValueError:
        return (now - parse_duration(value)).replace(microsecond=0).isoformat()


def options(kind: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that the fields of a form stand for. Raise `InvalidValue` for what is not a number."""
    found: dict[str, Any] = {}
    if kind in MOVES:
        found["canary"] = int(_number("canary", fields.get("canary", "") or "0"))
        if fields.get("stop", "").strip():
            found["stop_share"] = _number("stop", fields["stop"]) / 100
        if fields.get("target", "").strip():
            found["to"] = fields["target"].strip()
    if kind != "purge_queue" and not purges(kind) and fields.get("rate", "").strip():
        found["rate"] = _number("rate", fields["rate"])
    return found


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(f"field {name} must be a number, got {text[:50]!r}") from None


def words(run: Run) -> str:
    """Return in words what a run selects."""
    chosen = run.selector
    parts = [
        f"{name} {chosen[name]}" for name in ("fingerprint", "label", "key", "topic", "reason", "error") if name in chosen
    ]
    if "ids" in chosen:
        parts.append(shapes.plural(len(chosen["ids"]), "chosen message"))
    parts += [f"{name} {chosen[name]}" for name in ("since", "until", "from", "to") if name in chosen]
    if chosen.get("all"):
        parts.append("all")
    return ", ".join(parts) or "all"


def title(run: Run) -> str:
    verb, noun = KINDS.get(run.kind, (run.kind.replace("_", " ").capitalize(), "message"))
    return f"{verb} {shapes.plural(run.total, noun)}"


def steps(run: Run) -> list[Step]:
    """Return the stages of a run and where it is."""
    canary = int(run.options.get("canary") or 0)
    rate = run.options.get("rate")
    stages = [f"Preview {run.total:,}"]
    if run.start_at > run.made_at:
        stages.append("Grace")
    if canary:
        stages.append(f"Canary {canary:,}")
    stages.append(f"Rollout at {shapes.rate(rate)}/s" if rate else "Rollout")
    ended = run.ended_at is not None
    end = {"aborted": "Aborted", "undone": "Undone"}.get(run.state, "Done")
    stages.append(end)
    if ended:
        here = len(stages)
    elif run.state == "waiting" and run.done == 0 and "Grace" in stages:
        here = 1
    elif canary and run.done <= canary and run.state != "running":
        here = stages.index(f"Canary {canary:,}")
    else:
        here = len(stages) - 2
    return [Step(word, "ok" if place < here else "here" if place == here else "") for place, word in enumerate(stages)]


def left(run: Run) -> float | None:
    """Return the seconds until a run with a rate ends."""
    rate = run.options.get("rate")
    return (run.total - run.done) / rate if rate and run.state == "running" else None
