"""The options of the data source: Kafka's names where Kafka has one. What does not fit is an error on the driver.

A connection string may hold a password, so it is never part of a message, a repr or an error.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from trunkline.errors import InvalidOption, TrunklineError
from trunkline.settings import parse_duration
from trunkline.spark.offsets import Positions, parse

URL_VARIABLE = "TRUNKLINE_DATABASE_URL"
RESERVED_WRITERS = ("once:", "query:")
"""Writers of the sinks themselves. Commits of `once:` are forgotten after a day, `query:` is followed by a query's id."""
Times = dict[str, dict[int, datetime]]


class Secret:
    """A connection string that does not show itself."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text; an `env:NAME` is looked up where it is used, so that it never leaves the machine."""
        if not self._text.startswith("env:"):
            return self._text
        found = os.environ.get(self._text[4:])
        if not found:
            raise InvalidOption(
                f"url: the variable {self._text[4:]} is not set here", hint="set it on the driver and on every executor"
            )
        return found

    def __repr__(self) -> str:
        return "Secret(...)"


class Selection(msgspec.Struct, frozen=True):
    """Which messages of a range are wanted. `routing_regex` is what the kernel makes of the pattern."""

    routing_key: str | None = None
    label: str | None = None
    key: str | None = None
    routing_regex: str | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.routing_key, self.label, self.key))


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: Secret
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: dict[str, list[int]] | None = None
    starting: str | Positions | None = None
    ending: str | Positions | None = None
    starting_time: datetime | Times | None = None
    ending_time: datetime | Times | None = None
    time_strategy: str = "error"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: timedelta = timedelta(minutes=15)
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_connections: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_metadata: bool = True
    group: str | None = None
    tier: str = "auto"
    selection: Selection = Selection()
    table: str = "messages"
    queue: str | None = None
    since: timedelta = timedelta(days=1)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = _given(options, _READ, "read")
        selection = Selection(given.pop("routing_key", None), given.pop("label", None), given.pop("key", None))
        found = cls(url=_url(given.pop("url", None)), selection=selection, **given)
        _check_read(found)
        return found


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: Secret
    topic: str | None = None
    queue: str | None = None
    app_id: str | None = None
    version: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _given(options, _WRITE, "write")
        found = cls(url=_url(given.pop("url", None)), **given)
        if found.topic is not None and found.queue is not None:
            raise InvalidOption("both topic and queue are given", hint="give one of the two")
        if (found.app_id is None) != (found.version is None):
            raise InvalidOption("txnAppId and txnVersion belong together", hint="give both: the same pair is written once")
        if found.app_id is not None and found.app_id.startswith(RESERVED_WRITERS):
            raise InvalidOption(
                f"txnAppId begins with {found.app_id.partition(':')[0]}:, which is reserved", hint="use another name"
            )
        return found

    @property
    def target(self) -> str | None:
        """Where all rows go: a topic, or `queue:<name>`; None when a column says so."""
        return f"queue:{self.queue}" if self.queue is not None else self.topic


def _text(option: str, text: str) -> str:
    if not text.strip():
        raise InvalidOption(f"{option} is empty", hint="leave the option out, or give it a value")
    return text.strip()


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in _text(option, text).split(","))
    if not all(names) or len(set(names)) < len(names):
        raise InvalidOption(f"{option} has an empty or repeated name: {text}", hint="write orders,payments")
    return names


def _regex(option: str, text: str) -> str:
    try:
        re.compile(_text(option, text))
    except re.error as exc:
        raise InvalidOption(f"{option} is not a regular expression: {exc}", hint="for example orders-.*") from exc
    return text


def _count(low: int, high: int) -> Callable[[str, str], int]:
    def read(option: str, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text.strip(), re.ASCII) or not low <= int(text) <= high:
            raise InvalidOption(f"{option} is {text!r}", hint=f"it must be a whole number between {low} and {high}")
        return int(text)

    return read


def _flag(option: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{option} is {text!r}", hint="write true or false")
    return text.strip().lower() == "true"


def _choice(*values: str) -> Callable[[str, str], str]:
    def read(option: str, text: str) -> str:
        if text.strip().lower() not in values:
            raise InvalidOption(f"{option} is {text!r}", hint="it must be " + " or ".join(values))
        return text.strip().lower()

    return read


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except TrunklineError as exc:
        raise InvalidOption(f"{option}: {exc.message}", hint=exc.hint) from exc


def _assignment(option: str, text: str) -> dict[str, list[int]]:
    hint = 'write {"orders": [0, 1]}'
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, list[int]])
    except msgspec.DecodeError as exc:
        raise InvalidOption(f"{option} is not a list of partitions for each topic: {exc}", hint=hint) from exc


def _millis(option: str, text: str) -> datetime:
    try:
        number = _count(0, 253402300799000)(option, text)
    except InvalidOption as exc:
        raise InvalidOption(exc.message, hint="it must be milliseconds since 1970, such as 1700000000000") from None
    return datetime.fromtimestamp(number / 1000, UTC)


def _times(option: str, text: str) -> Times:
    try:
        found = json.loads(text)
        return {topic: {int(p): _millis(option, str(at)) for p, at in parts.items()} for topic, parts in found.items()}
    except (ValueError, AttributeError) as exc:
        raise InvalidOption(
            f"{option} is not a time for each partition: {exc}",
            hint='write {"orders": {"0": 1700000000000}}, milliseconds since 1970',
        ) from exc


