"""The examples of docs/reference/cli.md are run, each in a database that has the things it names."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.docs.shells import environment
from trunkline import SyncClient
from trunkline.types import NewMessage

PAGE = "docs/reference/cli.md"
# Examples that are not run here, by how they begin: and why.
NOT_RUN = {
    "trunkline topic tail": "runs until Ctrl-C",
    "trunkline top ": "runs until Ctrl-C",
    "trunkline demo": "runs until Ctrl-C",
    "trunkline serve": "runs until Ctrl-C",
    "trunkline up": "runs until Ctrl-C",
    "trunkline dispatch": "runs until Ctrl-C",
    "trunkline endpoint test": "needs a dispatcher; docs/how-to/webhooks.md runs it",
    "trunkline worker run": "runs until Ctrl-C",
    "trunkline bench": "needs a checkout and measures for minutes",
    "trunkline completion": "writes into the home directory",
    "trunkline pipeline ": "starts Spark; tests/spark runs these commands",
    "trunkline message explain orders/3@": "an offset that only a long history has",
    "trunkline doctor": "looks at the whole server, which the tests of other pages use at the same time",
}
SOME_ID = "019a8d2e-7c1b-7000-8000-000000000000"


def examples() -> list[str]:
    lines = "".join(block.text for block in blocks(PAGE) if block.language == "sh").splitlines()
    return [line for line in lines if line.startswith("trunkline ")]


def reason(example: str) -> str | None:
    if example.startswith("trunkline top --once"):
        return None
    return next((why for begin, why in NOT_RUN.items() if f"{example} ".startswith(begin)), None)


@pytest.fixture
def mq(db: str) -> Iterator[SyncClient]:
    with SyncClient(db) as mq:
        yield mq


def prepare(mq: SyncClient, example: str, folder: Path, env: dict[str, str]) -> str:
    """Create the objects that the example names; return it with an existing id and receipt."""
    made = re.match(r"trunkline (\w+) create (\w+)", example)
    creates = made[1] if made else ""
    mq.queues.ensure("reports")
    if creates != "queue":
        mq.queues.ensure("mail")
    if creates != "topic":
        mq.topics.ensure("orders", partitions=2)
        mq.publish_many("orders", [{"id": n} for n in range(10)], routing_key="order.created.eu")
        if creates != "group":
            mq.groups.ensure("orders", "billing", start="latest")
        if creates != "queue" and "subscription add" not in example:
            mq.subscriptions.add("mail", "orders")
    if creates != "schedule":
        mq.schedules.ensure("nightly", "0 3 * * *", queue="reports")
    if creates != "endpoint":
        mq.endpoints.create("hooks", "https://example.com/hooks")
        if "unbind" in example:
            mq.endpoints.bind("mail", "hooks")
    if example.startswith("trunkline token") and creates != "token":
        _run("trunkline token create shop --scope 'read:*'", folder, env)
    (folder / "shop.py").write_text(
        "from trunkline.jobs import App\napp = App()\n@app.job\nasync def send_receipt(order_id: int) -> None: ...\n"
    )
    (folder / "orders.ndjson").write_text('{"id": 1}\n{"id": 2}\n')
    if creates == "queue":
        return example
    dead = mq.enqueue("mail", {"to": "nobody@example.com"}, label="send_receipt").id
    for delivery in mq.claim("mail", limit=100):
        if delivery.id == dead:
            delivery.bury("ConnectTimeout")
        else:
            delivery.release()
    if "--file dead.ndjson" in example and "enqueue" in example:
        _run("trunkline dead export mail --file dead.ndjson", folder, env)
    if numbered := re.match(r"trunkline run (\w+) (\d+)", example):
        make_runs(mq, numbered[1], int(numbered[2]))
    mq.enqueue_many("mail", [NewMessage(body={"to": n}) for n in range(20)])
    receipt = mq.claim("mail")[0].receipt
    return example.replace("RECEIPT", receipt).replace(SOME_ID, str(dead))


def make_runs(mq: SyncClient, verb: str, number: int) -> None:
    """Make as many runs as the example's number says. The last one can be undone, or has not started yet."""
    for _ in range(number if verb == "undo" else number - 1):
        mq.groups.seek("orders", "billing", "earliest")
    if verb != "undo":
        mq.runs.start("redrive", {"queue": "mail", "all": True}, expected=1, options={"grace": 600})
    if verb == "resume":
        mq.runs.pause(number)
    assert mq.runs.list()[0].run_id == number


@pytest.mark.parametrize("example", [example for example in examples() if reason(example) is None])
def test_example(example: str, db: str, mq: SyncClient, tmp_path: Path) -> None:
    if "| jq" in example and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    env = environment(db)
    command = (
        prepare(mq, example, tmp_path, env).replace(" --database-url postgresql:///app", "").replace("|| page-someone", "")
    )
    _run(command, tmp_path, env)


def _run(command: str, folder: Path, env: dict[str, str]) -> None:
    bash = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(bash, env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_examples_not_run_are_listed() -> None:
    left = {example: reason(example) for example in examples() if reason(example)}
    for example, why in left.items():
        print(f"not run: {example}: {why}")
    assert {begin for begin in NOT_RUN if any(f"{example} ".startswith(begin) for example in left)} == set(NOT_RUN)
