"""Declared settings: records, SQL, HTTP, the command line and both clients have all of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from trunkline import resources, wire
from trunkline.cli.commands import queue, topic
from trunkline.errors import InvalidType
from trunkline.resources import NewQueueSettings, QueueSettings, TopicSettings, checked, fields
from trunkline.types import Queue, Topic

SQL = Path(resources.__file__).parent / "sql" / "functions"


@pytest.mark.parametrize(("settings", "record"), [(NewQueueSettings, Queue), (TopicSettings, Topic)])
def test_records_have_every_setting(settings: type, record: type[msgspec.Struct]) -> None:
    assert {field.name for field in fields(settings)} <= set(record.__struct_fields__)


@pytest.mark.parametrize(
    ("settings", "file", "function"),
    [
        (NewQueueSettings, "queues.sql", "create_queue"),
        (NewQueueSettings, "queues.sql", "ensure_queue"),
        (QueueSettings, "queues.sql", "alter_queue"),
        (TopicSettings, "topics.sql", "create_topic"),
        (TopicSettings, "topics.sql", "ensure_topic"),
        (TopicSettings, "topics.sql", "alter_topic"),
    ],
)
def test_sql_functions_take_every_setting(settings: type, file: str, function: str) -> None:
    header = (SQL / file).read_text().partition(f"function trunkline.{function}(")[2].partition("\nreturns ")[0]
    assert header
    for field in fields(settings):
        assert f" p_{field.name} {field.sql} " in header.replace("\n", " "), field.name


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (queue.command.commands["create"], NewQueueSettings),
        (queue.command.commands["alter"], QueueSettings),
        (topic.command.commands["create"], TopicSettings),
        (topic.command.commands["alter"], TopicSettings),
    ],
)
def test_commands_have_an_option_for_every_setting(command: click.Command, settings: type) -> None:
    assert {field.name for field in fields(settings)} <= {param.name for param in command.params}


@pytest.mark.parametrize("settings", [NewQueueSettings, TopicSettings])
def test_settings_survive_json(settings: type) -> None:
    samples: dict[type, Any] = {timedelta: timedelta(milliseconds=1500), int: 3, float: 0.5, bool: True, str: "x"}
    values = {field.name: samples[field.type] for field in fields(settings)}
    body = msgspec.json.encode(wire.from_settings(settings, values))
    decoded = msgspec.json.decode(body, type=wire.settings_type(settings, "Body"))
    assert wire.to_settings(settings, decoded) == values


def test_durations_are_parsed_and_none_is_left_out() -> None:
    assert checked(QueueSettings, {"lease": "1500ms", "ttl": None}) == {"lease": timedelta(milliseconds=1500)}


def test_an_unknown_setting() -> None:
    with pytest.raises(InvalidType, match="unknown setting 'leese'; did you mean 'lease'"):
        checked(QueueSettings, {"leese": "30s"})
    with pytest.raises(InvalidType, match=r"unknown setting 'ordered'$"):
        checked(QueueSettings, {"ordered": True})
