"""The topics that are read: filled in order, or by many publishers at once."""

from __future__ import annotations

from bench import pgbench
from bench.lab import Lab
from bench.peers import ours
from bench.pgbench import text
from bench.spark.bed import PAYLOAD
from trunkline.spark.ranges import Head

_CALL = 10_000
_KEYS = 1_000
# A quarter of a payload differs from message to message; all alike would flatter every compressed file.
_RANDOM = 4 * 32


def make(lab: Lab, name: str, *, partitions: int = 1) -> int:
    """Create a topic; answers its number."""
    return int(lab.value("select (trunkline.create_topic(%s, %s)).topic_id", name, partitions))


def fill(lab: Lab, number: int, *, first: int, messages: int) -> None:
    """Append messages with keys, in transactions of 10,000, from one connection: row ids follow each other."""
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
    """Single publishes from many connections: offsets and row ids do not follow each other. Answers how many."""
    pgbench.rate(lab.tcp_url, ours.publish_script(number), clients=publishers, seconds=seconds, payload=PAYLOAD)
    return int(lab.value(f"select count(*) from trunkline.topic_{int(number)}"))


def ends(url: str, name: str) -> list[Head]:
    """Each partition's first and next offset."""
    from trunkline.spark.reading import heads

    return heads(url, [name])
