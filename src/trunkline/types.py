"""Records of the API. All are frozen."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr

T = TypeVar("T")
Result = Literal["done", "lost", "unknown"]
Headers = dict[str, Any]
Duration = timedelta | str
"""A `timedelta`, or text such as `500ms`, `30s`, `5m`, `2h`, `7d`."""
PerBody = str | Callable[[Any], str | None] | None
"""One value for all messages, or a function that returns the value for a body."""
Position = str | int | datetime
"""A position in a log: `"earliest"`, `"latest"`, an offset, or a time."""


def _as_sent(payload: bytes, content_type: str) -> Any:
    return payload


# Publishing


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to publish. A body of type bytes is stored unchanged; any other body is encoded as JSON."""

    body: Any
    key: str | None = None
    routing_key: str | None = None
    label: str | None = None
    headers: Headers | None = None
    id: UUID | None = None
    occurred_at: datetime | None = None
    idempotency_key: str | None = None
    delay: Duration | None = None
    deliver_at: datetime | None = None
    content_type: str | None = None
    """Default: application/octet-stream for bytes, application/json for any other body."""
    priority: int | None = None
    """Priority level, for queues with priorities only. 0 is the lowest."""


class Published(msgspec.Struct, frozen=True):
    """The id of a published message. `duplicate`: the idempotency key was used before, and no message was stored."""

    id: UUID
    duplicate: bool


# Messages


class Message(msgspec.Struct, Generic[T], frozen=True, kw_only=True, eq=False):
    """A message of a log."""

    partition: int
    offset: int
    id: UUID
    key: str | None
    routing_key: str | None
    label: str | None
    headers: Headers | None
    payload: bytes
    content_type: str
    occurred_at: datetime | None
    created_at: datetime
    _decode: Callable[[bytes, str], Any] = _as_sent
    _body: Any = msgspec.UNSET

    @property
    def body(self) -> T:
        """The payload, decoded on first access. Raises `InvalidBody` if it does not match the requested type."""
        if self._body is msgspec.UNSET:
            force_setattr(self, "_body", self._decode(self.payload, self.content_type))
        value: T = self._body
        return value

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Delivery(Message[T], frozen=True, kw_only=True, eq=False):
    """A message claimed from a queue until `deadline` by the database's clock. `topic` is None for a direct message."""

    receipt: str
    attempt: int
    deadline: datetime
    topic: str | None


class ReadyMessage(Message[T], frozen=True, kw_only=True, eq=False):
    """A message of a queue that is not claimed, as `peek` returns it. `due_at` is None before the first delivery."""

    topic: str | None
    attempt: int
    due_at: datetime | None
    error: str | None


class Range(msgspec.Struct, frozen=True):
    """Offsets `first` to `last` (inclusive) of a partition."""

    partition: int
    first: int
    last: int


