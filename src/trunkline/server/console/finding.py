"""Recognises what a pasted text names."""

from __future__ import annotations

import re
from uuid import UUID

import msgspec

from trunkline.types import Stats

_OFFSET = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,200})/(?P<partition>\d{1,4})@(?P<offset>\d{1,18})")
_RECEIPT = re.compile(r"\d{1,19}\.(?P<cursor>\d{1,10})\.\d{1,19}\.\d{1,10}\.[0-9a-f-]{36}")
_TRACE = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_GROUP = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,200})/(?P<group>[A-Za-z0-9._-]{1,200})")
_MOST = 50


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the text may name. `certain`: nothing else has this form or exactly this name."""

    kind: str
    name: str
    path: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()
    object: str | None = None
    """The topic or queue whose scope shows it."""
    certain: bool = False


def find(text: str, stats: Stats | None) -> list[Hit]:
    """Return what a text may name, the most likely first."""
    text = text.strip().strip("'\"")
    if not text:
        return []
    formed = _by_form(text)
    return ([formed] if formed else []) + _by_name(text, stats)[:_MOST]


def _by_form(text: str) -> Hit | None:
    if (id := _uuid(text)) is not None:
        return Hit(kind="message or job", name=id, path=("m", id), certain=True)
    if match := _OFFSET.fullmatch(text):
        place = f"{match['partition']}@{match['offset']}"
        return Hit(kind="message", name=text, path=("topics", match["topic"], place), object=match["topic"], certain=True)
    if _RECEIPT.fullmatch(text):
        return Hit(kind="receipt", name=text, path=("receipts", text), certain=True)
    if match := _TRACE.fullmatch(text):
        return Hit(kind="trace", name=match["trace"], path=("traces", match["trace"]), certain=True)
    key, colon, value = text.partition(":")
    if colon and key == "key" and value:
        return Hit(kind="key", name=value, path=("topics",), query=(("where", text),))
    if colon and key in ("kind", "worker") and value:
        return Hit(kind=key, name=value, path=("jobs",), query=(("where", text),), certain=True)
    return None


def _uuid(text: str) -> str | None:
    """Return the usual form of a UUID, which may come with dashes, in braces or with urn:uuid."""
    if not 32 <= len(text) <= 45:
        return None
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _by_name(text: str, stats: Stats | None) -> list[Hit]:
    if stats is None or not (_NAME.fullmatch(text) or _GROUP.fullmatch(text)):
        return []
    names: dict[tuple[str, ...], Hit] = {}
    for topic in stats.topics:
        names.setdefault(("topics", topic.topic), _named("topic", topic.topic, topic.topic, text))
    for queue in stats.queues:
        names.setdefault(("queues", queue.queue), _named("queue", queue.queue, queue.queue, text))
    for group in stats.groups:
        path = ("groups", group.topic, group.group)
        whole = f"{group.topic}/{group.group}"
        hit = _named("group", whole, group.topic, text, path=path, also=group.group)
        names.setdefault(path, hit)
    folded = text.casefold()
    hits = [hit for hit in names.values() if folded in hit.name.casefold()]
    return sorted(hits, key=lambda hit: (not hit.certain, not hit.name.casefold().startswith(folded), hit.name))


def _named(kind: str, name: str, object: str, text: str, *, path: tuple[str, ...] = (), also: str = "") -> Hit:
    return Hit(kind=kind, name=name, path=path or (f"{kind}s", name), object=object, certain=text in (name, also))
