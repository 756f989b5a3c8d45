"""Rules of queues (promises Q1 to Q4, Q6, Q7 and Q9): leases, settling, due times, attempts and the sum of states."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.chaos.history import Op
from tests.chaos.log_rules import Logs, fields_of
from tests.chaos.redrives import Life, Redriven, life_of
from tests.chaos.report import Report

# Times go through floats: a microsecond of the database is not exact.
_EPSILON = 1e-5
# A crash may lose a relaxed claim this soon after its response (three rounds of the WAL writer, with a margin).
_FORGETTABLE = 2.0
# Seconds after its start during which a claim without a response may still have taken effect.
_LINGER = 30.0
_RETURNS = ("nack", "release")
_FINAL = ("ack", "bury")


@dataclass(slots=True)
class Settle:
    """One verb on one receipt. `before` and `after` enclose the moment it took effect, by the database's clock."""

    verb: str
    sure: bool
    before: float
    after: float
    seconds: float | None
    proc: str


@dataclass(slots=True)
class Grant:
    """One delivery of one message."""

    value: str
    receipt: str
    attempt: int
    claimed: float
    deadline: float
    place: str
    offset: int
    relaxed: bool
    proc: str
    # when the client had it: its commit was shortly before
    answered: float
    settles: list[Settle] = field(default_factory=list)

    @property
    def lease(self) -> tuple[str, float, str]:
        """Messages that one call returned from one partition."""
        return self.proc, self.claimed, self.place


@dataclass
class Queue:
    """All that clients know of one queue. A message is known by its place: one that was redriven has several."""

    name: str
    grants: dict[Life, list[Grant]] = field(default_factory=lambda: defaultdict(list))
    leases: dict[tuple[str, float, str], list[Grant]] = field(default_factory=lambda: defaultdict(list))
    due: dict[str, float] = field(default_factory=dict)
    # starts of claims without a response, which may have delivered any message
    unknown: list[float] = field(default_factory=list)
    crashes: list[float] = field(default_factory=list)
    # when a publish without a delay had returned
    accepted: dict[str, float] = field(default_factory=dict)
    purges: list[Op] = field(default_factory=list)
    # claims that were rolled back or got no response
    undone: int = 0
    ordered: bool = False
    max_attempts: int = 0
    ttl: float | None = None


def check_queues(logs: Logs, by_call: dict[str, list[Op]], redriven: Redriven, report: Report) -> None:
    queues = _collect(by_call)
    keys = fields_of(by_call["publish"], "routing_key")
    _check_labels(by_call, report)
    for op in by_call["audit"]:
        if op.outcome == "ok":
            _check_sum(op.args["queue"], op.result["audit"], report)
    for final in by_call["final_queue"]:
        queue = queues[final.args["queue"]]
        queue.ordered, queue.max_attempts = final.args["ordered"], final.args["max_attempts"]
        queue.ttl = final.args.get("ttl")
        for grants in queue.grants.values():
            grants.sort(key=lambda g: g.claimed)
            _check_message(queue, grants, report)
            report.totals["queue deliveries"] += len(grants)
        if queue.ordered:
            _check_order(queue, report)
        expected = {
            (f"{target.partition(':')[2] if target.startswith('topic:') else ''}/{partition}", offset): value
            for target, wanted in final.args["feeds"]
            for (log, partition), values in logs.items()
            if log == target
            for offset, value in enumerate(values, 1)
            if wanted is None or keys.get((target, value)) in wanted
        }
        _check_end(queue, expected, final.args["dead"], redriven.lives[queue.name], final.args["audit"], report)


