"""Input topics: filled in order, or by many concurrent publishers."""

from __future__ import annotations

from bench import pgbench
from bench.lab import Lab
from bench.peers import ours
from bench.pgbench import text
from bench.spark.bed import PAYLOAD
from trunkline.spark.source.ranges import Head

_CALL = 10_000
_KEYS = 1_000
# A quarter of each payload is unique: identical payloads would compress unrealistically well.
_RANDOM = 4 * 32


def make(lab: Lab, name: str, *, partitions: int = 1) -> int:
    """Create a topic and return its number."""
    return int(lab.value("select (trunkline.create_topic(%s, %s)).topic_id", name, partitions))


def fill(lab: Lab, number: int, *, first: int, messages: int) -> None:
    """Append messages with keys from one connection, in transactions of 10,000, so that row ids are consecutive."""
    statement = (
        "with made as (select array_agg(convert_to(md5(n || 'a') || md5(n || 'b') || md5(n || 'c') || md5(n || 'd') || %s,"
        " 'UTF8') order by n) as payloads, array_agg('k' || n %% %s order by n) as keys"
        " from generate_series(%s::int, %s::int) n)"
        f" select (select count(*) from trunkline.topic_{int(number)}_append(payloads, null, keys, null, null, null, null,"
        " 'application/octet-stream', null)) from made"
    )
    rest = text(PAYLOAD - _RANDOM)
    for start in range(first, first + messages, _CALL):
        lab.value(statement, rest, _KEYS, start, min(start + _CALL, first + messages) - 1)


def fill_by_many(lab: Lab, number: int, *, publishers: int, seconds: float) -> int:
    """Publish one by one from many connections, so that offsets and row ids diverge. Return the number of messages."""
    pgbench.rate(lab.tcp_url, ours.publish_script(number), clients=publishers, seconds=seconds, payload=PAYLOAD)
    return int(lab.value(f"select count(*) from trunkline.topic_{int(number)}"))


def ends(url: str, name: str) -> list[Head]:
    """Return the first and next offset of each partition."""
    from trunkline.spark.source.log_reader import heads

    return heads(url, [name])
