"""Options of the data source, with Kafka's names where Kafka has one. Invalid options fail on the driver.

A connection string may contain a password, so it never appears in a message, repr or error.
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
from trunkline.spark.source.offsets import Positions, parse

URL_VARIABLE = "TRUNKLINE_DATABASE_URL"
PIPELINE_WRITERS = ("replay:", "compact:", "validate:")
"""Prefixes of writer names that the pipelines generate. They set `pipelineWriter` instead of `txnAppId`."""
RESERVED_WRITERS = ("once:", "query:", *PIPELINE_WRITERS)
"""Prefixes that `txnAppId` must not have. The sinks generate `once:`, for one write, and `query:<query id>`."""
Times = dict[str, dict[int, datetime]]


class Secret:
    """A connection string that is hidden in repr and logs."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text. `env:NAME` is resolved on the machine that uses it, so its value is never sent."""
        if not self._text.startswith("env:"):
            return self._text
        value = os.environ.get(self._text[4:])
        if not value:
            raise InvalidOption(
                f"url: environment variable {self._text[4:]} is not set here",
                hint="Set it on the driver and on every executor.",
            )
        return value

    def __repr__(self) -> str:
        return "Secret(...)"


class Selection(msgspec.Struct, frozen=True):
    """A filter on messages. `routing_regex` is the kernel's regular expression for the pattern `routing_key`."""

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
        fields = _fields(options, _READ, "read")
        selection = Selection(fields.pop("routing_key", None), fields.pop("label", None), fields.pop("key", None))
        result = cls(url=_url(fields.pop("url", None)), selection=selection, **fields)
        _check_read(result)
        return result


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: Secret
    topic: str | None = None
    queue: str | None = None
    app_id: str | None = None
    version: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        fields = _fields(options, _WRITE, "write")
        writer = fields.pop(_PIPELINE, None)
        result = cls(url=_url(fields.pop("url", None)), **fields)
        if result.topic is not None and result.queue is not None:
            raise InvalidOption("topic and queue cannot both be set", hint="Set one of them.")
        if (result.app_id is None and writer is None) != (result.version is None):
            raise InvalidOption(
                "txnAppId and txnVersion must be set together", hint="Set both: the same pair is written once."
            )
        if result.app_id is not None and result.app_id.startswith(RESERVED_WRITERS):
            raise InvalidOption(
                f"txnAppId begins with {result.app_id.partition(':')[0]}:, which is reserved", hint="Use another name."
            )
        return result if writer is None else msgspec.structs.replace(result, app_id=writer)

    @property
    def target(self) -> str | None:
        """The target of all rows: a topic or `queue:<name>`; None if the column `topic` decides for each row."""
        return f"queue:{self.queue}" if self.queue is not None else self.topic


def _text(option: str, text: str) -> str:
    if not text.strip():
        raise InvalidOption(f"{option} is empty", hint="Set a value, or omit the option.")
    return text.strip()


def _pipeline_writer(option: str, text: str) -> str:
    if not text.startswith(PIPELINE_WRITERS):
        raise InvalidOption(f"{option} is reserved for pipelines", hint="Use txnAppId.")
    return text


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in _text(option, text).split(","))
    if not all(names) or len(set(names)) < len(names):
        raise InvalidOption(
            f"{option} has an empty or repeated name: {text}", hint="Separate names by commas, such as orders,payments."
        )
    return names


def _regex(option: str, text: str) -> str:
    try:
        re.compile(_text(option, text))
    except re.error as exc:
        raise InvalidOption(
            f"{option} is not a regular expression: {exc}", hint="Write an expression such as orders-.*"
        ) from exc
    return text


def _count(low: int, high: int) -> Callable[[str, str], int]:
    def read(option: str, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text.strip(), re.ASCII) or not low <= int(text) <= high:
            raise InvalidOption(f"{option} must be a whole number between {low} and {high}, got {text!r}")
        return int(text)

    return read


def _flag(option: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{option} must be true or false, got {text!r}")
    return text.strip().lower() == "true"


def _choice(*values: str) -> Callable[[str, str], str]:
    def read(option: str, text: str) -> str:
        if text.strip().lower() not in values:
            raise InvalidOption(f"{option} must be {' or '.join(values)}, got {text!r}")
        return text.strip().lower()

    return read


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except TrunklineError as exc:
        raise InvalidOption(f"{option}: {exc.message}", hint=exc.hint) from exc


def _assignment(option: str, text: str) -> dict[str, list[int]]:
    hint = 'Write JSON such as {"orders": [0, 1]}.'
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, list[int]])
    except msgspec.DecodeError as exc:
        raise InvalidOption(f"{option} must list partitions by topic: {exc}", hint=hint) from exc


