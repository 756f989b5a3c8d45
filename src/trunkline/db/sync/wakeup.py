# Written by tools/unasync.py from src/trunkline/db/wakeup.py; change that file, not this one.
"""Waking consumers (DESIGN 3.5): one poller and one listener per client, whatever the number of its consumers.

Polling is enough for correctness; everything else only makes it sooner. Publishers of this client ring its consumers
directly. Other processes hear a NOTIFY with an empty payload, sent after the commit on a connection of its own, at most
every few milliseconds. Whoever hears it lets its waiting consumers look for themselves when they are few, and otherwise
asks the database once which of them have something to take. While nothing is found, hints in a row are followed less often.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from uuid import uuid4

import psycopg

from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection, connect
from trunkline.db.threads import Background, Bell, Mutex, log, sleep

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
_FEW = 4
"""So many consumers look for themselves sooner, and for the same cost, than a poll and those whom it finds."""
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
        self.waiting = False
        self.missed = False
        """Whether others were asked for while this one was looking for itself, perhaps too early."""
        self.length: int | None = None
        self._wakeup = wakeup
        self._bell = Bell()
        self._on_ring = on_ring

    def hush(self) -> None:
        self.missed = self.waiting = False
        self._bell.hush()

    def ring(self) -> None:
        self._bell.ring()
        if self._on_ring is not None:
            self._on_ring()

    def found(self) -> None:
        """There was something to take: hints are worth following at once."""
        self._wakeup.speed_up()

    def wait(self, timeout: float | None = None) -> bool:
        """Until there may be something to take; answers whether it was rung."""
        try:
            self.stand_by()
            return self._bell.wait(timeout)
        finally:
            self.waiting = False

    def stand_by(self) -> None:
        """There was nothing to take: be rung when there may be."""
        self.waiting = True
        # after the mark above: the poller looks at both in the other order, so one of us sees the other
        if self.missed:
            self._wakeup.poke()


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

    # For publishers

    def published(self, kind: str, name: str) -> None:
        """Something was committed: ring our own consumers now, tell the other processes soon."""
        for watch in tuple(self._watches):
            if kind == "inbox":
                hit = watch.kind == "queue" and watch.name == name
            elif watch.kind == "queue":
                hit = watch.sources is None or name in watch.sources
            else:
                hit = watch.name == name
            if hit:
                watch.ring()
        self.tell()

    def tell(self) -> None:
        """Let other processes look: something was committed somewhere."""
        self._untold += 1
        self._news.ring()
        if self._notifier is None and not self._closed:
            self._notifier = Background(self._notify_for_ever, "trunkline notifier")

    def tell_all(self) -> None:
        """Something was committed and nobody knows where: all of ours look, and the other processes."""
        for watch in tuple(self._watches):
            watch.ring()
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
                found.append(watch)
        return found

    def _poll(self, waiting: list[Watch]) -> None:
        with self._side_lock:
            found = calls.poll(
                self._open_side(),
                queues=sorted({watch.name for watch in waiting if watch.kind == "queue"}),
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
                hit = watch.name in found.queues
            elif watch.kind == "group":
                hit = (watch.name, watch.group, watch.member) in found.groups
            else:
                length = found.topics.get(watch.name)
                hit = length != watch.length
                watch.length = length
            if hit:
                watch.ring()

    def _slow_down(self) -> None:
        now = monotonic()
        self._gap = min(2 * self._gap, _LONGEST_GAP_SECONDS) if now - self._looked < _ROW_SECONDS else _GAP_SECONDS
        self._looked = now

    def _follow(self) -> None:
        """Something was committed somewhere."""
        waiting = self._waiting() if monotonic() - self._looked >= self._gap else []
        if 0 < len(waiting) <= _FEW:
            self._slow_down()
            for watch in waiting:
                watch.ring()
        else:
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
