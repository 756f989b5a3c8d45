"""Settings of topics and queues, each declared once.

Casts in SQL calls, keywords of both clients, fields of HTTP requests and responses, options of the command line and the
reference pages follow from these declarations. To add a setting: a line here, its field in the record (types.py), and
its column and checks in SQL.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypedDict, get_args, get_type_hints

from trunkline.codec import duration
from trunkline.errors import InvalidType
from trunkline.types import Duration


class Setting(NamedTuple):
    """A setting apart from its name and type. SQL checks ranges."""

    help: str
    default: str | None = None
    """The default as text, for help and documents."""
    low: int | None = None
    """The smallest value that the command line accepts."""
    unit: str | None = None
    """The unit of a number, for help."""
    sql: str | None = None
    """The SQL type where it does not follow from the Python type."""


class TopicSettings(TypedDict, total=False):
    """Settings of a topic."""

    partitions: Annotated[int | None, Setting("Number of partitions; can grow, never shrink.", "1", 1)]
    retention: Annotated[Duration | None, Setting("How long to keep messages.", "7d")]
    retention_bytes: Annotated[int | None, Setting("Maximum size to keep; 0: no limit.", None, 0, "bytes", "bigint")]
    hard_retention: Annotated[Duration | None, Setting("Age after which messages are removed even if unread.")]
    max_payload: Annotated[int | None, Setting("Maximum payload size.", "1048576", 1, "bytes")]


class QueueSettings(TypedDict, total=False):
    """Settings of a queue that can be changed."""

    lease: Annotated[Duration | None, Setting("Time a consumer may hold a message.", "30s")]
    max_attempts: Annotated[int | None, Setting("Attempts before a message becomes a dead letter.", "20", 1)]
    backoff_base: Annotated[Duration | None, Setting("Delay after the first nack.", "1s")]
    backoff_factor: Annotated[float | None, Setting("Growth factor of the delay.", "2")]
    backoff_cap: Annotated[Duration | None, Setting("Maximum delay after a nack.", "1h")]
    backoff_jitter: Annotated[float | None, Setting("Random share of the delay, 0 to 1.", "0.1")]
    ttl: Annotated[Duration | None, Setting("Age after which messages expire; 0s for no limit.")]
    delivery_delay: Annotated[Duration | None, Setting("Delay before the first delivery.")]
    history: Annotated[Duration | None, Setting("How long to keep delivery history; 0s disables it.", "3d")]
    retention: Annotated[Duration | None, Setting("How long to keep finished direct messages.", "1d")]
    max_payload: Annotated[int | None, Setting("Maximum payload size.", "1048576", 1, "bytes")]


class NewQueueSettings(QueueSettings, total=False):
    """Settings of a new queue; the last four cannot be changed later."""

    ordered: Annotated[bool | None, Setting("Deliver messages with the same key in order.")]
    partitions: Annotated[
        int | None, Setting("Number of partitions; an ordered queue works on one key per partition at a time.", "1", 1)
    ]
    priorities: Annotated[int | None, Setting("Number of priority levels; 0 is the lowest.", "1", 1)]
    segment_rows: Annotated[
        int | None, Setting("Own tables, each for this many messages. Without it: the shared store.", None, 16)
    ]


class Field(NamedTuple):
    """A setting with its name and the type of its stored value."""

    name: str
    type: type
    setting: Setting

    @property
    def sql(self) -> str:
        return self.setting.sql or _SQL[self.type]


_SQL = {timedelta: "interval", int: "int", float: "float8", bool: "boolean", str: "text"}


@cache
def fields(settings: type) -> tuple[Field, ...]:
    """Return the declared settings of a TypedDict, in the order of their declaration."""
    return tuple(_field(name, hint) for name, hint in get_type_hints(settings, include_extras=True).items())


def _field(name: str, hint: Any) -> Field:
    kind, setting = get_args(hint)
    types = {each for each in get_args(kind) if each is not NoneType}
    # a duration is a timedelta or text
    return Field(name, timedelta if timedelta in types else types.pop(), setting)


@cache
def sql_types(settings: type) -> dict[str, str]:
    """Return the SQL type of each setting, for casts in calls."""
    return {field.name: field.sql for field in fields(settings)}


def check_known(options: Any, values: Mapping[str, Any]) -> None:
    """Raise InvalidType for a keyword that the TypedDict `options` does not declare."""
    for name in values:
        if name not in options.__annotations__:
            near = difflib.get_close_matches(name, options.__annotations__, n=1)
            raise InvalidType(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def checked(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not None, with durations in text form converted to timedeltas.

    Raises InvalidType for a setting that does not exist.
    """
    check_known(settings, values)
    types = {field.name: field.type for field in fields(settings)}
    return {
        name: duration(value) if types[name] is timedelta else value for name, value in values.items() if value is not None
    }
