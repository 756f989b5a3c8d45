"""Cost of ten subscriptions for a publisher: a topic with five groups and five queues, compared with one without."""

from __future__ import annotations

from bench import pgbench
from bench.lab import Lab
from bench.peers import ours
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Row, at_least, compare

_PAYLOAD = 300


def run(lab: Lab, plan: Plan) -> list[Row]:
    read, alone = ours.make_topic(lab, "fanout-ten"), ours.make_topic(lab, "fanout-none")
    for number in range(5):
        lab.conn.execute("select trunkline.create_group('fanout-ten', %s)", (f"group-{number}",))
        lab.conn.execute("select trunkline.create_queue(%s)", (f"fanout-{number}",))
        lab.conn.execute("select trunkline.subscribe(%s, 'fanout-ten')", (f"fanout-{number}",))

    def rate(number: int) -> float:
        lab.calm()
        script = ours.publish_script(number)
        return pgbench.rate(lab.tcp_url, script, clients=plan.publishers, seconds=plan.seconds, payload=_PAYLOAD)

    # Twice the rounds, because the limit of 3 % is below the noise of a single round.
    measured = interleave(
        "fanout_cost",
        "msg/s",
        {"ten subscriptions": lambda: rate(read), "no subscription": lambda: rate(alone)},
        rounds=2 * plan.rounds,
    )
    lab.conn.execute("select trunkline.delete_topic('fanout-ten', p_force => true)")
    lab.conn.execute("select trunkline.delete_topic('fanout-none')")
    for number in range(5):
        lab.conn.execute("select trunkline.delete_queue(%s)", (f"fanout-{number}",))
    return compare("fanout_cost", _PAYLOAD, "msg/s", measured, goals={"no subscription": at_least(0.97)})
