"""The interface of both clients: for programs that do not care whether messages travel over a database connection or HTTP.

`Client` and `HttpClient` both have everything here; tests/typing checks the types, tests/client/test_conformance.py the
behaviour.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypedDict, Unpack
from uuid import UUID

from trunkline.types import (
    Attention,
    CatchUp,
    DeadLetter,
    Duration,
    Explanation,
    Group,
    GroupStats,
    Headers,
    Member,
    Message,
    PartitionMap,
    PerBody,
    Place,
    Published,
    Queue,
    QueueStats,
    Reader,
    Result,
    RetentionDeadline,
    Schedule,
    Search,
    SearchRange,
    Selection,
    SeriesPoint,
    Stats,
    Subscription,
    Topic,
    TopicStats,
    Waiting,
)


class MessageOptions(TypedDict, total=False):
    """Fields of a message besides its body."""

    key: str | None
    routing_key: str | None
    label: str | None
    headers: Headers | None
    id: UUID | None
    occurred_at: datetime | None
    idempotency_key: str | None
    delay: Duration | None
    deliver_at: datetime | None
    content_type: str | None


class QueueMessageOptions(MessageOptions, total=False):
    """Fields of a message that is enqueued directly."""

    priority: int | None


class ManyOptions(TypedDict, total=False):
    """Fields of many messages: one value for all, or a function of the body."""

    key: PerBody
    routing_key: PerBody
    label: PerBody
    headers: Headers | None
    content_type: str | None


class TopicSettings(TypedDict, total=False):
    """Settings of a topic."""

    partitions: int | None
    retention: Duration | None
    retention_bytes: int | None
    hard_retention: Duration | None
    max_payload: int | None


class QueueSettings(TypedDict, total=False):
    """Settings of a queue that can be changed."""

    lease: Duration | None
    max_attempts: int | None
    backoff_base: Duration | None
    backoff_factor: float | None
    backoff_cap: Duration | None
    backoff_jitter: float | None
    ttl: Duration | None
    delivery_delay: Duration | None
    history: Duration | None
    retention: Duration | None
    max_payload: int | None


class NewQueueSettings(QueueSettings, total=False):
    """Settings of a new queue; the last three cannot be changed later."""

    ordered: bool | None
    partitions: int | None
    priorities: int | None


class RangeOptions(TypedDict, total=False):
    """Where to search."""

    partitions: Sequence[int] | None
    start: Place
    end: Place


class SearchOptions(RangeOptions, total=False):
    """Where to search, and when to stop."""

    limit: int
    backwards: bool
    max_rows: int
    budget: Duration
    after: dict[str, int] | None


class TopicsApi(Protocol):
    async def create(self, name: str, **settings: Unpack[TopicSettings]) -> Topic: ...
    async def ensure(self, name: str, **settings: Unpack[TopicSettings]) -> Topic: ...
    async def alter(self, name: str, **settings: Unpack[TopicSettings]) -> Topic: ...
    async def get(self, name: str) -> Topic: ...
    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Topic]: ...
    async def map(self, topic: str) -> builtins.list[PartitionMap]: ...
    async def estimate_search(
        self, topic: str, selection: Selection | None = None, **options: Unpack[RangeOptions]
    ) -> builtins.list[SearchRange]: ...
    async def search(
        self, topic: str, selection: Selection | None = None, *, type: Any = None, **options: Unpack[SearchOptions]
    ) -> Search[Any]: ...
    async def delete(self, name: str, *, force: bool = False) -> None: ...
    async def stats(self, name: str | None = None) -> builtins.list[TopicStats]: ...
    async def head(self, topic: str, partition: int = 0) -> int: ...
    async def offset_at(self, topic: str, partition: int, at: datetime) -> int: ...
    async def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]: ...
    def tail(self, topic: str, *, start: Place = "latest", type: Any = None) -> AsyncIterator[Message[Any]]: ...


class QueuesApi(Protocol):
    async def create(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue: ...
    async def ensure(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue: ...
    async def alter(self, name: str, **settings: Unpack[QueueSettings]) -> Queue: ...
    async def get(self, name: str) -> Queue: ...
    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Queue]: ...
    async def read(
        self, queue: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]: ...
    async def estimate_search(
        self, queue: str, selection: Selection | None = None, **options: Unpack[RangeOptions]
    ) -> builtins.list[SearchRange]: ...
    async def search(
        self, queue: str, selection: Selection | None = None, *, type: Any = None, **options: Unpack[SearchOptions]
    ) -> Search[Any]: ...
    async def delete(self, name: str, *, force: bool = False) -> None: ...
    async def pause(self, name: str) -> None: ...
    async def resume(self, name: str) -> None: ...
    async def purge(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int: ...
    async def cleanup(self, name: str) -> int: ...
    async def stats(self, name: str | None = None, *, names: Sequence[str] | None = None) -> builtins.list[QueueStats]: ...
    async def peek(self, queue: str, *, limit: int = 10, type: Any = None) -> builtins.list[Waiting[Any]]: ...


class GroupsApi(Protocol):
    async def create(
        self,
        topic: str,
        group: str,
        *,
        start: Place = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group: ...
    async def ensure(
        self,
        topic: str,
        group: str,
        *,
        start: Place = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group: ...
    async def list(
        self, topic: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> builtins.list[Group]: ...
    async def members(self, topic: str, group: str) -> builtins.list[Member]: ...
    async def delete(self, topic: str, group: str) -> None: ...
    async def seek(self, topic: str, group: str, to: Place, *, partition: int | None = None) -> dict[int, int]: ...
    async def stats(self, topic: str | None = None, group: str | None = None) -> builtins.list[GroupStats]: ...
    async def position(self, topic: str, group: str) -> dict[int, int]: ...


class SubscriptionsApi(Protocol):
    async def add(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: Headers | None = None,
        start: Place = "latest",
        name: str | None = None,
    ) -> Subscription: ...
    async def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]: ...
    async def remove(self, queue: str, name: str) -> None: ...
    async def test(
        self, topic: str, routing_key: str | None = None, headers: Headers | None = None
    ) -> builtins.list[Reader]: ...


class DeadLettersApi(Protocol):
    async def list(
        self, queue: str, *, after: int = 0, limit: int = 100, type: Any = None
    ) -> builtins.list[DeadLetter[Any]]: ...
    async def get(self, queue: str, id: UUID) -> DeadLetter[Any]: ...
    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        to: str | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int: ...
    async def purge(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int: ...


class SchedulesApi(Protocol):
    async def create(
        self,
        name: str,
        cron: str,
        *,
        topic: str | None = None,
        queue: str | None = None,
        body: Any = None,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> Schedule: ...
    async def ensure(
        self,
        name: str,
        cron: str,
        *,
        topic: str | None = None,
        queue: str | None = None,
        body: Any = None,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> Schedule: ...
    async def list(self) -> builtins.list[Schedule]: ...
    async def pause(self, name: str) -> None: ...
    async def resume(self, name: str) -> None: ...
    async def delete(self, name: str) -> None: ...
    async def run(self, name: str) -> UUID: ...
    async def next_runs(
        self, cron: str, *, timezone: str = "UTC", limit: int = 5, after: datetime | None = None
    ) -> builtins.list[datetime]: ...


class InspectionApi(Protocol):
    async def attention(self) -> list[Attention]: ...
    async def series(
        self,
        kind: Literal["topic", "queue", "group", "endpoint", "label", "system"],
        names: Sequence[str] | None = None,
        *,
        since: Duration = "1h",
        step: Duration = "1m",
    ) -> list[SeriesPoint]: ...
    async def deadlines(self, topic: str | None = None) -> list[RetentionDeadline]: ...


class Settles(Protocol):
    """Settles deliveries by their receipts. Results are in the order of the receipts."""

    async def ack(self, receipts: Sequence[str]) -> list[Result]: ...
    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]: ...
    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]: ...
    async def release(self, receipts: Sequence[str]) -> list[Result]: ...
    async def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]: ...


class ClaimedMessage(Protocol):
    """A message claimed from a queue, with methods to settle it."""

    @property
    def id(self) -> UUID: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def routing_key(self) -> str | None: ...
    @property
    def label(self) -> str | None: ...
    @property
    def headers(self) -> Headers | None: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def content_type(self) -> str: ...
    @property
    def occurred_at(self) -> datetime | None: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def body(self) -> Any: ...
    @property
    def receipt(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def deadline(self) -> datetime: ...
    @property
    def topic(self) -> str | None: ...
    async def ack(self) -> Result: ...
    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> Result: ...
    async def bury(self, error: str | None = None) -> Result: ...
    async def release(self) -> Result: ...
    async def extend(self, lease: Duration) -> Result: ...


class ClaimedMessages(Protocol):
    """The deliveries of one claim, with methods that settle all of them."""

    def __iter__(self) -> Iterator[ClaimedMessage]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> ClaimedMessage: ...
    @property
    def receipts(self) -> Sequence[str]: ...
    async def ack(self) -> list[Result]: ...
    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> list[Result]: ...
    async def bury(self, error: str | None = None) -> list[Result]: ...
    async def release(self) -> list[Result]: ...
    async def extend(self, lease: Duration) -> list[Result]: ...


class FetchedMessages(Protocol):
    """Messages of one partition, fetched for a group. Commit them after you have processed them."""

    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def generation(self) -> UUID: ...
    @property
    def deadline(self) -> datetime: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    def __iter__(self) -> Iterator[Message[Any]]: ...
    def __len__(self) -> int: ...
    async def commit(self, offset: int | None = None) -> Result: ...


class Messaging(Settles, Protocol):
    """The methods of both clients."""

    @property
    def topics(self) -> TopicsApi: ...
    @property
    def queues(self) -> QueuesApi: ...
    @property
    def groups(self) -> GroupsApi: ...
    @property
    def subscriptions(self) -> SubscriptionsApi: ...
    @property
    def dead(self) -> DeadLettersApi: ...
    @property
    def schedules(self) -> SchedulesApi: ...
    @property
    def inspect(self) -> InspectionApi: ...

    async def publish(self, topic: str, body: Any, **options: Unpack[MessageOptions]) -> Published: ...
    async def enqueue(self, queue: str, body: Any, **options: Unpack[QueueMessageOptions]) -> Published: ...
    async def publish_many(self, topic: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]: ...
    async def enqueue_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]: ...
    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: Any = None,
    ) -> ClaimedMessages: ...
    async def fetch(
        self, topic: str, group: str, *, member: str, limit: int = 100, lease: Duration = "30s", type: Any = None
    ) -> FetchedMessages | None: ...
    async def heartbeat(self, topic: str, group: str, *, member: str, lease: Duration = "30s") -> int: ...
    async def leave(self, topic: str, group: str, *, member: str) -> int: ...
    async def explain(self, id: UUID) -> Explanation: ...
    async def explain_offset(self, topic: str, partition: int, *, offset: int) -> Explanation: ...
    async def stats(self) -> Stats: ...
    async def close(self) -> None: ...
