"""Wakes consumers: one poller and one listener per client, however many consumers it has.

Polling alone is correct; everything else reduces latency. Publishers in this client wake its consumers directly. Other
processes receive a NOTIFY with an empty payload, sent after the commit on a separate connection, at most once every few
milliseconds. A process that receives it runs one statement for all its waiting consumers: a sequencer pass, which
assigns offsets to committed messages, and a poll, which finds the consumers that have messages. While polls find
nothing, consecutive notifications are followed less often. A poll serves every consumer that was waiting when it began.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import monotonic
from uuid import uuid4

import psycopg

from trunkline.concurrency.aio import BackgroundTask, Coalescer, Lock, Signal, log, sleep
from trunkline.db import calls
from trunkline.db.pool import Connection, connect
from trunkline.errors import from_psycopg

POLL_SECONDS = 1.1
"""Poll interval. Including pings, an idle client stays below one query per second."""
PING_SECONDS = 15.0
PATIENCE_SECONDS = 5.0
NOTIFY_SECONDS = 0.005
_GAP_SECONDS = 0.002
_LONGEST_GAP_SECONDS = 0.02
"""Shortest and longest pause between polls that follow notifications, which may arrive every few milliseconds."""
_ROW_SECONDS = 0.1
"""Polls further apart than this do not count as consecutive."""
_TURN_SECONDS = 0.2
COMPLAIN_SECONDS = 30.0


class Watch:
    """Lets a consumer wait for messages. Call `hush`, then query for messages, then `wait` if there are none.

    In this order no wake-up is lost. A consumer that serves many queues calls `stand_by` instead of `wait`, and
    `on_ring` is called when it is woken.
    """

    def __init__(
        self,
        wakeup: Wakeup,
        kind: str,
        name: str,
        group: str = "",
        member: str = "",
        on_ring: Callable[[], object] | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.group = group
        self.member = member
        self.sources: frozenset[str] | None = None
        """Topics that feed the queue; None if unknown."""
        self.labels: str | None = None
        self.waiting = False
        self.missed_poll = False
        """True if a poll for other consumers began while this one was querying, perhaps too early."""
        self.polled = self.hit = False
        """Flags: a poll began while this one waited; that poll found messages for it."""
        self.length: int | None = None
        self._after_poll = self._after_hit = self._vain = False
        self._wakeup = wakeup
        self._signal = Signal()
        self._on_ring = on_ring

    def reset(self, labels: Sequence[str] | None = None) -> None:
        """Clear earlier wake-ups before querying for messages with these labels, or with any label."""
        self.labels = None if labels is None else json.dumps(sorted(set(labels)))
        self._after_poll, self._after_hit = self.polled, self.hit
        self.polled = self.hit = False
        self.missed_poll = self.waiting = False
        self._signal.clear()

    def wake(self) -> None:
        self._signal.set()
        if self._on_ring is not None:
            self._on_ring()

    def note_message(self) -> None:
        """Record that messages were found, so that the next notification is followed at once."""
        self._wakeup.reset_backoff()
        if self.labels is not None:
            self._wake_others()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until there may be messages. Returns whether the watch was woken."""
        try:
            self.arm()
            return await self._signal.wait(timeout)
        finally:
            self.waiting = False

    def arm(self) -> None:
        """Record that no messages were found, and request a wake-up when there may be some.

        Committed messages may not have an offset yet. So unless the query followed a poll, a poll must run.
        """
        self.waiting = True
        # after setting `waiting`: the poller accesses the two in the opposite order, so one side sees the other
        if self.missed_poll or not self._after_poll:
            self._wakeup.poll_now()
        elif self.labels is not None and self._after_hit and not self._vain:
            # not twice in a row, so that it ends
            self._vain = True
            self._wake_others()
        else:
            self._vain = False
        # the consumer may wait several times after one query
        self._after_poll, self._after_hit, self.missed_poll = True, False, False

    def _wake_others(self) -> None:
        """Wake consumers in all processes: a query by label may have skipped messages that are for others."""
        self._wakeup.poll_now()
        self._wakeup.notify()


