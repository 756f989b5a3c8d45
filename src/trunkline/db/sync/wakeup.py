# Written by tools/unasync.py from src/trunkline/db/wakeup.py; change that file, not this one.
"""Waking consumers (DESIGN 3.5): one poller and one listener per client, whatever the number of its consumers.

Polling is enough for correctness; everything else only makes it sooner. Publishers of this client ring its consumers
directly. Other processes hear a NOTIFY with an empty payload, sent after the commit on a connection of its own, at most
every few milliseconds. A process that hears it runs one statement for all its waiting consumers: a pass, which gives
offsets to what was committed, and a poll, which finds those that have something to take. While nothing is found, hints in a
row are followed less often. A poll that begins after a consumer came to wait serves it, so many consumers share one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import monotonic
from uuid import uuid4

import psycopg

from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection, connect
from trunkline.db.threads import Background, Bell, Coalescer, Mutex, log, sleep
from trunkline.errors import from_psycopg

POLL_SECONDS = 1.1
"""With a ping now and then this stays below one query per second."""
PING_SECONDS = 15.0
PATIENCE_SECONDS = 5.0
NOTIFY_SECONDS = 0.005
_GAP_SECONDS = 0.002
_LONGEST_GAP_SECONDS = 0.02
"""Between two looks that follow hints. Hints for others come every few milliseconds while they publish a lot."""
_ROW_SECONDS = 0.1
"""Looks that are further apart are not of one row."""
_TURN_SECONDS = 0.2
COMPLAIN_SECONDS = 30.0


class Watch:
    """A consumer's place to wait. Hush it, look for messages, and wait when there are none: nothing can slip through.

    Who looks for many stands by instead of waiting, and is called when it is rung.
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
        """Topics that feed a queue; None while that is not known."""
        self.labels: str | None = None
        self.waiting = False
        self.missed = False
        """Whether a poll began for others while this one looked for itself, perhaps too early."""
        self.polled = self.hit = False
        """Whether a poll began while this one waited, and whether it found something for it."""
        self.length: int | None = None
        self._after_poll = self._after_hit = self._vain = False
        self._wakeup = wakeup
        self._bell = Bell()
        self._on_ring = on_ring

    def hush(self, labels: Sequence[str] | None = None) -> None:
        """Forget earlier rings, before looking for messages: for those with these labels, or all."""
        self.labels = None if labels is None else json.dumps(sorted(set(labels)))
        self._after_poll, self._after_hit = self.polled, self.hit
        self.polled = self.hit = False
        self.missed = self.waiting = False
        self._bell.hush()

    def ring(self) -> None:
        self._bell.ring()
        if self._on_ring is not None:
            self._on_ring()

    def found(self) -> None:
        """There was something to take: hints are worth following at once."""
        self._wakeup.speed_up()
        if self.labels is not None:
            self._passed_over()

    def wait(self, timeout: float | None = None) -> bool:
        """Until there may be something to take; returns whether it was rung."""
        try:
            self.stand_by()
            return self._bell.wait(timeout)
        finally:
            self.waiting = False

    def stand_by(self) -> None:
        """There was nothing to take: be rung when there may be.

        What was committed may have no offset yet. Unless this look followed a poll, there must be one.
        """
        self.waiting = True
        # after the mark above: the poller reads both in the other order, so one of the two sees the other
        if self.missed or not self._after_poll:
            self._wakeup.poke()
        elif self.labels is not None and self._after_hit and not self._vain:
            # once in a row, so that it ends
            self._vain = True
            self._passed_over()
        else:
            self._vain = False
        # it may wait several times after one look
        self._after_poll, self._after_hit, self.missed = True, False, False

    def _passed_over(self) -> None:
        """A look by label may have passed over messages, which are for others after the next pass: here or elsewhere."""
        self._wakeup.poke()
        self._wakeup.tell()


