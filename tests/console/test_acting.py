"""Pages that act: queues, dead letters by error, runs and jobs, in a browser and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.console.browser import Browser
from tests.http.servers import HttpServer, serving
from tests.support.waiting import wait_until

TIMEOUT = "TimeoutError: smtp-{n} did not respond in {n} s"


@pytest.fixture(scope="module")
def server(module_db: str) -> Iterator[HttpServer]:
    with serving(module_db) as running:
        yield running


@pytest.fixture
def conn(module_db: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(module_db, autocommit=True) as opened:
        yield opened


def bury(conn: psycopg.Connection[Any], queue: str, count: int, error: str, label: str = "send_receipt") -> list[Any]:
    """Make dead letters; return their ids. `{n}` in the error is another number in each."""
    for number in range(count):
        payload = json.dumps({"order": number}).encode()
        conn.execute("select trunkline.enqueue_bytes(%s, %s::bytea, p_label => %s)", (queue, payload, label))
    rows: list[Any] = []

    def claimed() -> bool:
        # a claim while the server assigns offsets can return fewer
        query = "select receipt, id from trunkline.claim(%s, %s, p_consumer => 'host-b')"
        rows.extend(conn.execute(query, (queue, count - len(rows))).fetchall())
        return len(rows) == count

    wait_until(claimed)
    for number, (receipt, _) in enumerate(rows):
        conn.execute("select trunkline.bury(array[%s], %s)", (receipt, error.replace("{n}", str(100 + number))))
    return [id for _, id in rows]


def claim_one(conn: psycopg.Connection[Any], fields: str, queue: str, consumer: str = "me") -> Any:
    """Claim one message when the queue has one; return some of its fields."""
    found: list[Any] = []

    def claimed() -> bool:
        query = f"select {fields} from trunkline.claim('{queue}', 1, p_consumer => '{consumer}')"
        found.extend(conn.execute(query.encode()).fetchall())
        return bool(found)

    wait_until(claimed)
    return found[0]


def stats(conn: psycopg.Connection[Any], queue: str) -> dict[str, Any]:
    cursor = conn.execute("select * from trunkline.queue_stats(%s)", (queue,))
    row = cursor.fetchone()
    assert row is not None
    assert cursor.description is not None
    return dict(zip([column.name for column in cursor.description], row, strict=True))


def test_group_dead_letters_by_error_and_redrive_with_a_canary(
    browser: Browser, server: HttpServer, conn: psycopg.Connection[Any]
) -> None:
    conn.execute("select trunkline.create_queue('mail')")
    bury(conn, "mail", 12, TIMEOUT)
    bury(conn, "mail", 3, "KeyError: 'total'", "send_invoice")
    page = browser.page()
    page.go(f"{server.url}/console/dead")
    assert page.run("document.querySelectorAll('table.groups tbody tr').length") == 2
    assert page.text("table.groups tbody tr td") == "12"
    with page.loading():
        page.click("table.groups tbody tr td a")
    assert "All 12 have the same consumer: host-b" in page.text("main")
    page.click("a.costly[data-dialog]")
    page.until("document.querySelector('dialog[open] form') !== null")
    assert "12 dead letters" in page.text("dialog header")
    page.fill("#canary", "4")
    with page.loading():
        page.click("dialog button.costly")
    assert page.text("h1").startswith("Run ")
    page.until("document.querySelector('#panel-progress').innerText.includes('4 of 12')")
    assert stats(conn, "mail")["dead"] == 11
    acked = 0

    def all_acked() -> bool:
        nonlocal acked
        rows = conn.execute("select receipt from trunkline.claim('mail', 10)").fetchall()
        if rows:
            conn.execute("select trunkline.ack(%s::text[])", ([row[0] for row in rows],))
        acked += len(rows)
        return acked >= 4

    wait_until(all_acked)
    assert acked == 4
    page.until("document.querySelector('#panel-progress').innerText.includes('12 of 12')")
    page.until("document.querySelector('.steps li:last-child').classList.contains('ok')")
    # the other group is untouched
    wait_until(lambda: stats(conn, "mail")["dead"] == 3)
    assert page.errors == []


def test_pause_and_resume_with_undo(browser: Browser, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('prints')")
    page = browser.page()
    page.go(f"{server.url}/console/queues/prints")
    with page.loading():
        page.click(".head .acts form button")
    assert stats(conn, "prints")["paused"] is True
    assert "Paused" in page.text("h1")
    assert "delivers nothing until it is resumed" in page.text(".toast")
    assert page.run("location.search") == ""
    with page.loading():
        page.click(".toast button")
    assert stats(conn, "prints")["paused"] is False
    assert "delivers messages again" in page.text(".toast")
    assert page.errors == []


def test_retry_a_job_with_edited_arguments(browser: Browser, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('invoices')")
    [id] = bury(conn, "invoices", 1, "KeyError: 'total'", "send_invoice")
    page = browser.page()
    page.go(f"{server.url}/console/jobs?state=dead&where=queue%3Ainvoices")
    with page.loading():
        page.click("#panel-rows tbody th a")
    assert "KeyError: 'total'" in page.text("main")
    page.click("a[data-dialog]")
    page.until("document.querySelector('dialog[open] textarea') !== null")
    # a number that a browser cannot hold
    edited = '{"order": 9007199254740993, "total": 1e400}'
    page.fill("dialog textarea", edited)
    with page.loading():
        page.click("dialog button.costly")
    assert "It is in its queue again." in page.text(".toast")
    assert claim_one(conn, "id, payload, attempt", "invoices") == (id, edited.encode(), 1)
    assert page.errors == []


def test_what_is_not_json_is_not_sent(web: httpx.Client, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('typed')")
    [id] = bury(conn, "typed", 1, "no")
    answer = web.post(f"{server.url}/console/jobs/{id}/again", data={"payload": '{"order": '})
    assert answer.status_code == 400
    assert "not valid JSON" in answer.text
    assert "{&#34;order&#34;: " in answer.text
    assert stats(conn, "typed")["dead"] == 1


def test_a_purge_wants_the_name(web: httpx.Client, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('full')")
    conn.execute("select trunkline.enqueue('full', '{}') from generate_series(1, 5)")
    fields = {"kind": "purge_queue", "expected": "5", "confirm": "ful"}
    answer = web.post(f"{server.url}/console/queues/full/run", data=fields)
    assert answer.status_code == 400
    assert "Type the name" in answer.text
    wait_until(lambda: stats(conn, "full")["ready"] == 5)
    answer = web.post(f"{server.url}/console/queues/full/run", data={**fields, "confirm": "full"})
    assert answer.status_code == 303
    run = answer.headers["location"].rpartition("/")[2]
    assert "Starts in" in web.get(f"{server.url}/console/runs/{run}").text
    assert web.post(f"{server.url}/console/runs/{run}/abort", data={"csrf": ""}).status_code == 303
    row = conn.execute("select state from trunkline.get_run(%s)", (run,)).fetchone()
    assert row == ("aborted",)
    assert stats(conn, "full")["ready"] == 5


def test_a_number_that_moved_since_the_preview(web: httpx.Client, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('moved')")
    bury(conn, "moved", 5, "no")
    fields = {"kind": "redrive", "all": "1", "expected": "2", "canary": "0"}
    answer = web.post(f"{server.url}/console/queues/moved/run", data=fields)
    assert answer.status_code == 409
    assert "changed since the preview" in answer.text
    assert 'name="expected" value="5"' in answer.text


def test_release_and_bury_what_is_leased(web: httpx.Client, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('held')")
    conn.execute("select trunkline.enqueue('held', '{}') from generate_series(1, 2)")
    wait_until(lambda: stats(conn, "held")["ready"] == 2)
    assert len(conn.execute("select 1 from trunkline.claim('held', 2, p_consumer => 'slow')").fetchall()) == 2
    page = web.get(f"{server.url}/console/queues/held", params={"tab": "leased"})
    assert "slow" in page.text
    row = conn.execute(
        "select partition, first_offset from trunkline.list_deliveries('held') where outcome is null"
    ).fetchone()
    assert row is not None
    place = {"topic": "", "partition": str(row[0]), "first": str(row[1])}
    answer = web.post(f"{server.url}/console/queues/held/release", data={**place, "last": str(row[1])})
    assert answer.headers["location"].endswith("did=released")
    assert claim_one(conn, "attempt", "held") == (1,)
    answer = web.post(f"{server.url}/console/queues/held/bury", data={**place, "last": str(row[1] + 1)})
    assert answer.headers["location"].endswith("did=buried")
    wait_until(lambda: stats(conn, "held")["dead"] == 2)
    answer = web.post(f"{server.url}/console/queues/held/release", data={**place, "last": str(row[1])})
    assert answer.headers["location"].endswith("did=lost")


def test_enqueue_sends_what_is_typed(web: httpx.Client, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('typed-in')")
    fields = {"payload": '{\r\n  "n": 1.10\r\n}', "label": "k", "headers": '{"tenant": "acme"}', "delay": ""}
    answer = web.post(f"{server.url}/console/queues/typed-in/enqueue", data=fields)
    assert answer.status_code == 303
    found = claim_one(conn, "payload, label, headers", "typed-in")
    assert found == (b'{\n  "n": 1.10\n}', "k", {"tenant": "acme"})
    wrong = web.post(f"{server.url}/console/queues/typed-in/enqueue", data={**fields, "headers": "[1]"})
    assert wrong.status_code == 400
    assert "must be a JSON object" in wrong.text


def test_an_export_has_one_line_for_each(web: httpx.Client, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('exported')")
    ids = bury(conn, "exported", 3, "one") + bury(conn, "exported", 2, "two")
    lines = web.get(f"{server.url}/console/queues/exported/dead-export").text.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [str(id) for id in ids]
    group = conn.execute("select fingerprint from trunkline.dead_groups('exported') where error = 'two'").fetchone()
    assert group is not None
    answer = web.get(f"{server.url}/console/queues/exported/dead-export", params={"fingerprint": group[0]})
    assert {json.loads(line)["error"] for line in answer.text.splitlines()} == {"two"}
    assert len(answer.text.splitlines()) == 2


def test_the_conservation_line(web: httpx.Client, server: HttpServer, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select trunkline.create_queue('counted')")
    conn.execute("select trunkline.enqueue('counted', '{}') from generate_series(1, 3)")
    bury(conn, "counted", 3, "no")
    wait_until(lambda: stats(conn, "counted")["dead"] == 3)
    text = web.get(f"{server.url}/console/queues/counted", params={"check": "1"}).text
    assert "Accepted 6 = 3 ready + 0 delayed + 0 leased + 0 acked + 3 dead + 0 expired + 0 purged" in text
    assert "nothing is lost" in text
