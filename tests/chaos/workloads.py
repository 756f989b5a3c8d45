"""The workloads: which topics, queues and groups there are, who publishes and who consumes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chaos.actors import Spec
from tests.chaos.consumers import GroupMemberSpec, QueueConsumerSpec, TailReaderSpec
from tests.chaos.http_actors import HttpGroupMemberSpec, HttpQueueConsumerSpec, HttpTailReaderSpec, VandalSpec
from tests.chaos.operators import PurgerSpec, SeekerSpec
from tests.chaos.publisher import Target
from tests.chaos.redrives import RedriverSpec

# Small segments and frequent rotation: both happen many times in a run of a minute.
SEGMENT_ROWS = 4096
MAX_ATTEMPTS = 6
_KEYS = ("order.new", "order.paid", "user.new")
_LABELS = ("mail", "pdf", "sms")


@dataclass(frozen=True)
class Group:
    topic: str
    name: str
    effects: bool = False
    pattern: str | None = None
    # the routing keys that the pattern lets through
    keys: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Queue:
    name: str
    partitions: int = 1
    ordered: bool = False
    ttl: float | None = None
    # (topic, pattern, the routing keys that the pattern lets through)
    feeds: tuple[tuple[str, str, tuple[str, ...] | None], ...] = ()


@dataclass(frozen=True)
class Workload:
    name: str
    topics: dict[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    queues: tuple[Queue, ...] = ()
    targets: tuple[Target, ...] = ()
    publishers: int = 4
    consumers: tuple[tuple[str, Spec], ...] = ()
    readers: tuple[tuple[str, Spec], ...] = ()
    # All processes use HTTP servers, which also run upkeep.
    http: bool = False


_GROUPS = (
    Group("wide", "plain"),
    Group("wide", "exact", effects=True),
    Group("wide", "some", effects=True, pattern="order.*", keys=_KEYS[:2]),
    Group("narrow", "exact", effects=True),
)
LOG = Workload(
    name="log",
    topics={"wide": 4, "narrow": 1},
    groups=_GROUPS,
    targets=(
        Target("topic", "wide", keys=50, routing_keys=_KEYS),
        Target("topic", "wide", routing_keys=(*_KEYS, "user.gone")),
        Target("topic", "narrow", readback=True),
    ),
    consumers=(
        *(
            (f"{group.topic}.{group.name}.{number}", GroupMemberSpec(group.topic, group.name, effects=group.effects))
            for group in _GROUPS
            for number in range(2)
        ),
        ("seeker", SeekerSpec("wide", "plain")),
    ),
    readers=(("tail.wide", TailReaderSpec("wide", 4)), ("tail.narrow", TailReaderSpec("narrow", 1))),
)

QUEUE = Workload(
    name="queue",
    queues=(Queue("work"), Queue("many", partitions=4), Queue("brief", ttl=2.0), Queue("swept")),
    targets=(
        Target("queue", "work", delays=True, labels=_LABELS),
        Target("queue", "many", keys=50, delays=True),
        Target("queue", "brief"),
        Target("queue", "swept"),
    ),
    consumers=(
        *(
            (f"{name}.{number}", QueueConsumerSpec(name, transactions=True))
            for name in ("brief", "swept")
            for number in range(2)
        ),
        ("purger", PurgerSpec("swept")),
        *(
            (f"work.{number}", QueueConsumerSpec("work", labels=_LABELS if number < 2 else (), transactions=True))
            for number in range(4)
        ),
        *((f"many.{number}", QueueConsumerSpec("many", transactions=True)) for number in range(3)),
        *((f"redrive.{number}", RedriverSpec(("work", "many"))) for number in range(2)),
    ),
)

MIXED = Workload(
    name="mixed",
    topics={"events": 2},
    groups=(Group("events", "exact", effects=True),),
    queues=(
        Queue("all", feeds=(("events", "#", None),)),
        Queue("orders", feeds=(("events", "order.*", _KEYS[:2]),)),
        Queue("line", partitions=2, ordered=True),
    ),
    targets=(
        Target("topic", "events", keys=50, routing_keys=_KEYS),
        Target("topic", "events", routing_keys=_KEYS),
        Target("queue", "orders", delays=True),
        Target("queue", "line", keys=50),
    ),
    consumers=(
        *((f"all.{number}", QueueConsumerSpec("all", transactions=True)) for number in range(2)),
        *((f"orders.{number}", QueueConsumerSpec("orders", transactions=True)) for number in range(2)),
        *((f"line.{number}", QueueConsumerSpec("line", ordered=True, transactions=True)) for number in range(2)),
        ("events.exact", GroupMemberSpec("events", "exact", effects=True)),
    ),
    readers=(("tail.events", TailReaderSpec("events", 2)),),
)

_HTTP_TARGETS = (
    Target("topic", "events", keys=50, routing_keys=_KEYS),
    Target("queue", "work", delays=True, labels=_LABELS),
    Target("queue", "line", keys=50),
)

HTTP = Workload(
    name="http",
    topics={"events": 2},
    groups=(Group("events", "billing"),),
    queues=(Queue("work"), Queue("orders", feeds=(("events", "order.*", _KEYS[:2]),)), Queue("line", 2, ordered=True)),
    targets=_HTTP_TARGETS,
    publishers=3,
    consumers=(
        *((f"work.{number}", HttpQueueConsumerSpec("work", labels=_LABELS if number else ())) for number in range(2)),
        ("orders.0", HttpQueueConsumerSpec("orders")),
        *((f"line.{number}", HttpQueueConsumerSpec("line", ordered=True)) for number in range(2)),
        *((f"billing.{number}", HttpGroupMemberSpec("events", "billing")) for number in range(2)),
    ),
    readers=(
        ("tail.events", HttpTailReaderSpec("events", 2)),
        ("vandal", VandalSpec(_HTTP_TARGETS, ("work", "orders"), "events")),
    ),
    http=True,
)

WORKLOADS = {workload.name: workload for workload in (LOG, QUEUE, MIXED, HTTP)}
