"""Directed scripts: each takes the steps between which a bug would show, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.chaos.nemesis import crash
from tests.chaos.operators import purge, seek
from tests.chaos.planted import (
    Background,
    Change,
    Claim,
    Publish,
    World,
    commit,
    enqueue,
    fetch,
    finish_group,
    finish_queue,
    publish,
)
from tests.chaos.redrives import redrive
from tests.chaos.session import Session
from tests.chaos.workloads import SEGMENT_ROWS
from trunkline.embedded.server import EmbeddedServer


def late_transaction_id(world: World) -> None:
    """A publisher that has its row id and nothing else is stopped, while its segment is filled and sealed."""
    main, slow = world.main, world.session("slow")
    drawn = "p_keys, p_priorities);\n"
    world.change(
        Change(
            "topic_1_append", drawn, f"{drawn} if p_payloads[1] = 'slow' then perform pg_advisory_xact_lock(1); end if;\n"
        )
    )
    main.connect().execute("select pg_advisory_lock(1)")
    # the first draw of a sequence is logged and takes a transaction id along; the next ones do not
    publish(main, "first")
    call = Background(lambda: publish(slow, "slow"))
    assert waiting(main, 10)
    for number in range(SEGMENT_ROWS // 1000 + 1):
        publish(main, *(f"more{number}.{i}" for i in range(1000)))
    for _ in range(3):
        main.rows("select trunkline.run_upkeep('segments')")
    main.connect().execute("select pg_advisory_unlock(1)")
    call.join()
    end_of_log(world)


def slow_publisher(world: World) -> None:
    """A transaction stays open while the log grows, and then commits."""
    slow = Publish(world.session("slow"), ["slow"])
    go_on(world)
    slow.commit()
    end_of_log(world)


def publisher_that_commits_last(world: World) -> None:
    """Nothing is published after it: the log must be scanned because it was open at the scan before."""
    publish(world.main, "first")
    slow = Publish(world.session("slow"), ["slow"])
    for _ in range(3):
        world.main.read("t", 0, 1, 1000)
    slow.commit()
    world.main.read("t", 0, 1, 1000, ["slow"])
    end_of_log(world)


def publisher_that_sequences_itself(world: World) -> None:
    """Without a service, a reader assigns offsets, also in a transaction that publishes before and after reading."""
    slow = Publish(world.session("slow"), ["one", "two"], send=["one"])
    late = world.session("late")
    op = late.recorder.invoke("publish", parts=[{"target": "topic:t", "values": ["late"]}])
    late.connect().execute("begin")
    late.rows("select pg_current_xact_id()::text")
    publish(world.main, "between")
    slow.session.rows("select trunkline.run_pass(null, array['t'])")
    slow.add(["two"])
    slow.commit()
    late.rows("select trunkline.run_pass(null, array['t'])")
    late.rows("select count(*) from trunkline.publish_many('t', %s)", ([b"late"],))
    late.connect().execute("commit")
    late.recorder.done(op, "ok")
    end_of_log(world)


def newest_open_transaction(world: World) -> None:
    """The open transaction has a higher number than every finished one at the scan before it commits."""
    for turn in range(5):
        early, late = world.session(f"early{turn}"), world.session(f"late{turn}")
        op = early.recorder.invoke("publish", parts=[{"target": "topic:t", "values": [f"early{turn}"]}])
        early.connect().execute("begin")
        early.rows("select pg_current_xact_id()::text")
        open_one = Publish(late, [f"late{turn}"])
        early.rows("select count(*) from trunkline.publish_many('t', %s)", ([f"early{turn}".encode()],))
        early.connect().execute("commit")
        early.recorder.done(op, "ok")
        world.main.read("t", 0, 1, 1000)
        open_one.commit()
        go_on(world, f"turn{turn}.")
    end_of_log(world)


def go_on(world: World, prefix: str = "more") -> None:
    other = world.session(f"other.{prefix}")
    for number in range(4):
        publish(other, f"{prefix}{number}")
        world.main.read("t", 0, 1, 1000)


def end_of_log(world: World) -> None:
    """One more message, so that a last tick is cut; then the group reads everything."""
    publish(world.session("end"), "end")
    world.main.read("t", 0, 1, 1000)
    finish_group(world)


def reader_beside_a_long_look(world: World) -> None:
    """Another session is sequencing while a publisher reads the message it has just published."""
    holder = world.session("holder")
    publish(world.main, "first")
    holder.connect().execute("begin")
    holder.rows("select trunkline.run_pass(null, array['t'])")
    publish(world.main, "mine")
    reading = Background(lambda: world.main.read("t", 0, 1, 1000, ["mine"]))
    time.sleep(0.1)
    holder.connect().execute("commit")
    reading.join()
    end_of_log(world)


def publisher_between_two_looks(world: World) -> None:
    """A transaction with an old and a new row id commits while the log is being sequenced."""
    reader, slow = world.session("reader"), world.session("slow")
    both = Publish(slow, ["old", "new"], send=["old"])
    publish(world.main, "between")
    world.main.read("t", 0, 1, 1000)
    both.add(["new"])
    publish(world.main, "another")
    holder = world.session("holder")
    holder.connect().execute("select pg_advisory_lock(2)")
    reading = Background(lambda: reader.read("t", 0, 1, 1000))
    waiting(world.main, 1.0)
    both.commit()
    holder.connect().execute("select pg_advisory_unlock(2)")
    reading.join()
    end_of_log(world)


def enqueued_during_a_scan(world: World) -> None:
    """A message is committed to the store while it is being scanned, and another one by a transaction that is older."""
    slow = Publish(world.session("slow"), ["slow"], target="queue:q")
    enqueue(world.main, "first")
    holder, scanner = world.session("holder"), world.session("scanner")
    holder.connect().execute("select pg_advisory_lock(2)")
    scanning = Background(lambda: scanner.connect().execute("select trunkline.run_upkeep('sequence')"))
    waiting(world.main, 1.0)
    enqueue(world.main, "during")
    slow.commit()
    holder.connect().execute("select pg_advisory_unlock(2)")
    scanning.join()
    finish_queue(world)


def enqueued_last(world: World) -> None:
    """Nothing comes after it: the store must be scanned because a publisher was open at the scan before."""
    enqueue(world.main, "first")
    slow = Publish(world.session("slow"), ["slow"], target="queue:q")
    world.main.rows("select trunkline.run_upkeep('sequence')")
    slow.commit()
    finish_queue(world)


def enqueued_around_an_own_scan(world: World) -> None:
    """A transaction enqueues, gives the offsets itself, and enqueues again."""
    own = Publish(world.session("own"), ["one", "two", "three"], send=["one"], target="queue:q")
    for value in ("two", "three"):
        own.session.rows("select trunkline.run_pass('{q}', '{}')")
        own.add([value])
    own.commit()
    enqueue(world.main, "later")
    finish_queue(world)


def segment_of_the_store_ends(world: World) -> None:
    """One message is done, one is leased, one was sent back, one was never delivered; their segment is emptied."""
    main = world.main
    enqueue(main, "a", "b", "c", "d")
    rows = main.claim("q", 3, 60.0)
    assert rows
    main.settle("ack", [rows[0][0]])
    main.settle("nack", [rows[1][0]])
    for _ in range(3):
        world.advance(5)
        main.rows("select trunkline.run_upkeep('segments')")
    enqueue(main, "e")
    for _ in range(4):
        world.advance(5)
        main.rows("select trunkline.run_upkeep('retention')")
    world.advance(60)
    finish_queue(world)


def late_ack(world: World) -> None:
    """The lease expires before the ack; no other consumer has claimed the message yet."""
    enqueue(world.main, "a")
    rows = world.main.claim("q", 1, 1.0)
    assert rows
    world.advance(2)
    world.main.settle("ack", [rows[0][0]])
    finish_queue(world)


def ack_at_the_deadline(world: World) -> None:
    """The ack is in time, in a transaction that is still open when the lease expires and another consumer claims."""
    one, two = world.session("one"), world.session("two")
    enqueue(world.main, "a")
    rows = one.claim("q", 1, 1.0)
    assert rows
    receipts = [rows[0][0]]
    op = one.recorder.invoke("settle", verb="ack", receipts=receipts, seconds=None)
    one.connect().execute("begin")
    before, answer = one.rows(
        "select extract(epoch from trunkline.clock())::float8, (select result from trunkline.ack(%s))", (receipts,)
    )[0]
    world.advance(2)
    # expiry without the lock on the lease would wait for the key of the settle
    asking = Background(lambda: two.claim("q", 1, 1.0))
    blocked(world.main, 0.5)
    one.connect().execute("commit")
    one.recorder.done(op, "ok", before=before, answers=[answer], after=before)
    asking.join()
    world.advance(2)
    finish_queue(world)


def nack_after_ack(world: World) -> None:
    enqueue(world.main, "a", "b")
    rows = world.main.claim("q", 2, 10.0)
    assert rows
    receipts = [row[0] for row in rows]
    world.main.settle("ack", receipts)
    world.main.settle("nack", receipts, seconds=0.0, delay=0.0)
    finish_queue(world)


def lease_that_ends(world: World) -> None:
    enqueue(world.main, "a")
    world.main.claim("q", 1, 1.0)
    world.advance(2)
    finish_queue(world)


def nack_with_delay(world: World) -> None:
    enqueue(world.main, "a")
    rows = world.main.claim("q", 1, 10.0)
    assert rows
    world.main.settle("nack", [rows[0][0]], seconds=5.0, delay=5.0)
    finish_queue(world)
    world.advance(6)
    finish_queue(world)


def two_consumers(world: World) -> None:
    enqueue(world.main, "a", "b", "c")
    for name in ("one", "two"):
        world.session(name).claim("q", 2, 10.0)
    world.advance(11)
    finish_queue(world)


def buried_message(world: World) -> None:
    enqueue(world.main, "a", "b")
    rows = world.main.claim("q", 2, 10.0)
    assert rows
    world.main.settle("bury", [rows[0][0]])
    world.main.settle("ack", [rows[1][0]])
    world.advance(2)
    world.main.rows("select trunkline.run_upkeep('pass')")
    finish_queue(world)


def claim_by_label(world: World) -> None:
    """A claim skips messages with other labels; claims for those labels or for all labels return them."""
    enqueue(world.main, "a", "b", label="mail")
    enqueue(world.main, "c", label="pdf")
    rows = world.main.claim("q", 10, 10.0, labels=["pdf"])
    assert rows
    world.main.settle("ack", [row[0] for row in rows])
    finish_queue(world)


def redrive_of_buried_messages(world: World) -> None:
    enqueue(world.main, "a", "b", "c")
    rows = world.main.claim("q", 3, 10.0)
    assert rows
    world.main.settle("bury", [row[0] for row in rows])
    redrive(world.session("undecided"), "q", limit=2, keep=False)
    redrive(world.session("one"), "q", limit=2)
    finish_queue(world)


def former_owner(world: World) -> None:
    """The lease on the partition ended, another member took it, and the first one commits."""
    one, two = world.session("one"), world.session("two")
    publish(world.main, "a", "b", "c")
    batch = fetch(one)
    world.advance(2)
    fetch(two)
    commit(one, batch, 3)
    finish_group(world)


def commit_of_less(world: World) -> None:
    one = world.session("one")
    publish(world.main, "a", "b", "c")
    batch = fetch(one)
    commit(one, batch, 3)
    commit(one, batch, 1)
    finish_group(world)


def repeated_publish(world: World) -> None:
    """The same message with the same key: the publisher did not receive the first response."""
    op = world.main.recorder.invoke("publish", parts=[{"target": "topic:t", "values": ["a"]}])
    for _ in range(2):
        world.main.rows("select count(*) from trunkline.publish_many('t', %s, p_idempotency_keys => %s)", ([b"a"], ["key"]))
    world.main.recorder.done(op, "ok")
    finish_group(world)


def next_in_line(world: World) -> None:
    """A second consumer asks for the partition of an ordered queue while the first one has it."""
    one, two = world.session("one"), world.session("two")
    enqueue(world.main, "a", "b")
    first = one.claim("q", 1, 5.0)
    second = two.claim("q", 1, 5.0)
    assert first
    for session, rows in ((two, second), (one, first)):
        if rows:
            session.settle("ack", [rows[0][0]])
    finish_queue(world)


def commit_after_a_seek(world: World) -> None:
    """The group is sought back while a member has a batch; then the member commits it."""
    one = world.session("one")
    publish(world.main, "a", "b", "c")
    batch = fetch(one)
    commit(one, batch, 2)
    seek(world.main, "t", "g", 0, 1)
    commit(one, batch, 3)
    finish_group(world)


def filtered_batch_of_a_dead_member(world: World) -> None:
    """Two messages of a filtered group are fetched and not committed; the next member must get them."""
    for value, key in (("a", "no"), ("b", "yes"), ("c", "no"), ("d", "yes"), ("e", "no")):
        publish(world.main, value, routing_key=key)
    fetch(world.session("one"))
    publish(world.main, "f", routing_key="yes")
    finish_group(world)


def purge_of_new_and_nacked(world: World) -> None:
    enqueue(world.main, "a", "b", "c")
    rows = world.main.claim("q", 1, 1.0)
    assert rows
    world.main.settle("nack", [rows[0][0]], seconds=0.0, delay=0.0)
    purge(world.main, "q")
    finish_queue(world)


def message_past_its_ttl(world: World) -> None:
    enqueue(world.main, "a", "b")
    world.advance(10)
    finish_queue(world)


def claim_beside_passes(world: World) -> None:
    """A claim stays open while passes check its drawn positions.

    It commits, and no other consumer gets its messages.
    """
    one, two = world.session("one"), world.session("two")
    enqueue(world.main, "a", "b")
    world.sequence()
    claim = Claim(one)
    world.passes(5)
    rest = two.claim("q", 10, 10.0)
    claim.commit()
    one.settle("ack", claim.receipts)
    if rest:
        two.settle("ack", [row[0] for row in rest])
    finish_queue(world)


def claim_of_its_own_offsets_beside_passes(world: World) -> None:
    """The same, and the offsets are given by the claim itself: passes see a cursor that is ahead of its log."""
    one, two = world.session("one"), world.session("two")
    enqueue(world.main, "a", "b", "c")
    # a pass runs just then, or the claim would run one itself and keep all others away
    two.connect().execute("select pg_advisory_lock(778001, 0)")
    claim = Claim(one, 2)
    two.connect().execute("select pg_advisory_unlock(778001, 0)")
    world.passes(5)
    claim.commit()
    rest = two.claim("q", 10, 10.0)
    one.settle("ack", claim.receipts)
    if rest:
        two.settle("ack", [row[0] for row in rest])
    finish_queue(world)


def claim_that_is_rolled_back(world: World) -> None:
    """The messages it drew are delivered to another consumer, once and with the same attempt."""
    enqueue(world.main, "a", "b", "c")
    world.sequence()
    Claim(world.session("one"), 2).rollback()
    finish_queue(world)
    world.passes(4)
    finish_queue(world)


def claim_that_is_frozen_after_its_draw(world: World) -> None:
    """Passes check the draw of a session whose mark is not visible yet; then the session continues."""
    world.change(freeze_at("claim", "if v_written then"))
    holder, slow, two = world.session("holder"), world.session("slow"), world.session("two")
    enqueue(world.main, "a")
    world.sequence()
    holder.connect().execute("select pg_advisory_lock(3)")
    call = freeze(world, slow, lambda: slow.claim("q", 1, 10.0))
    world.passes(4)
    rows = two.claim("q", 1, 10.0)
    holder.connect().execute("select pg_advisory_unlock(3)")
    call.join()
    if rows:
        two.settle("ack", [rows[0][0]])
    world.advance(11)
    finish_queue(world)


def claim_that_draws_during_a_pass(world: World) -> None:
    """It has the epoch of the pass that reads its draw; the next pass is one too early to judge it."""
    world.change(freeze_at("claim", "if v_written then"), freeze_at("_pass", "p.own := pg_current_xact_id();"))
    holder, slow, two, upkeep = (world.session(name) for name in ("holder", "slow", "two", "upkeep"))
    enqueue(world.main, "a", "b")
    world.sequence()
    # something to do for the pass
    first = two.claim("q", 1, 10.0)
    assert first
    holder.connect().execute("select pg_advisory_lock(3)")
    passing = freeze(world, upkeep, lambda: upkeep.rows("select trunkline.run_upkeep('pass')"))
    holder.connect().execute("select pg_advisory_lock(4)")
    slow.connect().execute("set trunkline.frozen_by = '4'")
    claiming = freeze(world, slow, lambda: slow.claim("q", 1, 10.0), waiters=2)
    holder.connect().execute("select pg_advisory_unlock(3)")
    passing.join()
    world.passes(1)
    rows = two.claim("q", 1, 10.0)
    holder.connect().execute("select pg_advisory_unlock(4)")
    claiming.join()
    two.settle("ack", [row[0] for row in first + (rows or [])])
    world.advance(11)
    finish_queue(world)


def commit_between_leases_and_marks(world: World) -> None:
    """A claim commits after a pass has read the leases and before it reads the marks."""
    world.change(freeze_at("_judge", "v_marked := trunkline._marked("))
    holder, one, two, upkeep = (world.session(name) for name in ("holder", "one", "two", "upkeep"))
    enqueue(world.main, "a")
    world.sequence()
    claim = Claim(one)
    world.passes(2)
    holder.connect().execute("select pg_advisory_lock(3)")
    passing = freeze(world, upkeep, lambda: upkeep.rows("select trunkline.run_upkeep('pass')"))
    claim.commit()
    holder.connect().execute("select pg_advisory_unlock(3)")
    passing.join()
    rows = two.claim("q", 1, 10.0)
    one.settle("ack", claim.receipts)
    if rows:
        two.settle("ack", [rows[0][0]])
    finish_queue(world)


def draws_at_once(world: World) -> None:
    """A session stops between reading a position and moving it, while another one claims."""
    world.change(freeze_at("claim", "v_last := case when v_prev < v_upto"))
    holder, slow, two = world.session("holder"), world.session("slow"), world.session("two")
    enqueue(world.main, "a", "b")
    world.sequence()
    holder.connect().execute("select pg_advisory_lock(3)")
    claiming = freeze(world, slow, lambda: slow.claim("q", 1, 10.0))
    beside = Background(lambda: two.claim("q", 1, 10.0))
    blocked(world.main, 0.5, waiters=2)
    holder.connect().execute("select pg_advisory_unlock(3)")
    claiming.join()
    beside.join()
    world.advance(11)
    finish_queue(world)


def claim_that_commits_after_its_deadline(world: World) -> None:
    """Passes have processed past the deadline by then; the consumer dies, and the message must be redelivered."""
    one = world.session("one")
    enqueue(world.main, "a", "b")
    world.sequence()
    claim = Claim(one, lease=1.0)
    world.advance(5)
    rows = world.main.claim("q", 1, 10.0)
    assert rows
    world.main.settle("ack", [rows[0][0]])
    world.passes(4)
    claim.commit()
    world.advance(5)
    finish_queue(world)


def nack_that_commits_late(world: World) -> None:
    """Transactions with higher numbers have finished, and passes have seen them, when the nack commits."""
    one = world.session("one")
    enqueue(world.main, "a", "b")
    world.sequence()
    rows = one.claim("q", 1, 10.0)
    assert rows
    receipts = [rows[0][0]]
    op = one.recorder.invoke("settle", verb="nack", receipts=receipts, seconds=0.0)
    one.connect().execute("begin")
    before, answer = one.rows(
        "select extract(epoch from trunkline.clock())::float8, (select result from trunkline.nack(%s, '0'))", (receipts,)
    )[0]
    go_past(world)
    one.connect().execute("commit")
    one.recorder.done(op, "ok", before=before, answers=[answer], after=before)
    world.advance(11)
    finish_queue(world)


def claim_that_commits_late(world: World) -> None:
    """The same for a claim, whose consumer dies."""
    enqueue(world.main, "a", "b")
    world.sequence()
    claim = Claim(world.session("one"))
    go_past(world)
    claim.commit()
    world.advance(11)
    finish_queue(world)


def go_past(world: World) -> None:
    rows = world.main.claim("q", 1, 10.0)
    assert rows
    world.main.settle("ack", [rows[0][0]])
    world.passes(4)


def purge_after_a_rolled_back_claim(world: World) -> None:
    """A pass must find the positions that the claim drew; they are purged with the rest."""
    enqueue(world.main, "a", "b", "c")
    world.sequence()
    # only the passes of the script run
    world.main.connect().execute("update trunkline.settings set value = '1 hour' where name = 'sequence_alone_after'")
    world.passes(1)
    Claim(world.session("one"), 2).rollback()
    purge(world.main, "q")
    world.passes(4)
    finish_queue(world)


def purge_beside_a_pass(world: World) -> None:
    """The pass has returned a message and is not committed: the purge takes that message as well."""
    enqueue(world.main, "a", "b")
    rows = world.main.claim("q", 1, 10.0)
    assert rows
    world.main.settle("nack", [rows[0][0]], seconds=0.0, delay=0.0)
    other = world.session("other")
    other.connect().execute("begin")
    other.rows("select trunkline.run_upkeep('pass')")
    purge(world.main, "q")
    other.connect().execute("commit")
    finish_queue(world)


def nack_after_a_purge(world: World) -> None:
    enqueue(world.main, "a")
    purge(world.main, "q")
    enqueue(world.main, "b")
    rows = world.main.claim("q", 1, 10.0)
    assert rows
    world.main.settle("nack", [rows[0][0]], seconds=0.0, delay=0.0)
    finish_queue(world)


def claim_of_a_subscription_that_is_rolled_back(world: World) -> None:
    """It drew what does not match, too."""
    for value, key in (("a", "no"), ("b", "yes"), ("c", "no"), ("d", "yes"), ("e", "no")):
        publish(world.main, value, routing_key=key)
    world.sequence()
    Claim(world.session("one"), 10).rollback()
    finish_queue(world)


def rotations_after_an_ack(world: World) -> None:
    """The partition of a lease is emptied before two passes have seen its draw."""
    world.main.connect().execute("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    enqueue(world.main, "a", "b")
    world.sequence()
    rows = world.main.claim("q", 1, 10.0)
    assert rows
    world.main.settle("ack", [rows[0][0]])
    for _ in range(6):
        world.main.rows("select trunkline._rotate()")
    finish_queue(world)


def rotations_of_an_open_lease(world: World) -> None:
    """A lease is carried from partition to partition until it ends."""
    world.main.connect().execute("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    one, two = world.session("one"), world.session("two")
    enqueue(world.main, "a", "b")
    world.sequence()
    for session in (one, two):
        assert session.claim("q", 1, 10.0)
    world.passes(4)
    for _ in range(6):
        world.main.rows("select trunkline._rotate()")
    world.advance(11)
    finish_queue(world)


def nack_after_a_while(world: World) -> None:
    enqueue(world.main, "a")
    rows = world.main.claim("q", 1, 10.0)
    assert rows
    world.main.settle("nack", [rows[0][0]], seconds=0.0, delay=0.0)
    world.passes(3)
    finish_queue(world)
    world.passes(3)
    finish_queue(world)


# A session that says by whom it is frozen waits for that advisory lock; the others do not.
_IF_FROZEN = (
    "if coalesce(nullif(current_setting('trunkline.frozen_by', true), ''), '0') <> '0' then"
    " perform pg_advisory_xact_lock_shared(current_setting('trunkline.frozen_by')::bigint); end if;"
)


def freeze_at(function: str, place: str) -> Change:
    return Change(function, place, f"{_IF_FROZEN} {place}")


def freeze(world: World, session: Session, call: Callable[[], object], waiters: int = 1) -> Background:
    """Start a call, and return when it waits at the place that the script has prepared."""
    conn = session.connect()
    if not conn.execute("select current_setting('trunkline.frozen_by', true)").fetchall()[0][0]:
        conn.execute("set trunkline.frozen_by = '3'")
    background = Background(call)
    assert blocked(world.main, 10, waiters=waiters)
    return background


def blocked(session: Session, seconds: float, waiters: int = 1) -> bool:
    """Return true if this many sessions wait for a lock before the time is up."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if session.rows("select count(distinct pid) from pg_locks where not granted")[0][0] >= waiters:
            return True
        time.sleep(0.01)
    return False