class Wakeup:
    """Wakes watches when there may be messages for them."""

    def __init__(self, conninfo: str, *, prepare: bool = True) -> None:
        self._conninfo = conninfo
        self._prepare = prepare
        self._watches: set[Watch] = set()
        self._poll_due = Signal()
        self._news = Signal()
        self._pending_hint = self._sent_hint = 0
        self._pause = POLL_SECONDS
        self._gap = _GAP_SECONDS
        self._polled_at = 0.0
        self._closed = False
        self._complained: float | None = None
        self._poller: BackgroundTask | None = None
        self._listener: BackgroundTask | None = None
        self._notifier: BackgroundTask | None = None
        self._side: Connection | None = None
        self._side_pid = 0
        self._side_lock = Lock()
        self._passes: Coalescer[tuple[str, str], None] = Coalescer(self._run_pass, max_items=1000, max_size=1000)
        self.polls = 0
        self.hearing = False

    # For consumers

    def watch(
        self, kind: str, name: str, *, group: str = "", member: str = "", on_ring: Callable[[], object] | None = None
    ) -> Watch:
        watch = Watch(self, kind, name, group, member, on_ring)
        self._watches.add(watch)
        if self._poller is None:
            self._poller = BackgroundTask(self._poll_for_ever, "trunkline poller")
            self._listener = BackgroundTask(self._listen_for_ever, "trunkline listener")
        return watch

    def unwatch(self, watch: Watch) -> None:
        self._watches.discard(watch)

    def poll_now(self) -> None:
        """Poll now."""
        self._poll_due.set()

    def reset_backoff(self) -> None:
        self._gap = _GAP_SECONDS

    async def sequence(self, kind: str, name: str) -> None:
        """Assign offsets to committed messages of a queue or topic. Concurrent calls share a sequencer pass."""
        await self._passes.submit((kind, name))

    async def _run_pass(self, targets: list[tuple[str, str]]) -> list[BaseException | None]:
        queues = sorted({name for kind, name in targets if kind == "queue"})
        topics = sorted({name for kind, name in targets if kind != "queue"})
        async with self._side_lock:
            try:
                try:
                    await calls.sequence(await self._open_side(), queues=queues, topics=topics)
                except psycopg.OperationalError:
                    # the connection may have broken while it was idle
                    await self._drop_side()
                    await calls.sequence(await self._open_side(), queues=queues, topics=topics)
            except psycopg.Error as exc:
                raise from_psycopg(exc) from exc
        return [None] * len(targets)

    # For publishers

    def published(self, kind: str, name: str) -> None:
        """Report a commit: sequence it for our own consumers now, and notify the other processes soon."""
        for watch in tuple(self._watches):
            if kind == "inbox":
                hit = watch.kind == "queue" and watch.name == name
            elif watch.kind == "queue":
                hit = watch.sources is None or name in watch.sources
            else:
                hit = watch.name == name
            if hit:
                self._poll_due.set()
                break
        self.notify()

    def notify(self) -> None:
        """Notify the other processes of a commit."""
        self._pending_hint += 1
        self._news.set()
        if self._notifier is None and not self._closed:
            self._notifier = BackgroundTask(self._notify_for_ever, "trunkline notifier")

    def notify_all(self) -> None:
        """Report a commit to an unknown topic or queue: poll for all our consumers and notify the other processes."""
        self._poll_due.set()
        self.notify()

    async def close(self) -> None:
        self._closed = True
        self._poll_due.set()
        self._news.set()
        for watch in tuple(self._watches):
            watch.wake()
        for loop in (self._notifier, self._poller, self._listener):
            if loop is not None:
                await loop.end()
        # the last publish must not wait for the poll interval of other processes
        if self._sent_hint < self._pending_hint and not await self._hint():
            # the notifier may have been stopped during a statement and broken the connection; retry on a new one
            await self._hint()
        async with self._side_lock:
            await self._drop_side()

    # The loops

    async def _notify_for_ever(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._closed:
                return
            if not await self._hint():
                await sleep(_TURN_SECONDS)
            await sleep(NOTIFY_SECONDS)

    async def _hint(self) -> bool:
        """Notify the other processes. Returns whether that succeeded; if not, their polls find the messages."""
        pending = self._pending_hint
        try:
            async with self._side_lock:
                await calls.notify(await self._open_side())
            self._sent_hint = pending
        except psycopg.Error as exc:
            log.debug("could not send wake-up error=%s", exc)
            async with self._side_lock:
                await self._drop_side()
            return False
        return True

    def _complain(self, exc: psycopg.Error) -> None:
        """Log that the database is unavailable, at most every 30 s."""
        if self._complained is None or monotonic() - self._complained > COMPLAIN_SECONDS:
            self._complained = monotonic()
            log.warning("poll failed; retrying in %s s error=%s", _TURN_SECONDS, str(exc).partition("\n")[0])

    async def _poll_for_ever(self) -> None:
        while not self._closed:
            await self._poll_due.wait(self._pause)
            self._poll_due.clear()
            waiting = self._waiting()
            if not waiting:
                # the next consumer to wait requests a poll
                self._pause = POLL_SECONDS
                continue
            start = monotonic()
            try:
                await self._poll(waiting)
            except psycopg.OperationalError as exc:
                self._complain(exc)
                async with self._side_lock:
                    await self._drop_side()
                await sleep(_TURN_SECONDS)
                self._poll_due.set()
            except psycopg.Error as exc:
                # the role may not poll, or the schema has another version
                log.warning("shared poll failed; consumers poll individually error=%s", exc)
                for watch in waiting:
                    watch.wake()
                await self._rest(POLL_SECONDS)
            else:
                self._complained = None
            # a flood of notifications never takes more than half of the poller's time
            await sleep(max(self._gap, monotonic() - start))

    def _waiting(self) -> list[Watch]:
        """Return the waiting watches.

        Others may be between an empty query and `wait`: mark them, so that they poll again.
        """
        waiting = []
        for watch in tuple(self._watches):
            watch.missed_poll = True
            if watch.waiting:
                watch.missed_poll = False
                watch.polled = True
                waiting.append(watch)
        return waiting

    async def _poll(self, waiting: list[Watch]) -> None:
        async with self._side_lock:
            result = await calls.poll(
                await self._open_side(),
                queues=list({(watch.name, watch.labels) for watch in waiting if watch.kind == "queue"}),
                groups=sorted({(watch.name, watch.group, watch.member) for watch in waiting if watch.kind == "group"}),
                topics=sorted({watch.name for watch in waiting if watch.kind == "topic"}),
            )
        self.polls += 1
        self._slow_down()
        if result.queues or result.groups:
            self.reset_backoff()
        # wake at the next due time even if it is before the next poll; slightly later, so that it has passed
        self._pause = POLL_SECONDS if result.seconds is None else min(POLL_SECONDS, max(0.0, result.seconds) + _GAP_SECONDS)
        for watch in waiting:
            if watch.kind == "queue":
                hit = (watch.name, watch.labels) in result.queues
            elif watch.kind == "group":
                hit = (watch.name, watch.group, watch.member) in result.groups
            else:
                length = result.topics.get(watch.name)
                hit = length != watch.length
                watch.length = length
            if hit:
                watch.hit = True
                watch.wake()

    def _slow_down(self) -> None:
        now = monotonic()
        self._gap = min(2 * self._gap, _LONGEST_GAP_SECONDS) if now - self._polled_at < _ROW_SECONDS else _GAP_SECONDS
        self._polled_at = now

    def _follow(self) -> None:
        """React to a notification of another process."""
        self._poll_due.set()

    async def _listen_for_ever(self) -> None:
        warned = False
        while not self._closed:
            pause = _TURN_SECONDS / 10
            try:
                conn = await connect(self._conninfo)
                try:
                    await self._listen(conn)
                finally:
                    self.hearing = False
                    await conn.close()
                # notifications do not arrive, as behind a transaction pooler: keep polling, and retry LISTEN
                # periodically
                if not self._closed:
                    if not warned:
                        log.warning("LISTEN is not working (connection pooler?); polling every %s s instead", POLL_SECONDS)
                    warned = True
                    pause = PING_SECONDS
            except psycopg.Error as exc:
                log.debug("listener connection lost error=%s", exc)
            self._poll_due.set()
            await self._rest(pause)

    async def _listen(self, conn: Connection) -> None:
        """Listen until the connection breaks (raises) or its notifications do not arrive (returns)."""
        await calls.listen(conn)
        # notifications may have been missed while not listening: poll once for all consumers
        self._poll_due.set()
        token = str(uuid4())
        pinged_at, heard_at = monotonic() - PING_SECONDS, monotonic()
        pinged = False
        while not self._closed:
            now = monotonic()
            if pinged and now - pinged_at > PATIENCE_SECONDS and heard_at < pinged_at:
                return
            if now - pinged_at > PING_SECONDS:
                pinged_at = monotonic()
                pinged = await self._ping(token)
            async for hint in conn.notifies(timeout=_TURN_SECONDS, stop_after=1):
                if hint.payload == token:
                    heard_at = monotonic()
                    self.hearing = True
                elif hint.payload == "" and hint.pid != self._side_pid:
                    self._follow()

    async def _ping(self, token: str) -> bool:
        try:
            async with self._side_lock:
                await calls.notify(await self._open_side(), token)
        except psycopg.Error:
            async with self._side_lock:
                await self._drop_side()
            return False
        return True

    async def _rest(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self._closed and monotonic() < until:
            await sleep(min(_TURN_SECONDS, max(0.0, until - monotonic())))

    # The side connection carries notifications, pings and polls, so that they never wait for the pool

    async def _open_side(self) -> Connection:
        if self._side is None or self._side.closed:
            self._side = await connect(self._conninfo, prepare=self._prepare)
            self._side_pid = self._side.info.backend_pid
        return self._side

    async def _drop_side(self) -> None:
        if self._side is not None:
            side, self._side = self._side, None
            await side.close()