class Wakeup:
    """Rings watches when there may be something for them."""

    def __init__(self, conninfo: str, *, prepare: bool = True) -> None:
        self._conninfo = conninfo
        self._prepare = prepare
        self._watches: set[Watch] = set()
        self._poke = Bell()
        self._news = Bell()
        self._untold = self._told = 0
        self._pause = POLL_SECONDS
        self._gap = _GAP_SECONDS
        self._looked = 0.0
        self._closed = False
        self._complained: float | None = None
        self._poller: Background | None = None
        self._listener: Background | None = None
        self._notifier: Background | None = None
        self._side: Connection | None = None
        self._side_pid = 0
        self._side_lock = Mutex()
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
            self._poller = Background(self._poll_for_ever, "trunkline poller")
            self._listener = Background(self._listen_for_ever, "trunkline listener")
        return watch

    def unwatch(self, watch: Watch) -> None:
        self._watches.discard(watch)

    def poke(self) -> None:
        """Poll now."""
        self._poke.ring()

    def speed_up(self) -> None:
        self._gap = _GAP_SECONDS

    def sequence(self, kind: str, name: str) -> None:
        """Give offsets to what was committed for a queue or topic. Calls made at the same time share a pass."""
        self._passes.submit((kind, name))

    def _run_pass(self, wanted: list[tuple[str, str]]) -> list[BaseException | None]:
        queues = sorted({name for kind, name in wanted if kind == "queue"})
        topics = sorted({name for kind, name in wanted if kind != "queue"})
        with self._side_lock:
            try:
                try:
                    calls.sequence(self._open_side(), queues=queues, topics=topics)
                except psycopg.OperationalError:
                    # the connection may have been cut long ago, while nothing used it
                    self._drop_side()
                    calls.sequence(self._open_side(), queues=queues, topics=topics)
            except psycopg.Error as exc:
                raise from_psycopg(exc) from exc
        return [None] * len(wanted)

    # For publishers

    def published(self, kind: str, name: str) -> None:
        """Something was committed: sequence it for our own consumers now, tell the other processes soon."""
        for watch in tuple(self._watches):
            if kind == "inbox":
                hit = watch.kind == "queue" and watch.name == name
            elif watch.kind == "queue":
                hit = watch.sources is None or name in watch.sources
            else:
                hit = watch.name == name
            if hit:
                self._poke.ring()
                break
        self.tell()

    def tell(self) -> None:
        """Let other processes look: something was committed somewhere."""
        self._untold += 1
        self._news.ring()
        if self._notifier is None and not self._closed:
            self._notifier = Background(self._notify_for_ever, "trunkline notifier")

    def tell_all(self) -> None:
        """Something was committed, and it is not known where: poll for all of ours, and let the other processes poll."""
        self._poke.ring()
        self.tell()

    def close(self) -> None:
        self._closed = True
        self._poke.ring()
        self._news.ring()
        for watch in tuple(self._watches):
            watch.ring()
        for loop in (self._notifier, self._poller, self._listener):
            if loop is not None:
                loop.end()
        # what was published last must not wait for somebody's poll
        if self._told < self._untold and not self._hint():
            # the notifier may have been stopped in the middle of a statement; this one has a connection of its own
            self._hint()
        with self._side_lock:
            self._drop_side()

    # The loops

    def _notify_for_ever(self) -> None:
        while True:
            self._news.wait()
            self._news.hush()
            if self._closed:
                return
            if not self._hint():
                sleep(_TURN_SECONDS)
            sleep(NOTIFY_SECONDS)

    def _hint(self) -> bool:
        """Tell the other processes; answers whether that worked. If not, their polls find it."""
        untold = self._untold
        try:
            with self._side_lock:
                calls.notify(self._open_side())
            self._told = untold
        except psycopg.Error as exc:
            log.debug("a wake-up was not sent: %s", exc)
            with self._side_lock:
                self._drop_side()
            return False
        return True

    def _complain(self, exc: psycopg.Error) -> None:
        """A line when the database goes away, and one every half minute as long as it stays away."""
        if self._complained is None or monotonic() - self._complained > COMPLAIN_SECONDS:
            self._complained = monotonic()
            log.warning("the database cannot be asked for messages, trying again: %s", str(exc).partition("\n")[0])

    def _poll_for_ever(self) -> None:
        while not self._closed:
            self._poke.wait(self._pause)
            self._poke.hush()
            waiting = self._waiting()
            if not waiting:
                # the next one to wait asks for a poll
                self._pause = POLL_SECONDS
                continue
            start = monotonic()
            try:
                self._poll(waiting)
            except psycopg.OperationalError as exc:
                self._complain(exc)
                with self._side_lock:
                    self._drop_side()
                sleep(_TURN_SECONDS)
                self._poke.ring()
            except psycopg.Error as exc:
                # a role that may not poll, or a schema of another version: then each consumer looks for itself
                log.warning("consumers look for themselves, because the common poll is refused: %s", exc)
                for watch in waiting:
                    watch.ring()
                self._rest(POLL_SECONDS)
            else:
                self._complained = None
            # a flood of hints never takes more than half of the poller's time
            sleep(max(self._gap, monotonic() - start))

    def _waiting(self) -> list[Watch]:
        """Those who wait. The others may be between an empty look and the wait: they ask again if they come to wait."""
        found = []
        for watch in tuple(self._watches):
            watch.missed = True
            if watch.waiting:
                watch.missed = False
                watch.polled = True
                found.append(watch)
        return found

    def _poll(self, waiting: list[Watch]) -> None:
        with self._side_lock:
            found = calls.poll(
                self._open_side(),
                queues=list({(watch.name, watch.labels) for watch in waiting if watch.kind == "queue"}),
                groups=sorted({(watch.name, watch.group, watch.member) for watch in waiting if watch.kind == "group"}),
                topics=sorted({watch.name for watch in waiting if watch.kind == "topic"}),
            )
        self.polls += 1
        self._slow_down()
        if found.queues or found.groups:
            self.speed_up()
        # a due time is met, however long the pause between two polls; a little later, so that it has passed
        self._pause = POLL_SECONDS if found.seconds is None else min(POLL_SECONDS, max(0.0, found.seconds) + _GAP_SECONDS)
        for watch in waiting:
            if watch.kind == "queue":
                hit = (watch.name, watch.labels) in found.queues
            elif watch.kind == "group":
                hit = (watch.name, watch.group, watch.member) in found.groups
            else:
                length = found.topics.get(watch.name)
                hit = length != watch.length
                watch.length = length
            if hit:
                watch.hit = True
                watch.ring()

    def _slow_down(self) -> None:
        now = monotonic()
        self._gap = min(2 * self._gap, _LONGEST_GAP_SECONDS) if now - self._looked < _ROW_SECONDS else _GAP_SECONDS
        self._looked = now

    def _follow(self) -> None:
        """Something was committed somewhere."""
        self._poke.ring()

    def _listen_for_ever(self) -> None:
        warned = False
        while not self._closed:
            pause = _TURN_SECONDS / 10
            try:
                conn = connect(self._conninfo)
                try:
                    self._listen(conn)
                finally:
                    self.hearing = False
                    conn.close()
                # deaf, as behind a transaction pooler: polling goes on, and once in a while we try again
                if not self._closed:
                    if not warned:
                        log.warning("the listener does not hear its own ping; consumers are woken by polling alone")
                    warned = True
                    pause = PING_SECONDS
            except psycopg.Error as exc:
                log.debug("the listener lost its connection: %s", exc)
            self._poke.ring()
            self._rest(pause)

    def _listen(self, conn: Connection) -> None:
        """Hear until the connection breaks (an error) or is deaf (a return)."""
        calls.listen(conn)
        # what was said while nobody listened: everybody looks once
        self._poke.ring()
        token = str(uuid4())
        asked, heard = monotonic() - PING_SECONDS, monotonic()
        pinged = False
        while not self._closed:
            now = monotonic()
            if pinged and now - asked > PATIENCE_SECONDS and heard < asked:
                return
            if now - asked > PING_SECONDS:
                asked = monotonic()
                pinged = self._ping(token)
            for hint in conn.notifies(timeout=_TURN_SECONDS, stop_after=1):
                if hint.payload == token:
                    heard = monotonic()
                    self.hearing = True
                elif hint.payload == "" and hint.pid != self._side_pid:
                    self._follow()

    def _ping(self, token: str) -> bool:
        try:
            with self._side_lock:
                calls.notify(self._open_side(), token)
        except psycopg.Error:
            with self._side_lock:
                self._drop_side()
            return False
        return True

    def _rest(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self._closed and monotonic() < until:
            sleep(min(_TURN_SECONDS, max(0.0, until - monotonic())))

    # The side connection: hints, pings and polls, so that they never wait for the pool

    def _open_side(self) -> Connection:
        if self._side is None or self._side.closed:
            self._side = connect(self._conninfo, prepare=self._prepare)
            self._side_pid = self._side.info.backend_pid
        return self._side

    def _drop_side(self) -> None:
        if self._side is not None:
            side, self._side = self._side, None
            side.close()
