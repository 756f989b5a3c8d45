"""Every example is a program that runs and says what it should."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT
from tests.docs.shells import environment
from trunkline.embedded.install import psql

SAYS = {
    "orders.py": ["{'ann': 37, 'bob': 12}"],
    "thumbnails.py": ["void.png 2 void.png has no width"],
    "fanout.py": [
        "shop-audit would get it: True",
        "shop-mail would get it: False",
        "shop-urgent would get it: True",
        "shop-mail ['order.created.eu', 'order.created.us']",
        "shop-audit ['order.created.eu', 'order.created.us', 'order.paid.eu']",
        "shop-urgent ['order.created.eu', 'order.paid.eu']",
    ],
    "sync_worker.py": ["{'a': 0, 'b': 0} (0,)", "{'a': 1, 'b': 1} (2,)", "{'a': 2, 'b': 2} (4,)"],
    "jobs.py": [
        "duplicate: True same job: True",
        "sending email to ann@example.com",
        "done in attempt 2",
    ],
    "webhooks.py": ["attempt 1: booked", "attempt 2: known already", "orders booked: [(42,)]"],
    "word_count.py": ["be 2", "is 1", "not 1", "or 1", "question 1", "that 1", "the 1", "to 2"],
    "outbox.sql": [
        "customers",
        '1|1|insert|{"id":1,"name":"Ann","city":"Bonn"}',
        '2|2|insert|{"id":2,"name":"Bob","city":"Rome"}',
        '3|2|update|{"id":2,"name":"Bob","city":"Oslo"}',
    ],
}


ONCE = ("word_count.py",)  # starts Spark


def test_every_example_is_run_and_described() -> None:
    found = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sql")}
    assert found == set(SAYS)
    text = (ROOT / "examples" / "README.md").read_text()
    assert all(f"]({name})" in text for name in found)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name: str, db: str) -> None:
    env = environment(db)
    path = str(ROOT / "examples" / name)
    if name.endswith(".sql"):
        command = [str(psql()), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", env["TRUNKLINE_DATABASE_URL"], "-f", path]
    else:
        command = [sys.executable, path]
    # what an earlier run has left does not change what the next one says
    for _ in range(1 if name in ONCE else 2):
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=180)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == SAYS[name]