def _collect(by_call: dict[str, list[Op]]) -> dict[str, Queue]:
    queues: dict[str, Queue] = {}

    def queue_of(name: str) -> Queue:
        return queues.setdefault(name, Queue(name))

    grants: dict[str, Grant] = {}
    for op in by_call["final_queue"]:
        queue_of(op.args["queue"]).crashes = sorted(crash.args["after"] for crash in by_call["crash"])
    for op in by_call["claim"]:
        queue = queue_of(op.args["queue"])
        if op.outcome == "info":
            queue.unknown.append(op.start)
        if op.outcome != "ok":
            queue.undone += 1
            continue
        for receipt, attempt, deadline, value, place, offset in op.result["rows"]:
            claimed = deadline - op.args["lease"]
            grant = Grant(value, receipt, attempt, claimed, deadline, place, offset, op.args["relaxed"], op.proc, op.end)
            grants[receipt] = grant
            queue.grants[place, offset].append(grant)
            queue.leases[grant.lease].append(grant)
    for queue in queues.values():
        queue.unknown.sort()
    for op in by_call["settle"]:
        if op.outcome == "fail":
            continue
        sure = op.outcome == "ok"
        answers = op.result["answers"] if sure else ["done"] * len(op.args["receipts"])
        for receipt, answer in zip(op.args["receipts"], answers, strict=True):
            if answer == "done":
                before = op.result["before"] if sure else op.start
                after = op.result["after"] if sure else float("inf")
                grants[receipt].settles.append(Settle(op.args["verb"], sure, before, after, op.args.get("seconds"), op.proc))
    for grant in grants.values():
        grant.settles.sort(key=lambda s: s.before)
    for op in by_call["purge"]:
        if op.outcome != "fail":
            queue_of(op.args["queue"]).purges.append(op)
    for op in by_call["publish"]:
        for part in op.args["parts"]:
            if not part["target"].startswith("queue:"):
                continue
            queue = queue_of(part["target"].removeprefix("queue:"))
            if part.get("delay"):
                begun = op.result.get("before", op.start)
                queue.due.update(dict.fromkeys(part["values"], begun + part["delay"]))
            elif op.outcome == "ok":
                queue.accepted.update(dict.fromkeys(part["values"], op.end))
    return queues


def _check_labels(by_call: dict[str, list[Op]], report: Report) -> None:
    """A claim with labels returns no other labels. Each content is published once, so it has one label."""
    labels = {value: label for (_, value), label in fields_of(by_call["publish"], "label").items()}
    for op in by_call["claim"]:
        if op.outcome != "ok" or "labels" not in op.args:
            continue
        report.totals["deliveries by label"] += len(op.result["rows"])
        for _, _, _, value, _, _ in op.result["rows"]:
            if labels.get(value) not in op.args["labels"]:
                report.add("unexpected", f"{op.proc} asked for {op.args['labels']} and got {value}: {labels.get(value)}")


def _returned(queue: Queue, grant: Grant, verbs: tuple[str, ...] = _RETURNS) -> float:
    """The earliest moment at which the holder may have given the message back; infinite if it did not."""
    moments = [s.before for s in grant.settles if s.verb in verbs]
    if queue.ordered:
        # what is behind a message that goes back goes back with it, without counting
        for other in queue.leases[grant.lease]:
            if other.offset < grant.offset:
                moments += [s.before for s in other.settles if s.verb in _RETURNS]
    return min(moments, default=float("inf"))


def _end_at_earliest(queue: Queue, grant: Grant) -> float:
    """Return the time until which no other consumer may have the message."""
    end = max([grant.deadline, *(s.before + (s.seconds or 0) for s in grant.settles if s.verb == "extend" and s.sure)])
    return min(end, _returned(queue, grant), _forgotten(queue, grant))


def _end_at_latest(grant: Grant) -> float:
    """After this moment the holder can do nothing."""
    return max([grant.deadline, *(s.after + (s.seconds or 0) for s in grant.settles if s.verb == "extend")])


def _forgotten(queue: Queue, grant: Grant) -> float:
    if grant.relaxed:
        at = bisect_left(queue.crashes, grant.claimed)
        if at < len(queue.crashes) and queue.crashes[at] < grant.answered + _FORGETTABLE:
            return queue.crashes[at]
    return float("inf")


def _check_message(queue: Queue, grants: list[Grant], report: Report) -> None:
    who = f"{grants[0].value} of queue {queue.name}"
    due = queue.due.get(grants[0].value)
    if due is not None and grants[0].claimed < due - _EPSILON:
        report.add("early", f"{who} was delivered {due - grants[0].claimed:.6f} s early to {grants[0].proc}")
    _check_removed(queue, who, grants, report)
    for number, grant in enumerate(grants):
        later = grants[number + 1 :]
        _check_settles(who, grant, later, report)
        _check_attempt(queue, who, grant, grants[number - 1] if number else None, report)
        if later:
            _check_next(queue, who, grant, later[0], report)