def waiting(session: Session, seconds: float) -> bool:
    """Return true if a session waits for an advisory lock before the time is up."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if session.rows("select exists (select from pg_locks where locktype = 'advisory' and not granted)")[0][0]:
            return True
        time.sleep(0.01)
    return False


def crash_now(server: EmbeddedServer, world: World) -> None:
    crash(server, world.main.recorder)
    world.main.drop()


def crash_after_a_read(server: EmbeddedServer, world: World) -> None:
    """A reader saw an offset; the publisher of a lower row id committed meanwhile; then the power goes."""
    reader, early = world.session("reader"), world.session("early")
    open_one = Publish(early, ["early"])
    publish(world.main, "late")
    op = reader.recorder.invoke("read", target="topic:t", partition=0, first=1, limit=10)
    reader.connect().execute("begin")
    reader.rows("select trunkline.run_pass(null, array['t'])")
    rows = reader.rows("select log_offset, convert_from(payload, 'UTF8') from trunkline.read('t', 0, 1, 10)")
    open_one.commit()
    reader.connect().execute("commit")
    reader.recorder.done(op, "ok", rows=[list(row) for row in rows])
    crash_now(server, world)
    world.main.read("t", 0, 1, 10)
    last = world.session("last")
    while (batch := fetch(last))["rows"]:
        commit(last, batch, batch["rows"][-1][0])


def crash_after_a_relaxed_claim(server: EmbeddedServer, world: World) -> None:
    """The crash forgets a claim; its receipt has the number of the next lease, but not its token."""
    one, two = world.session("one"), world.session("two")
    enqueue(world.main, "a")
    # or the claim would give the offset, and be committed durably for that
    world.sequence()
    old = one.claim("q", 1, 5.0, relaxed=True)
    assert old
    crash_now(server, world)
    one.drop()
    new = two.claim("q", 1, 5.0)
    assert new
    one.settle("ack", [old[0][0]])
    two.settle("ack", [new[0][0]])


def delay(session: Session, *values: str, seconds: float = 5.0) -> Publish:
    """A transaction with delayed messages, which stays open until `commit`."""
    return Publish(session, values, target="queue:q", delay=seconds)


def delayed_message_that_commits_late(world: World) -> None:
    """Passes have gone beyond its due time by then."""
    slow = delay(world.session("slow"), "slow")
    delay(world.main, "other").commit()
    world.passes(2)
    world.advance(6)
    world.passes(2)
    slow.commit()
    world.passes(2)
    finish_queue(world)


def delayed_messages_one_after_the_other(world: World) -> None:
    for number in range(3):
        delay(world.main, f"m{number}", seconds=5.0 + number).commit()
    world.passes(1)
    for _ in range(4):
        world.advance(4)
        world.passes(2)
        finish_queue(world)


def delayed_message_during_rotations(world: World) -> None:
    """No pass has seen it when its partition is emptied."""
    main = world.main
    main.connect().execute("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    delay(main, "waits").commit()
    for _ in range(12):
        main.connect().execute("update trunkline.delayed_rotation set carried_bytes = 0")
        main.rows("select trunkline._upkeep_delayed()")
    world.passes(2)
    world.advance(6)
    world.passes(2)
    finish_queue(world)


def delayed_message_beside_a_purge(world: World) -> None:
    """Its transaction began before the purge and commits after it."""
    slow = delay(world.session("slow"), "slow")
    purge(world.main, "q")
    slow.commit()
    world.passes(2)
    world.advance(6)
    world.passes(2)
    finish_queue(world)
