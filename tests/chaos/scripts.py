"""Directed scripts: each takes the steps between which a bug would show, and nothing else."""

from __future__ import annotations

import time

from tests.chaos.nemesis import crash
from tests.chaos.operators import purge, seek
from tests.chaos.planted import Background, Publish, World, commit, enqueue, fetch, finish_group, finish_queue, publish
from tests.chaos.redrives import redrive
from tests.chaos.session import Session
from trunkline.db.embedded import EmbeddedServer


def late_transaction_id(world: World) -> None:
    """A publisher that has its row id and nothing else waits in a trigger, while the log goes on without it."""
    main, slow = world.main, world.session("slow")
    conn = main.connect()
    conn.execute(
        "create function public.wait_here() returns trigger language plpgsql as"
        " $$ begin if new.payload = 'slow' then perform pg_advisory_xact_lock(1); end if; return new; end $$"
    )
    conn.execute(
        "create trigger wait_here before insert on trunkline.topic_1 for each row execute function public.wait_here()"
    )
    conn.execute("select pg_advisory_lock(1)")
    # the first draw of a sequence is logged and takes a transaction id along; the next ones do not
    publish(main, "first")
    call = Background(lambda: publish(slow, "slow"))
    assert waiting(main, 10)
    go_on(world)
    conn.execute("select pg_advisory_unlock(1)")
    call.join()
    end_of_log(world)


def slow_publisher(world: World) -> None:
    """A transaction stays open while the log goes on; then it commits."""
    slow = Publish(world.session("slow"), ["slow"])
    go_on(world)
    slow.commit()
    end_of_log(world)


def newest_open_transaction(world: World) -> None:
    """The open transaction has a higher number than every finished one when the gap is noticed."""
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
        go_on(world, f"turn{turn}.")
        open_one.commit()
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
    """Somebody else is sequencing when a publisher reads what it has just published."""
    holder = world.session("holder")
    publish(world.main, "first")
    holder.connect().execute("begin")
    holder.head("t", 0)
    publish(world.main, "mine")
    reading = Background(lambda: world.main.read("t", 0, 1, 1000, ["mine"]))
    time.sleep(0.3)
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
    holder = world.session("holder")
    holder.connect().execute("select pg_advisory_lock(2)")
    reading = Background(lambda: reader.read("t", 0, 1, 1000))
    waiting(world.main, 1.0)
    both.commit()
    holder.connect().execute("select pg_advisory_unlock(2)")
    reading.join()
    end_of_log(world)


def late_ack(world: World) -> None:
    """The lease has ended before the ack comes; nobody else has the message yet."""
    enqueue(world.main, "a")
    rows = world.main.claim("q", 1, 1.0)
    assert rows
    world.advance(2)
    world.main.settle("ack", [rows[0][0]])
    finish_queue(world)


def ack_at_the_deadline(world: World) -> None:
    """The ack is made in time, in a transaction that is still open when the lease ends and somebody else asks."""
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
    two.claim("q", 1, 1.0)
    one.connect().execute("commit")
    one.recorder.done(op, "ok", before=before, answers=[answer], after=before)
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
        rows = world.session(name).claim("q", 2, 10.0)
        assert rows
    world.advance(11)
    finish_queue(world)


def buried_message(world: World) -> None:
    enqueue(world.main, "a", "b")
    rows = world.main.claim("q", 2, 10.0)
    assert rows
    world.main.settle("bury", [rows[0][0]])
    world.main.settle("ack", [rows[1][0]])
    world.advance(2)
    world.main.rows("select trunkline.run_upkeep('expire')")
    finish_queue(world)


def claim_by_label(world: World) -> None:
    """Messages of another label are passed over, and come to who asks for them or for all."""
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
    """The same message with the same key: the publisher did not hear the first answer."""
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


def waiting(session: Session, seconds: float) -> bool:
    """Whether somebody waits for an advisory lock before the time is over."""
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
    world.main.rows("select sum(ready) from trunkline.queue_stats('q')")
    old = one.claim("q", 1, 5.0, relaxed=True)
    assert old
    crash_now(server, world)
    one.drop()
    new = two.claim("q", 1, 5.0)
    assert new
    one.settle("ack", [old[0][0]])
    two.settle("ack", [new[0][0]])