def _check_removed(queue: Queue, who: str, grants: list[Grant], report: Report) -> None:
    """Not delivered when it is too old, and not when it waited in the queue while that was purged."""
    accepted = queue.accepted.get(grants[0].value)
    if accepted is None:
        return
    if queue.ttl is not None and grants[-1].claimed > accepted + queue.ttl + _EPSILON:
        late = grants[-1].claimed - accepted - queue.ttl
        report.add("after_ttl", f"{who} was delivered {late:.6f} s after its ttl to {grants[-1].proc}")
    for purge in queue.purges:
        # `before` is zero if messages may have had no offset at that time: a purge removes what has one
        begun = min(purge.start, purge.result.get("before", purge.start)) if purge.outcome == "ok" else 0.0
        if not accepted < begun or not purge.result["after"] < grants[0].claimed - _EPSILON:
            continue
        # A claim without a response may have had it at that time.
        if bisect_left(queue.unknown, purge.result["after"]) == bisect_left(queue.unknown, accepted - _LINGER):
            report.add("after_purge", f"{who} was delivered to {grants[0].proc}, though it was purged before")
            return


def _check_settles(who: str, grant: Grant, later: list[Grant], report: Report) -> None:
    over = perhaps_acked = False
    limit = _end_at_latest(grant)
    for settle in grant.settles:
        # A repeated ack returns the result of the first.
        if settle.sure and not (settle.verb == "ack" and perhaps_acked):
            if settle.before > limit + _EPSILON:
                late = settle.before - limit
                report.add("stale_ack", f"{who}: {settle.verb} by {settle.proc} was taken {late:.6f} s after the deadline")
            elif over:
                report.add("stale_ack", f"{who}: {settle.verb} by {settle.proc} was taken after the lease was settled")
            elif any(other.claimed < settle.before - _EPSILON for other in later):
                report.add(
                    "stale_ack",
                    f"{who}: {settle.verb} by {settle.proc} was taken, though {later[0].proc} had the newer lease",
                )
            if settle.verb in _FINAL and any(other.claimed >= settle.before - _EPSILON for other in later):
                report.add("acked_redelivered", f"{who}: {settle.verb} by {settle.proc}, then delivered to {later[-1].proc}")
        over = over or (settle.sure and settle.verb != "extend")
        perhaps_acked = perhaps_acked or settle.verb == "ack"


def _check_next(queue: Queue, who: str, grant: Grant, following: Grant, report: Report) -> None:
    end = _end_at_earliest(queue, grant)
    if following.claimed < end - _EPSILON:
        report.add(
            "double_lease",
            f"{who}: {following.proc} got it {end - following.claimed:.6f} s before the lease of {grant.proc} ended",
        )
    for settle in grant.settles:
        if settle.verb == "nack" and settle.sure and following.claimed < settle.before + (settle.seconds or 0) - _EPSILON:
            report.add(
                "early", f"{who}: back {settle.before + (settle.seconds or 0) - following.claimed:.6f} s early after a nack"
            )


def _check_attempt(queue: Queue, who: str, grant: Grant, previous: Grant | None, report: Report) -> None:
    since = previous.claimed if previous else 0.0
    hidden = bisect_left(queue.unknown, grant.claimed) - bisect_left(queue.unknown, since - _LINGER)
    before = previous.attempt if previous else 0
    uncounted = previous is not None and min(_returned(queue, previous, ("release",)), _forgotten(queue, previous)) < float(
        "inf"
    )
    lowest, highest = before + (not uncounted), before + 1 + hidden
    if not lowest <= grant.attempt <= min(highest, queue.max_attempts):
        report.add(
            "attempts",
            f"{who}: attempt {grant.attempt} for {grant.proc} after attempt {before}, of at most {queue.max_attempts}",
        )


def _check_order(queue: Queue, report: Report) -> None:
    """An ordered queue: one open lease per partition, and messages finished in offset order."""
    partitions: dict[str, list[list[Grant]]] = defaultdict(list)
    for (_, _, place), grants in queue.leases.items():
        partitions[place].append(grants)
    for place, leases in partitions.items():
        leases.sort(key=lambda grants: grants[0].claimed)
        for grants, following in pairwise(leases):
            for grant in grants:
                finished = min((s.before for s in grant.settles if s.verb in _FINAL), default=float("inf"))
                if following[0].claimed < min(finished, _end_at_earliest(queue, grant)) - _EPSILON:
                    report.add(
                        "order", f"queue {queue.name}: a lease of partition {place} while offset {grant.offset} was out"
                    )
        acks = [(s, g.offset) for grants in leases for g in grants for s in g.settles if s.verb == "ack" and s.sure]
        acks.sort(key=lambda ack: ack[0].before)
        newest, highest = float("-inf"), 0
        for settle, offset in acks:
            if offset < highest and settle.before > newest:
                report.add("order", f"queue {queue.name}: offset {offset} of partition {place} finished after {highest}")
            if offset > highest:
                newest, highest = settle.after, offset