def _url(text: str | None) -> Secret:
    if text is None:
        if not os.environ.get(URL_VARIABLE):
            raise InvalidOption(
                "url is missing", hint=f"give the option url, or set {URL_VARIABLE} on the driver and on every executor"
            )
        return Secret(f"env:{URL_VARIABLE}")
    return Secret(text)


def _check_url(option: str, text: str) -> str:
    hint = "write postgresql://user@host:5432/database, service=name, or env:VARIABLE"
    if text.startswith("env:"):
        return text
    # the value is not repeated: it may hold a password
    if text.lower().startswith("jdbc:"):
        raise InvalidOption("url is a JDBC address", hint=hint)
    try:
        found = conninfo_to_dict(text)
    except psycopg.Error:
        raise InvalidOption("url is not a Postgres connection string", hint=hint) from None
    if not found:
        raise InvalidOption("url is empty", hint=hint)
    return text


# option, by its small letters: (name as written, field, reader)
_Known = dict[str, tuple[str, str, Callable[[str, str], Any]]]


def _known(*entries: tuple[str, str, Callable[[str, str], Any]]) -> _Known:
    return {name.lower(): (name, field, read) for name, field, read in entries}


_ROWS = _count(1, 10**15)
_READ = _known(
    ("url", "url", _check_url),
    ("subscribe", "subscribe", _names),
    ("subscribePattern", "subscribe_pattern", _regex),
    ("assign", "assign", _assignment),
    ("startingOffsets", "starting", parse),
    ("endingOffsets", "ending", parse),
    ("startingTimestamp", "starting_time", _millis),
    ("endingTimestamp", "ending_time", _millis),
    ("startingOffsetsByTimestamp", "starting_time", _times),
    ("endingOffsetsByTimestamp", "ending_time", _times),
    ("startingOffsetsByTimestampStrategy", "time_strategy", _choice("error", "latest")),
    ("maxOffsetsPerTrigger", "max_offsets_per_trigger", _ROWS),
    ("minOffsetsPerTrigger", "min_offsets_per_trigger", _ROWS),
    ("maxTriggerDelay", "max_trigger_delay", _duration),
    ("minPartitions", "min_partitions", _count(1, 100_000)),
    ("maxRecordsPerPartition", "max_records_per_partition", _ROWS),
    ("maxConnections", "max_connections", _count(1, 10_000)),
    ("failOnDataLoss", "fail_on_data_loss", _flag),
    ("includeHeaders", "include_headers", _flag),
    ("includeMetadata", "include_metadata", _flag),
    ("group", "group", _text),
    ("groupId", "group", _text),
    ("kafka.group.id", "group", _text),
    ("tier", "tier", _choice("auto", "live", "archive")),
    ("routingKey", "routing_key", _text),
    ("label", "label", _text),
    ("key", "key", _text),
    ("table", "table", _choice("messages", "dead_letters", "deliveries")),
    ("queue", "queue", _text),
    ("since", "since", _duration),
)
_WRITE = _known(
    ("url", "url", _check_url),
    ("topic", "topic", _text),
    ("queue", "queue", _text),
    ("txnAppId", "app_id", _text),
    ("txnVersion", "version", _count(0, 2**62)),
    # Spark's own, handed through to every sink
    ("checkpointLocation", "", lambda option, text: None),
    ("queryName", "", lambda option, text: None),
)


_KAFKAS_OWN = ("kafka.", "fetchoffset.", "kafkaconsumer.", "groupidprefix")


def _given(options: Mapping[str, str], known: _Known, doing: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kafkas = sorted(name for name in options if name.lower() not in known and name.lower().startswith(_KAFKAS_OWN))
    if kafkas:
        several = "options {} are" if len(kafkas) > 1 else "option {} is"
        raise InvalidOption(
            f"the {several.format(', '.join(kafkas))} Kafka's own", hint="leave it out; url names the database"
        )
    for name, text in options.items():
        entry = known.get(name.lower())
        if entry is None:
            raise _unknown(name, known, doing)
        value = entry[2](entry[0], text)
        if not entry[1]:
            continue
        if entry[1] in found and found[entry[1]] != value:
            raise InvalidOption(f"{entry[0]} is given twice, under two names", hint="give one of them")
        found[entry[1]] = value
    return found


def _unknown(name: str, known: _Known, doing: str) -> InvalidOption:
    if name.lower() == "path":
        return InvalidOption(
            "a path was given", hint="name the topic by the option " + ("subscribe" if doing == "read" else "topic")
        )
    other = _WRITE if known is _READ else _READ
    if name.lower() in other:
        return InvalidOption(f"the option {name} does not belong to a {doing}", hint=f"known are {_list(known)}")
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean {known[near[0]][0]}?" if near else f"known are {_list(known)}"
    return InvalidOption(f"there is no option {name}", hint=hint)


def _list(known: _Known) -> str:
    return ", ".join(sorted(entry[0] for entry in known.values() if entry[1]))


def _check_read(found: ReadOptions) -> None:
    if found.table != "messages":
        if found.table == "dead_letters" and found.queue is None:
            raise InvalidOption("queue is missing", hint="name the queue whose dead letters are wanted")
        return
    chosen = [bool(found.subscribe), found.subscribe_pattern is not None, found.assign is not None]
    if sum(chosen) != 1:
        said = "none of them is given" if not any(chosen) else "more than one of them is given"
        raise InvalidOption(f"subscribe, subscribePattern, assign: {said}", hint="give exactly one")
    if found.queue is not None:
        raise InvalidOption("queue needs the option table", hint="table is dead_letters or deliveries")
    least, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}", hint="make it smaller")
