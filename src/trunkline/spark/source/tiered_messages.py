"""Read messages from the archive and then from the live log, without gaps or overlaps. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from trunkline.codec import decoder
from trunkline.db.calls import archive
from trunkline.db.calls.archive import Tier
from trunkline.db.sync import calls
from trunkline.errors import OffsetOutOfRange, from_psycopg
from trunkline.spark.archive import files, positions
from trunkline.types import Message

_PAGE = 1000


def read(
    url: str, topic: str, *, start: positions.Position = "earliest", partition: int | None = None
) -> Iterator[Message[Any]]:
    """Yield messages from `start` to the current head, partition by partition.

    Raises `OffsetOutOfRange` for an offset below the archive.
    """
    try:
        with psycopg.connect(url, autocommit=True) as conn:
            topic_id = calls.topic_number(conn, "topic", topic)
            for number, (lo, hi) in positions.spans(url, topic, start).items():
                if partition in (None, number):
                    yield from _read_partition(conn, topic, topic_id, number, lo, hi)
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def partitions(url: str, topic: str) -> list[int]:
    with psycopg.connect(url, autocommit=True) as conn:
        return [row.partition for row in calls.topic_stats(conn, topic)]


def _read_partition(
    conn: psycopg.Connection[Any], topic: str, topic_id: int, partition: int, lo: int, hi: int
) -> Iterator[Message[Any]]:
    at = lo
    while at < hi:
        # Query the tier again for each part: retention may move the boundary during the read.
        tier = archive.archive_tiers(conn, topic, partition, at, hi - 1, prefer="live", topic_id=topic_id)[0]
        if tier.tier == "gone":
            raise OffsetOutOfRange(
                f"offsets {tier.first_offset} to {tier.last_offset} of partition {partition} of topic {topic!r} are gone",
                hint=f"Start at {tier.last_offset + 1}: retention removed them before they were archived.",
            )
        if tier.tier == "archive":
            for message in _from_file(partition, tier):
                at = message.offset + 1
                yield message
            continue
        try:
            page = calls.read(conn, topic, partition, start=at, limit=min(_PAGE, hi - at))
        except psycopg.Error as exc:
            if exc.sqlstate == "TL006":
                continue  # Removed since the tier query: now in the archive, or gone.
            raise
        # The page was read by the topic's name, which may belong to another topic since the tiers were read.
        archive.archive_tiers(conn, topic, partition, at, at, topic_id=topic_id)
        for message in page:
            at = message.offset + 1
            yield message


def _from_file(partition: int, tier: Tier) -> Iterator[Message[Any]]:
    decode = decoder(None)
    location, path, first = str(tier.location), str(tier.path), int(tier.file_first or 0)
    for batch in files.read(location, path, first, tier.first_offset, tier.last_offset + 1, size=tier.bytes):
        for row in batch.to_pylist():
            row["id"] = UUID(row["id"])
            row["headers"] = None if row["headers"] is None else msgspec.json.decode(row["headers"])
            yield Message(partition=partition, _decode=decode, **row)