class DeadLetter(Message[T], frozen=True, kw_only=True, eq=False):
    """A message that is not delivered again unless it is redriven, with the reason."""

    dead_id: int
    topic: str
    attempts: int
    error: str | None
    reason: str
    dead_at: datetime


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one queue with the same label and the same masked error.

    A row whose `rest` is set counts messages that no group contains: `groups` those of further groups, `older` those
    older than the newest 100,000 dead letters.
    """

    queue: str | None
    fingerprint: str | None
    label: str | None
    error: str | None
    messages: int
    first_at: datetime
    last_at: datetime
    attempts: int | None
    last_id: UUID | None
    last_error: str | None
    rest: Literal["groups", "older"] | None


class DeadShare(msgspec.Struct, frozen=True, kw_only=True):
    """The number of dead letters of a group with one value of a dimension. `others`: all values that are not listed."""

    dimension: str
    value: str | None
    messages: int
    others: bool


class RunPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a run would process now. `complete` is false if there are more messages than `messages`."""

    messages: int
    complete: bool
    first_at: datetime | None = None
    last_at: datetime | None = None
    samples: list[UUID] = []


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a run redrove and that is a dead letter again."""

    id: UUID
    error: str | None
    dead_at: datetime


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a run's log: a step with its number of messages, or a change of state."""

    at: datetime
    event: str
    n: int | None = None
    detail: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action that the database executes in steps. `failures` and `log` are only set by `client.runs.get`."""

    run_id: int
    kind: str
    state: Literal["waiting", "canary", "running", "paused", "stopped", "done", "aborted", "undone"]
    reason: str | None
    selector: dict[str, Any]
    options: dict[str, Any]
    made_by: str
    made_at: datetime
    start_at: datetime
    ended_at: datetime | None
    total: int
    done: int
    failed: int
    failures: list[RunFailure] = []
    log: list[RunEvent] = []


# Named resources


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A named log with one or more partitions."""

    name: str
    partitions: int
    retention: timedelta
    retention_bytes: int | None
    hard_retention: timedelta | None
    max_payload: int
    created_at: datetime


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and its delivery settings."""

    name: str
    lease: timedelta
    max_attempts: int
    backoff_base: timedelta
    backoff_factor: float
    backoff_cap: timedelta
    backoff_jitter: float
    ttl: timedelta | None
    delivery_delay: timedelta
    ordered: bool
    paused: bool
    partitions: int
    retention: timedelta
    max_payload: int
    created_at: datetime
    updated_at: datetime
    priorities: int = 1
    history: timedelta | None = None
    segment_rows: int | None = None
    """Messages per table; None: in the shared store."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group: reads one topic in order."""

    topic: str
    name: str
    pattern: str | None
    headers: Headers | None
    created_at: datetime


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription of a queue to a topic."""

    queue: str
    name: str
    topic: str
    pattern: str
    headers: Headers | None
    created_at: datetime


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A queue or group that reads a topic. `matches`: whether it receives the tested message."""

    kind: Literal["queue", "group"]
    name: str
    subscription: str
    pattern: str | None
    headers: Headers | None
    matches: bool


