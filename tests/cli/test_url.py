"""`trunkline --url`: the same commands over HTTP return the same output."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.cli.conftest import Answer, Cli
from tests.http.conftest import module_db, server  # noqa: F401
from tests.http.servers import HttpServer, free_port, serving
from tests.support.waiting import wait_until
from trunkline import SyncClient
from trunkline.http_client import HttpClient


class Both:
    """Runs a command over HTTP, or over SQL on the same database."""

    def __init__(self, cli: Cli, url: str) -> None:
        self.cli = cli
        self.url = url

    def __call__(self, *arguments: object, code: int = 0) -> Answer:
        """Over HTTP."""
        return self.cli("--url", self.url, *arguments, code=code)

    def same(self, *arguments: object) -> Any:
        """Run over both transports, which must return the same output."""
        over_http, over_sql = self(*arguments, "-o", "json").json, self.cli(*arguments, "-o", "json").json
        assert over_http == over_sql
        return over_http


@pytest.fixture
def both(server: HttpServer, module_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:  # noqa: F811
    for name in ("URL", "TOKEN", "DATA"):
        monkeypatch.delenv(f"TRUNKLINE_{name}", raising=False)
    monkeypatch.setenv("TRUNKLINE_DATABASE_URL", module_db)
    monkeypatch.chdir(tmp_path)
    return Both(Cli(module_db, tmp_path), server.url)


def test_topics(both: Both) -> None:
    made = both("topic", "create", "orders", "--partitions", "2", "--retention", "1d").json
    assert made == both.same("topic", "show", "orders")
    assert both("topic", "create", "orders", "-o", "json", code=4).error["code"] == "already_exists"
    assert both("topic", "create", "orders", "--ensure").json == made
    # numbers and spaces arrive as they were written
    body = '{"price": 1.10, "big": 123456789012345678901234567890}'
    published = both("topic", "publish", "orders", body, "--key", "k", "-H", "a=1", "--routing-key", "x.y").json
    lines = both.cli.folder / "lines.ndjson"
    lines.write_text("".join(f'{{"n": {n}}}\n' for n in range(1500)))
    told = both("topic", "publish", "orders", "--file", lines, "--idempotency-prefix", "p").json
    assert (told["stored"], told["duplicates"]) == (1500, 0)
    assert both("topic", "publish", "orders", "--file", lines, "--idempotency-prefix", "p").json["duplicates"] == 1500
    read = both.same("topic", "read", "orders", "--limit", "2000")
    assert len(read) == 1501
    assert published["id"] in [row["id"] for row in read]
    assert '"price":1.10' in both("topic", "read", "orders", "--limit", "2000", "-o", "jsonl").stdout
    # Without a key, a batch goes to a partition that the server chooses.
    some = str(Counter(row["partition"] for row in read).most_common(1)[0][0])
    assert len(both.same("topic", "read", "orders", "--start", "1h", "--partition", some, "--limit", "3")) == 3
    both.same("topic", "offsets", "orders", "--at", "1h")
    tailed = both("topic", "tail", "orders", "--start", "earliest", "--limit", "1501", "-o", "jsonl").lines
    assert sorted(tailed, key=str) == sorted(read, key=str)
    both("topic", "publish", "orders", b"\xff".decode(errors="surrogateescape"), "--content-type", "image/png")
    assert both("topic", "alter", "orders", "--retention", "2d").json["retention"] == "2d"
    listed = next(row for row in both("topic", "list").json if row["topic"] == "orders")
    assert (listed["partitions"], listed["messages"], listed["retention"]) == (2, 1502, "2d")
    both("topic", "delete", "orders", "--yes")
    missing = both("topic", "show", "orders", "-o", "json", code=3).error
    assert (missing["code"], missing["hint"]) == ("topic_not_found", "Create it with trunkline topic create orders.")


def test_queues(both: Both) -> None:
    both("queue", "create", "mail", "--lease", "30s", "--max-attempts", "2", "--backoff-base", "0s")
    assert both("queue", "create", "mail", "-o", "json", code=4).error["code"] == "already_exists"
    assert both.same("queue", "show", "mail")["max_attempts"] == 2
    assert both("queue", "alter", "mail", "--lease", "1500ms").json["lease"] == "1.5s"
    assert both("queue", "alter", "mail", "--lease", "45s").json["lease"] == "45s"
    sent = both("queue", "enqueue", "mail", '{"n": 1}', "--label", "x").json
    for n in range(2, 6):
        both("queue", "enqueue", "mail", n)
    assert [row["body"] for row in both.same("queue", "peek", "mail")] == [{"n": 1}, 2, 3, 4, 5]
    assert both("queue", "claim", "mail", "--label", "x", "--ack").json[0]["id"] == sent["id"]
    receipts = [row["receipt"] for row in both("queue", "claim", "mail", "--limit", "4").json]
    assert both("queue", "extend", receipts[0], "--lease", "5m").json[0]["result"] == "done"
    assert both("queue", "nack", receipts[0], "--error", "later").json[0]["result"] == "done"
    assert both("queue", "bury", receipts[1], "--error", "no").json[0]["result"] == "done"
    assert both("queue", "release", receipts[2]).json[0]["result"] == "done"
    assert both("queue", "ack", receipts[0], receipts[3], "-o", "json", code=4).error["code"] == "conflict"
    assert both("queue", "ack", "nonsense", "-o", "json", code=3).error["code"] == "not_found"
    both("queue", "pause", "mail")
    assert both("queue", "claim", "mail").json == []
    both("queue", "resume", "mail")
    shown = next(row for row in both("queue", "list").json if row["queue"] == "mail")
    assert (shown["ready"], shown["dead"], shown["acked"]) == (2, 1, 2)
    assert len(both("queue", "claim", "mail", "--consumer", "me").json) == 1
    assert both("queue", "purge", "mail", "--yes").json == {"queue": "mail", "purged": 1}
    assert both("queue", "trim", "mail").json["queue"] == "mail"
    both.same("message", "explain", sent["id"])
    both.same("message", "trace", sent["id"])
    assert both("message", "explain", "019a8d2e-7c1b-7000-8000-000000000000", code=3).stdout == ""

    letters = both.same("dead", "list", "mail")
    both.same("dead", "show", "mail", letters[0]["id"])
    assert both("dead", "redrive", "mail").json == {"queue": "mail", "redriven": 1, "left": 0}
    both("queue", "delete", "mail", "--yes", "--force")


def test_groups_subscriptions_schedules_and_numbers(both: Both) -> None:
    both("topic", "create", "news")
    both("group", "create", "news", "billing")
    both("topic", "publish", "news", "1", "--routing-key", "a.b")
    assert [row["name"] for row in both.same("group", "list", "news")] == ["billing"]
    assert "billing" in [row["name"] for row in both.same("group", "list")]
    assert both.same("group", "show", "news", "billing")["lag"] == 1
    assert both("group", "lag", "news", "billing", "--max-messages", "0", code=5).json[0]["lag"] == 1
    assert both("group", "seek", "news", "billing", "--to", "latest", "--yes").json[0]["to"] == 2
    both("queue", "create", "inbox")
    both("subscription", "add", "inbox", "news", "--pattern", "a.#", "-H", "kind=x", "--start", "earliest")
    assert both.same("subscription", "list", "--queue", "inbox")[0]["headers"] == {"kind": "x"}
    assert sorted(row["name"] for row in both.same("subscription", "test", "news", "a.b")) == ["billing", "inbox"]
    tested = both.same("subscription", "test", "news", "a.b", "-H", "kind=x")
    assert sorted((row["name"], row["matches"]) for row in tested) == [("billing", True), ("inbox", True)]
    both("subscription", "remove", "inbox", "news", "--yes")
    both("schedule", "create", "nightly", "0 3 * * *", "--queue", "inbox", "--body", '{"kind": 1}', "--timezone", "UTC")
    assert both.same("schedule", "list")[0]["body"] == {"kind": 1}
    assert both.same("schedule", "next", "nightly", "-n", "3")
    both("schedule", "pause", "nightly")
    both("schedule", "run", "nightly")
    both("schedule", "delete", "nightly", "--yes")
    numbers = both("top", "--once", "-o", "json").json
    assert "inbox" in [row["queue"] for row in numbers["queues"]]
    assert "not available over HTTP" in both("top", "--once", "-o", "table").stdout
    both("group", "delete", "news", "billing", "--yes")


@pytest.mark.parametrize("form", ["sql", "python", "http client", "http", "cli", "cli over http"])
def test_a_purge_keeps_what_is_leased_in_every_form(both: Both, form: str) -> None:
    name = "purged-" + form.replace(" ", "-")
    with SyncClient(both.cli.url) as mq:
        mq.queues.create(name)
        mq.enqueue_many(name, range(4))
        mq.enqueue(name, "later", delay="1h")
        leased, retried = mq.claim(name, limit=2)
        retried.nack(delay="1h")
        match form:
            case "sql":
                with psycopg.connect(both.cli.url, autocommit=True) as conn:
                    conn.execute("call trunkline.sequence()")
                    purged = (conn.execute("select trunkline.purge_queue(%s)", [name]).fetchone() or (0,))[0]
            case "python":
                purged = mq.queues.purge(name)
            case "http client":
                purged = asyncio.run(_purge(both.url, name))
            case "http":
                purged = httpx.put(f"{both.url}/v1/queues/{name}/purge").raise_for_status().json()["purged"]
            case "cli":
                purged = both.cli("queue", "purge", name, "--yes", "-o", "json").json["purged"]
            case _:
                purged = both("queue", "purge", name, "--yes", "-o", "json").json["purged"]
        assert purged == 4
        stats = mq.queues.stats(name)[0]
        assert (stats.ready, stats.delayed, stats.leased, stats.purged) == (0, 0, 1, 4)
        assert leased.ack() == "done"
        assert mq.claim(name) == ()


async def _purge(url: str, name: str) -> int:
    async with HttpClient(url) as mq:
        return await mq.queues.purge(name)


def test_cleanup_over_http(both: Both) -> None:
    both("queue", "create", "cleaned")
    both("queue", "enqueue", "cleaned", "1")
    (delivery,) = both("queue", "claim", "cleaned", "-o", "json").json
    both("queue", "ack", delivery["receipt"])
    assert both("queue", "trim", "cleaned", "-o", "json").json["segments"] >= 0


def test_jobs(both: Both, module_db: str) -> None:  # noqa: F811
    both("queue", "create", "jobs")
    published = [both("queue", "enqueue", "jobs", f'{{"n": {n}}}', "--label", "mail").json for n in range(3)]
    ids = [row[0]["id"] if isinstance(row, list) else row["id"] for row in published]
    wait_until(lambda: len(both("job", "list", "jobs", "-o", "json").json) == 3, message="jobs have no offset")
    listed = both.same("job", "list", "jobs")
    assert sorted(row["id"] for row in listed) == sorted(ids)
    assert both.same("job", "list", "jobs", "--kind", "none") == []
    assert len(both.same("job", "list", "--limit", "2")) == 2
    shown = both.same("job", "show", ids[0])
    assert (shown["state"], shown["arguments"]) == ("ready", {"n": 0})
    assert both("job", "cancel", ids[0], "--reason", "typo").json["result"] == "requested"
    assert both.same("job", "show", ids[0])["cancel"] == "typo"
    assert both("job", "uncancel", ids[0]).json["result"] == "withdrawn"
    both("job", "show", "019a8d2e-7c1b-7000-8000-000000000000", code=3)
    (delivery,) = both("queue", "claim", "jobs", "-o", "json").json
    both("queue", "bury", delivery["receipt"])
    assert [row["state"] for row in both.same("job", "list", "jobs", "--state", "dead")] == ["dead"]
    assert both("job", "retry", delivery["id"]).json == [{"id": delivery["id"], "queue": "jobs"}]


def test_workers_limits_pipelines_and_doctor(both: Both, module_db: str) -> None:  # noqa: F811
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("""select trunkline.register_worker('w', '{"version": "1"}', '{"mail": {"type": "object"}}')""")
        conn.execute("select trunkline.ensure_limit('db', 2, 5)")
        conn.execute("select trunkline.acquire_limit('w', '{db}', '{3}', '1 minute')")
        conn.execute("select trunkline.report_pipeline('copy', 'copy', p_rows => 5)")
        conn.execute("select trunkline.report_pipeline('copy:query', 'query', p_lag => 7)")
    assert [row["worker"] for row in both.same("worker", "list")] == ["w"]
    [limit] = both.same("worker", "limits")
    assert (limit["name"], limit["holders"][0]["waits"]) == ("db", True)
    assert "w:2" in both("worker", "limits", "-o", "table").stdout
    assert [(row["name"], row["lag"]) for row in both.same("pipeline", "list")] == [("copy", 7)]
    assert both.same("pipeline", "show", "copy")["rows"] == 5
    both("pipeline", "show", "none", code=3)
    findings = both("doctor", "-o", "json").json
    assert {"program", "schema", "fsync"} <= {row["check"] for row in findings}


def test_what_has_no_http_form_says_so(both: Both) -> None:
    for command in (["token", "list"], ["migrate"], ["endpoint", "list"], ["endpoint", "test", "x"]):
        assert "does not work over HTTP" in both(*command, code=2).stderr, command


def test_which_of_the_two_is_meant(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "either --url or --data" in both("topic", "list", "--data", "x", code=2).stderr
    assert "--url" in both.cli("--url", "postgresql://x", "topic", "list", code=2).stderr
    assert "empty" in both.cli("--url", "", "topic", "list", code=2).stderr
    assert "the server URL is invalid" in both.cli("--url", "http://a:b", "topic", "list", code=2).stderr
    nobody = f"http://127.0.0.1:{free_port()}"
    assert both.cli("--url", nobody, "topic", "list", "-o", "json", code=6).error["code"] == "database_unavailable"
    monkeypatch.setenv("TRUNKLINE_URL", nobody)
    both.cli("topic", "list", code=6)
    both.cli("topic", "list", "--database-url", both.cli.url)
    assert "does not work over HTTP" in both.cli("token", "list", code=2).stderr
    both.cli("migrate", "--dry-run")


def test_tokens(db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a separate database: the first token closes every open server."""
    for name in ("URL", "TOKEN", "DATA"):
        monkeypatch.delenv(f"TRUNKLINE_{name}", raising=False)
    monkeypatch.setenv("TRUNKLINE_DATABASE_URL", db)
    cli = Cli(db, tmp_path)
    secret = cli("token", "create", "reader", "--scope", "read:*").stdout.strip()
    monkeypatch.chdir(Path(__file__).parents[2])
    with serving(db, "--require-token", "--no-upkeep") as guarded:
        assert cli("--url", guarded.url, "topic", "list", "-o", "json", code=4).error["code"] == "unauthenticated"
        cli("--url", guarded.url, "--token", secret, "topic", "list")
        monkeypatch.setenv("TRUNKLINE_TOKEN", secret)
        monkeypatch.setenv("TRUNKLINE_URL", guarded.url)
        cli("topic", "list")
        assert cli("topic", "create", "x", "-o", "json", code=4).error["code"] == "unauthenticated"


def test_as_a_process(both: Both) -> None:
    """From the shell, with the pipe of the help."""
    both("queue", "create", "shell")
    both("queue", "enqueue", "shell", "1")
    environment = both.cli.environment(TRUNKLINE_URL=both.url)
    script = 'trunkline queue claim shell -o jsonl | grep -o \'"receipt":"[^"]*"\' | cut -d\'"\' -f4 | trunkline queue ack -'
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=both.cli.folder, capture_output=True, timeout=60)
    assert [row["result"] for row in json.loads(done.stdout)] == ["done"], done