def _check_end(
    queue: Queue,
    expected: dict[Life, str],
    dead_rows: list[list[Any]],
    redriven: dict[Life, list[Any]],
    audit: dict[str, int],
    report: Report,
) -> None:
    """After the drain each message is acked, dead, was dead and redriven, expired, or purged: exactly one of these."""
    dead = {life_of(letter): letter for letter in dead_rows}
    if len(dead) < len(dead_rows):
        report.add("duplicate", f"queue {queue.name} has {len(dead_rows)} dead letters of {len(dead)} messages")
    acked = maybe = removed = 0
    for life, value in expected.items():
        settles = [s for g in queue.grants.get(life, ()) for s in g.settles]
        is_acked = any(s.verb == "ack" and s.sure for s in settles)
        may_be = any(s.verb == "ack" for s in settles)
        acked += is_acked
        maybe += may_be and not is_acked
        died = dead.get(life) or redriven.get(life)
        if died:
            if is_acked:
                report.add("conservation", f"{value} of queue {queue.name} is acked and was a dead letter")
            if died[0] != value:
                report.add("divergent", f"{life} of queue {queue.name} is {value}, and died as {died[0]}")
            _check_dead(queue, life, died, report)
        elif any(s.verb == "bury" and s.sure for s in settles):
            report.add("lost", f"{value} of queue {queue.name} was buried and is no dead letter")
        elif not may_be and (queue.ttl is not None or queue.purges):
            removed += 1
        elif not may_be:
            report.add("lost", f"{value} of queue {queue.name} is neither acked nor a dead letter")
    for life, grants in queue.grants.items():
        for value in {grant.value for grant in grants} - {expected.get(life)}:
            report.add("unexpected", f"queue {queue.name} delivered {value} as {life}, which its logs do not have there")
    for life in (dead.keys() | redriven.keys()) - expected.keys():
        report.add("unexpected", f"queue {queue.name} has or had a dead letter {life}, which is not in its logs")
    _check_sum(queue.name, audit, report)
    deaths = len(dead_rows) + len(redriven)
    gone = audit["expired"] + audit["purged"]
    if audit["accepted"] != len(expected) or audit["dead"] != deaths or audit["acked"] + deaths + gone != len(expected):
        report.add("conservation", f"queue {queue.name}: {len(expected)} messages, {deaths} dead letters, and {audit}")
    elif not acked <= audit["acked"] <= acked + maybe:
        report.add("conservation", f"queue {queue.name}: {acked} to {acked + maybe} acks, and {audit}")
    elif not removed <= gone <= removed + maybe:
        report.add("conservation", f"queue {queue.name}: {removed} to {removed + maybe} expired or purged, and {audit}")
    _check_counts(queue, audit, report)
    report.totals["queue messages"] += len(expected)
    report.totals["dead letters"] += len(dead_rows)


def _check_counts(queue: Queue, audit: dict[str, int], report: Report) -> None:
    """Nothing expires without a ttl; purged is what the purges returned, and what claims drew that were rolled back."""
    answered = sum(purge.result["count"] for purge in queue.purges if purge.outcome == "ok")
    sure = all(purge.outcome == "ok" for purge in queue.purges) and not (queue.purges and queue.undone)
    if audit["purged"] < answered or (sure and audit["purged"] > answered):
        report.add("conservation", f"queue {queue.name}: purges answered {answered}, and {audit}")
    if queue.ttl is None and audit["expired"]:
        report.add("conservation", f"queue {queue.name} has no ttl, and {audit}")
    report.totals["expired"] += audit["expired"]
    report.totals["purged"] += audit["purged"]


def _check_dead(queue: Queue, life: Life, letter: list[Any], report: Report) -> None:
    value, attempts, reason, *_ = letter
    grants = queue.grants.get(life, [])
    buried = [g.attempt for g in grants for s in g.settles if s.verb == "bury"]
    right = attempts in buried if reason == "buried" else attempts == queue.max_attempts
    if not right or any(g.attempt > attempts for g in grants):
        tries = [g.attempt for g in grants]
        report.add(
            "attempts", f"{value} of queue {queue.name} is dead ({reason}) with {attempts} attempts; delivered as {tries}"
        )


def _check_sum(name: str, audit: dict[str, int], report: Report) -> None:
    states = sum(audit[state] for state in ("ready", "pending", "leased", "acked", "dead", "expired", "purged"))
    if states != audit["accepted"]:
        report.add("conservation", f"queue {name}: the states add up to {states}, in {audit}")
    report.totals["audits"] += 1