CatchUp = Literal["skip", "one", "all"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is published at the times of a cron expression."""

    name: str
    topic: str | None
    queue: str | None
    cron: str
    timezone: str
    catch_up: CatchUp
    payload: bytes
    content_type: str
    key: str | None
    routing_key: str | None
    label: str | None
    headers: Headers | None
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_id: UUID | None
    created_at: datetime


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP receiver of webhooks. `headers` has only their names, `secrets` only their number."""

    name: str
    url: str
    state: Literal["enabled", "paused", "disabled"]
    reason: str | None
    rate: float | None
    burst: int | None
    """None without a rate."""
    max_in_flight: int
    timeout: timedelta
    mode: Literal["single", "batch"]
    batch_size: int
    headers: list[str]
    secrets: int
    queues: list[str]
    breaker: Literal["closed", "open", "half-open"]
    open_until: datetime | None
    held_until: datetime | None
    created_at: datetime
    updated_at: datetime
    needs_allow: str | None
    """The private network of the URL's address. Dispatchers need `--push-allow` with this network to send to it."""


class NewEndpoint(msgspec.Struct, frozen=True):
    """A new endpoint and the secret that signs its deliveries. `needs_allow`: see `Endpoint`."""

    name: str
    secret: str
    needs_allow: str | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery of a message by HTTP. `queue` is None for a test request, `status` is None without a response."""

    endpoint: str
    queue: str | None
    id: UUID
    attempt: int
    started_at: datetime
    seconds: float
    status: int | None
    outcome: str
    error: str | None
    snippet: str | None
    dispatcher: str


# Statistics and explanations


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    earliest_offset: int
    head: int
    bytes: int
    segments: int
    rate_per_second: float
    delayed: int


class GroupStats(msgspec.Struct, frozen=True):
    topic: str
    group: str
    partition: int
    next_offset: int
    fetched: int
    head: int
    lag: int
    lag_seconds: float
    member: str | None
    deadline: datetime | None


class QueueStats(msgspec.Struct, frozen=True):
    queue: str
    ready: int
    delayed: int
    leased: int
    dead: int
    acked: int
    expired: int
    purged: int
    oldest_age: float
    paused: bool


class Stats(msgspec.Struct, frozen=True):
    """Statistics of all topics, groups and queues."""

    topics: list[TopicStats]
    groups: list[GroupStats]
    queues: list[QueueStats]


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Rates, backlog and latencies of one subject in one step: see `trunkline.rollup_lines` for each kind of subject."""

    name: str
    at: datetime
    in_per_second: float | None
    out_per_second: float | None
    failed_per_second: float | None
    lag: int
    leased: int
    oldest_age: float
    wait_p50: float | None
    wait_p99: float | None
    work_p50: float | None
    work_p99: float | None
    bytes: int | None


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention. `severity`: loss, stopped, slow or note."""

    severity: str
    rule: str
    kind: str
    subject: str
    since: datetime | None
    deadline: datetime | None
    n: int | None
    cause: str
    next_step: str


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """An active member of a group, with the partitions that it has leased."""

    member: str
    seen_until: datetime
    partitions: list[int]
    deadline: datetime | None


class RetentionDeadline(msgspec.Struct, frozen=True, kw_only=True):
    """The time at which hard retention removes what a reader needs next. `lost_at`: None if that is not known yet."""

    topic: str
    partition: int
    kind: Literal["group", "queue"]
    reader: str
    next_offset: int
    unread: int
    lost_at: datetime | None


class MapSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a partition. `staged`: Spark tasks write it."""

    segment: int
    first_offset: int | None
    last_offset: int | None
    created_at: datetime
    sealed_at: datetime | None
    bytes: int | None
    staged: bool


class MapTime(msgspec.Struct, frozen=True):
    """An offset, and when it was assigned."""

    offset: int
    at: datetime


class MapReader(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a reader in a partition."""

    kind: Literal["group", "queue"]
    name: str
    next_offset: int
    lag: int
    member: str | None


class MapArchive(msgspec.Struct, frozen=True):
    """A range of offsets that adjoining archive files cover."""

    first_offset: int
    last_offset: int
    files: int
    bytes: int


class MapKeeps(msgspec.Struct, frozen=True):
    """The times at which retention may remove the offsets up to `last_offset`, and at which hard retention does."""

    last_offset: int
    until: datetime
    at_most: datetime | None


class PartitionMap(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a partition, from the archive to messages without an offset."""

    partition: int
    earliest_offset: int
    head: int
    unsequenced: int
    staged: int
    segments: list[MapSegment]
    times: list[MapTime]
    readers: list[MapReader]
    archive: list[MapArchive]
    keeps: MapKeeps | None


class Selection(TypedDict, total=False):
    """Which messages a search returns. All given fields must match."""

    key: str
    routing: str
    """A pattern: `*` stands for one word, `#` for any number."""
    label: str | list[str]
    headers: Headers
    """As in the filter of a subscription."""
    body: str | list[str]
    """JSON paths that must exist, such as `$.total ? (@ > 100)`."""
    text: str
    """Part of the payload."""
    regex: str


class SearchRange(msgspec.Struct, frozen=True):
    """The offsets that a search reads at most in one partition."""

    partition: int
    first_offset: int
    last_offset: int
    messages: int
    bytes: int


class Search(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a search, and what it did."""

    matches: list[Message[T]]
    scanned: int
    matched: int
    stopped: Literal["end", "limit", "rows", "bytes", "time"]
    next: dict[str, int] | None
    """Pass as `after` to continue. None: nothing is left."""
    seconds: float


class Explanation(dict[str, Any]):
    """The result of `trunkline.explain_message`: the state of a message, and of its delivery to each reader."""

    @property
    def state(self) -> str:
        """`not_sequenced`, `delayed`, `in_log`, `dead` or `unknown`."""
        return str(self["state"])

    @property
    def reason(self) -> str | None:
        reason = self.get("reason")
        return None if reason is None else str(reason)

    @property
    def readers(self) -> list[dict[str, Any]]:
        """Kind, name, state, reason and history for each queue and group that reads the topic."""
        return list(self.get("readers") or [])
