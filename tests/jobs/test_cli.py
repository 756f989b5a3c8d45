"""`trunkline job` and `trunkline worker`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli, eventually  # noqa: F401
from trunkline import SyncClient

MODULE = """
from trunkline.jobs import App, Context
app = App(queue="mail")

@app.job(timeout="5s", result=True)
async def send(ctx: Context, n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return n

@app.job
def plain() -> None: ...
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
    ]
    ran = shop("job", "run", module, "send", "--args", '{"n": 5}').json
    assert ran["outcome"] == "done"
    shop("job", "show", "019a8d2e-7c1b-7000-8000-000000000000", code=3)
    shown = shop("job", "show", ran["id"]).json
    assert (shown["result_state"], shown["result"]) == ("done", 5)
    assert shop("job", "cancel", ran["id"]).json["answer"] == "finished"
    failed = shop("job", "run", module, "send", "--args", '{"n": -5}').json
    assert failed["outcome"] == "retry"
    [row] = shop("job", "list", "mail", "--state", "delayed").json
    assert (row["id"], row["kind"], row["attempt"]) == (failed["id"], "send", 1)
    assert shop("job", "cancel", row["id"], "--reason", "enough").json["answer"] == "requested"
    with SyncClient(shop.url) as mq:
        mq.enqueue("mail", {"n": 1}, label="send")
        [delivery] = mq.claim("mail")
        [running] = shop("job", "list", "--state", "running").json
        assert running["kind"] == "send"
        delivery.bury("by hand")
    [letter] = shop("job", "list", "mail", "--state", "dead").json
    assert shop("job", "retry", letter["id"]).json == [{"id": letter["id"], "queue": "mail"}]
    assert (
        shop(
            "job",
            "retry",
            letter["id"],
            code=3,
        ).stderr.count("is not a dead letter")
        == 1
    )
    shop("worker", "run", module, "--drain")
    assert shop("job", "list", "--state", "waiting").json == []


def test_wrong_uses(shop: Cli) -> None:
    module = shop.module  # type: ignore[attr-defined]
    shop("job", "run", module, "nobody", code=3)
    shop("job", "run", module, "send", "--args", "{", code=2)
    shop("job", "run", module, "send", "--args", '{"m": 1}', code=2)
    shop("job", "kinds", "no_such_module:app", code=2)
    shop("job", "kinds", "os:app", code=2)
    shop("worker", "run", module, "--queues", "mail:x", code=2)
    shop("worker", "run", module, "--queues", "mail,mail", code=2)
    shop("worker", "run", module, "--queues", "nowhere", code=3)
    shop("job", "list", "nowhere", code=3)


def test_a_worker_is_listed_reloads_and_stops(shop: Cli, eventually: Callable[[Callable[[], bool]], None]) -> None:  # noqa: F811
    module = shop.module  # type: ignore[attr-defined]
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    worker = shop.start("worker", module, "--queues", "mail:3", "--reload", env=env)
    try:
        eventually(lambda: len(shop("worker", "list").json) == 1)
        [first] = shop("worker", "list").json
        assert first["info"]["queues"] == {"mail": 3} and first["info"]["kinds"] == ["plain", "send"]
        source = Path(shop.folder / f"{module.partition(':')[0]}.py")
        source.write_text(MODULE + "\n@app.job\ndef third() -> None: ...\n")
        eventually(lambda: any("third" in row["info"]["kinds"] for row in shop("worker", "list").json))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert shop("worker", "list").json == []
