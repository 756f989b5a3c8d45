"""`trunkline job` and `trunkline worker`."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Cli, cli, on_a_terminal  # noqa: F401
from tests.support.waiting import wait_until
from trunkline import SyncClient

MODULE = """
from trunkline.jobs import App, Backoff, Context
app = App(queue="mail", backoff=Backoff("1h", cap="1h"))

@app.job(timeout="5s", result=True)
async def send(ctx: Context, n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return n

@app.job
def plain() -> None: ...

@app.job(max_attempts=1)
async def sleeps() -> None:
    import asyncio
    await asyncio.sleep(3600)

elsewhere = App("postgresql://127.0.0.1:1/nowhere", queue="mail")
elsewhere.job(plain.function)
"""


@pytest.fixture
def shop(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:  # noqa: F811
    name = f"shop_{os.getpid()}_{cli.folder.name.replace('-', '_')}"
    (cli.folder / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(cli.folder))
    cli.module = f"{name}:app"  # type: ignore[attr-defined]
    return cli


def test_run_list_show_retry_cancel(shop: Cli) -> None:
    module = shop.module  # type: ignore[attr-defined]
    kinds = shop("job", "kinds", module).json
    assert [(row["kind"], row["runs"], row["arguments"]) for row in kinds] == [
        ("send", "loop", ["n"]),
        ("plain", "thread", []),
        ("sleeps", "loop", []),
    ]
    ran = shop("job", "run", module, "send", "--args", '{"n": 5}').json
    assert ran["outcome"] == "done"
    shop("job", "show", "019a8d2e-7c1b-7000-8000-000000000000", code=3)
    shown = shop("job", "show", ran["id"]).json
    assert (shown["state"], shown["result"], shown["arguments"]) == ("done", 5, {"n": 5})
    assert shop("job", "cancel", ran["id"]).json["result"] == "done"
    failed = shop("job", "run", module, "send", "--args", '{"n": -5}', code=1).json
    assert (failed["outcome"], failed["state"], failed["result"]) == ("retry", "delayed", None)
    assert failed["error"].startswith("ValueError: negative")
    [row] = shop("job", "list", "mail", "--state", "delayed").json
    assert (row["id"], row["kind"], row["attempt"]) == (failed["id"], "send", 1)
    assert shop("job", "cancel", row["id"], "--reason", "enough").json["result"] == "requested"
    with SyncClient(shop.url) as mq:
        mq.enqueue("mail", {"n": 1}, label="send")
        [delivery] = mq.claim("mail")
        [running] = shop("job", "list", "--state", "running").json
        assert running["kind"] == "send"
        delivery.bury("by hand")
        # No worker here runs these: they do not keep a worker from draining.
        mq.enqueue("mail", {"no": "job"})
        mq.enqueue("mail", {}, label="nobody")
    [letter] = shop("job", "list", "mail", "--state", "dead").json
    assert shop("job", "retry", letter["id"]).json == [{"id": letter["id"], "queue": "mail"}]
    assert (
        shop(
            "job",
            "retry",
            letter["id"],
            code=3,
        ).stderr.count("cannot retry job")
        == 1
    )
    shop("worker", "run", module, "--drain")
    assert [row["kind"] for row in shop("job", "list", "--state", "ready").json] == ["nobody"]


def test_a_job_on_a_terminal(shop: Cli) -> None:
    module = shop.module  # type: ignore[attr-defined]
    code, shown = on_a_terminal(
        shop, "job", "run", module, "send", "--args", '{"n": -5}', columns=60, PYTHONPATH=os.environ.get("PYTHONPATH", "")
    )
    lines = [line.rstrip() for line in shown.splitlines()]
    assert code == 1
    # the sections, in this order; at 60 columns nothing is wider
    titles = ["Job", "State", "Arguments", "Attempts", "Error"]
    assert [re.sub("\x1b.*?m", "", line) for line in lines if re.sub("\x1b.*?m", "", line) in titles] == titles
    assert {"  kind      send", "  state     delayed", "  n  -5", "  ValueError: negative"} <= set(lines)
    assert max(len(re.sub("\x1b.*?m", "", line)) for line in lines[lines.index("  kind      send") :]) <= 60
    assert shop("job", "run", module, "plain", "-o", "table").stdout.endswith("Result (not stored)\n  None\n")


def test_list_and_show_agree_on_every_state(shop: Cli) -> None:
    with SyncClient(shop.url) as mq:
        mq.queues.create("mail")
        made = {
            "done": mq.enqueue("mail", {}, label="send").id,
            "dead": mq.enqueue("mail", {}, label="send").id,
            "delayed": mq.enqueue("mail", {}, label="send").id,
            "running": mq.enqueue("mail", {}, label="send").id,
        }
        done, dead, delayed, _ = mq.claim("mail", limit=4)
        done.ack()
        dead.bury("by hand")
        delayed.nack(delay="1h", error="later")
        made |= {"ready": mq.enqueue("mail", {}, label="send").id}
        later = mq.enqueue("mail", {}, label="send", delay="1h").id
        odd = mq.enqueue("mail", b"\xff", label="send", delay="2h").id
        plain = mq.enqueue("mail", {"to": "ann"}).id
        with psycopg.connect(shop.url) as conn:
            blocked = "select id from trunkline.enqueue_after('mail', array[gen_random_uuid()], '{}', 'send')"
            made |= {"blocked": conn.execute(blocked).fetchone()[0]}  # type: ignore[index]
    with psycopg.connect(shop.url, autocommit=True) as conn:
        conn.execute("call trunkline.sequence()")
    listed = {row["id"]: row for row in shop("job", "list").json}
    assert str(plain) not in listed
    expected = {str(id): state for state, id in made.items()} | {str(later): "delayed", str(odd): "delayed"}
    for id, state in expected.items():
        shown = shop("job", "show", id).json
        assert shown["state"] == state
        if state != "done":
            assert (listed[id]["state"], listed[id]["attempt"]) == (state, shown["attempt"])
    assert set(listed) == {id for id, state in expected.items() if state != "done"}
    for state in ("running", "ready", "delayed", "blocked", "dead"):
        assert {row["state"] for row in shop("job", "list", "--state", state).json} == {state}
    assert shop("job", "show", odd).json["arguments_base64"] == "/w=="
    assert "Arguments (not JSON)\n  \\xff" in shop("job", "show", odd, "-o", "table").stdout
    # A message that is not a job is reported as such.
    assert "is not a job" in shop("job", "show", plain, "-o", "json", code=3).error["message"]


def test_cancel_says_what_it_found(shop: Cli) -> None:
    nobody = "019a8d2e-7c1b-7000-8000-000000000000"
    refused = shop("job", "cancel", nobody, "-o", "json", code=3).error
    assert (refused["code"], refused["hint"].partition(".")[0]) == ("job_not_found", "List jobs with trunkline job list")
    with SyncClient(shop.url) as mq:
        mq.queues.create("mail")
        ids = [mq.enqueue("mail", {}, label="send").id for _ in range(4)]
        done, dead, _ = mq.claim("mail", limit=3)
        done.ack()
        dead.bury("by hand")
        plain = mq.enqueue("mail", {}).id
    answers = [shop("job", "cancel", id).json["result"] for id in ids]
    assert answers == ["done", "dead", "requested", "requested"]
    assert shop("job", "show", ids[2]).json["cancel"] == "cancelled"
    shop("job", "cancel", plain, code=3)
    assert "it is done" in shop("job", "retry", ids[0], code=3).stderr


def test_wrong_uses(shop: Cli) -> None:
    module = shop.module  # type: ignore[attr-defined]
    shop("job", "run", module, "nobody", code=3)
    shop("job", "run", module, "send", "--args", "{", code=2)
    shop("job", "run", module, "send", "--args", "[" * 100_000, code=2)
    shop("job", "run", module, "send", "--args", '{"m": 1}', code=2)
    shop("job", "kinds", "no_such_module:app", code=2)
    shop("job", "kinds", "os:app", code=2)
    shop("worker", "run", module, "--queues", "mail:x", code=2)
    shop("worker", "run", module, "--queues", "mail,mail", code=2)
    shop("worker", "run", module, "--queues", "nowhere", code=3)
    shop("job", "list", "nowhere", code=3)
    assert "mail=3" in shop("worker", "run", module, "--queues", "mail=3", code=2).stderr
    assert "such as shop:app" in shop("job", "kinds", "./shop.py", code=2).stderr
    assert f"The module has {module} and " in shop("job", "kinds", module.replace(":app", ":jobs"), code=2).stderr
    # a handler that does not end holds nothing up, and a database that is named is the one that is used
    shop("job", "run", module, "sleeps", "--within", "200ms", code=5)
    shop("job", "run", module, "sleeps", "--timeout", "200ms", code=124)
    shop("job", "run", module.replace(":app", ":elsewhere"), "plain", "--database-url", shop.url)


def test_a_worker_is_listed_reloads_and_stops(shop: Cli) -> None:
    module = shop.module  # type: ignore[attr-defined]
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    worker = shop.start("worker", module, "--queues", "mail:3", "--reload", env=env)
    try:
        wait_until(lambda: len(shop("worker", "list").json) == 1)
        [first] = shop("worker", "list").json
        assert first["info"]["queues"] == {"mail": 3} and first["info"]["kinds"] == ["plain", "send", "sleeps"]
        source = Path(shop.folder / f"{module.partition(':')[0]}.py")
        source.write_text(MODULE + "\n@app.job\ndef third() -> None: ...\n")
        wait_until(lambda: any("third" in row["info"]["kinds"] for row in shop("worker", "list").json))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert shop("worker", "list").json == []