def _millis(option: str, text: str) -> datetime:
    try:
        number = _count(0, 253402300799000)(option, text)
    except InvalidOption:
        raise InvalidOption(
            f"{option} must be milliseconds since 1970, got {text!r}", hint="Write a number such as 1700000000000."
        ) from None
    return datetime.fromtimestamp(number / 1000, UTC)


def _times(option: str, text: str) -> Times:
    try:
        times = json.loads(text)
        return {topic: {int(p): _millis(option, str(at)) for p, at in parts.items()} for topic, parts in times.items()}
    except (ValueError, AttributeError) as exc:
        raise InvalidOption(
            f"{option} must map each topic to times by partition: {exc}",
            hint='Write JSON such as {"orders": {"0": 1700000000000}}, in milliseconds since 1970.',
        ) from exc


def _url(text: str | None) -> Secret:
    if text is None:
        if not os.environ.get(URL_VARIABLE):
            raise InvalidOption(
                "url is missing", hint=f"Set the option url, or set {URL_VARIABLE} on the driver and on every executor."
            )
        return Secret(f"env:{URL_VARIABLE}")
    return Secret(text)


def _check_url(option: str, text: str) -> str:
    hint = "Write postgresql://user@host:5432/database, service=name, or env:VARIABLE."
    if text.startswith("env:"):
        return text
    # Messages never quote the value: it may contain a password.
    if text.lower().startswith("jdbc:"):
        raise InvalidOption("url must be a Postgres connection string, got a JDBC url", hint=hint)
    try:
        settings = conninfo_to_dict(text)
    except psycopg.Error:
        raise InvalidOption("url is not a Postgres connection string", hint=hint) from None
    if not settings:
        raise InvalidOption("url is empty", hint=hint)
    return text


# option name in lower case: (name as documented, field, parser)
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
    ("pipelineWriter", "pipeline_writer", _pipeline_writer),
    # Spark's own options, which it passes to every sink.
    ("checkpointLocation", "", lambda option, text: None),
    ("queryName", "", lambda option, text: None),
)


# Set by the pipelines only, and in no list of options.
_PIPELINE = "pipeline_writer"
_KAFKA_ONLY = ("kafka.", "fetchoffset.", "kafkaconsumer.", "groupidprefix")


def _fields(options: Mapping[str, str], known: _Known, doing: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    kafkas = sorted(name for name in options if name.lower() not in known and name.lower().startswith(_KAFKA_ONLY))
    if kafkas:
        one, are = ("option", "is") if len(kafkas) == 1 else ("options", "are")
        raise InvalidOption(
            f"{one} {', '.join(kafkas)} {are} specific to Kafka",
            hint=f"Remove the {one}, and set url to the address of the database.",
        )
    for name, text in options.items():
        entry = known.get(name.lower())
        if entry is None:
            raise _unknown(name, known, doing)
        value = entry[2](entry[0], text)
        if not entry[1]:
            continue
        if entry[1] in fields and fields[entry[1]] != value:
            raise InvalidOption(
                f"{entry[0]} is given twice, under two names with different values", hint="Remove one of them."
            )
        fields[entry[1]] = value
    return fields


def _unknown(name: str, known: _Known, doing: str) -> InvalidOption:
    if name.lower() == "path":
        return InvalidOption(
            "topics have no path", hint=f"Name the topic by the option {'subscribe' if doing == 'read' else 'topic'}."
        )
    other = _WRITE if known is _READ else _READ
    if name.lower() in other:
        return InvalidOption(f"option {name} does not apply to a {doing}", hint=f"Choose from {_list(known)}.")
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f"Did you mean {known[near[0]][0]}?" if near else f"Choose from {_list(known)}."
    return InvalidOption(f"there is no option {name}", hint=hint)


def _list(known: _Known) -> str:
    return ", ".join(sorted(entry[0] for entry in known.values() if entry[1] not in ("", _PIPELINE)))


def _check_read(options: ReadOptions) -> None:
    if options.table != "messages":
        if options.table == "dead_letters" and options.queue is None:
            raise InvalidOption("queue is missing", hint="Set queue to the queue whose dead letters to read.")
        return
    chosen = [bool(options.subscribe), options.subscribe_pattern is not None, options.assign is not None]
    if sum(chosen) != 1:
        problem = "none of them is given" if not any(chosen) else "more than one of them is given"
        raise InvalidOption(f"subscribe, subscribePattern, assign: {problem}", hint="Set exactly one of them.")
    if options.queue is not None:
        raise InvalidOption("queue needs the option table", hint="Set table to dead_letters or deliveries.")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f"minOffsetsPerTrigger, {least}, is above maxOffsetsPerTrigger, {most}", hint="Reduce minOffsetsPerTrigger."
        )
