"""The message page, the message browser, groups and the tabs of a topic, over HTTP and in the browser."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Iterator
from html import unescape

import httpx
import psycopg
import pytest

from tests.console.browser import Browser
from tests.console.test_pages import HOSTILE, check
from tests.http.servers import HttpServer, serving
from tests.support.waiting import wait_until

ODD = '{"id": 9007199254740993, "x": 1e400, "a": "</script>"}'


def one(conn: psycopg.Connection, query: str, *args: object) -> str:
    row = conn.execute(query, args).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return str(row[0])


def publish(
    conn: psycopg.Connection, payload: str, key: str, routing_key: str, headers: dict[str, str] | None = None
) -> str:
    """Publish a payload unchanged; return the id of the message."""
    query = (
        "select id from trunkline.publish_many('orders', array[%s::bytea], null, %s::text[], %s::text[], null,"
        " %s::text[]::jsonb[], null, 'application/json')"
    )
    return one(conn, query, payload.encode(), [key], [routing_key], [json.dumps(headers or {})])


@pytest.fixture(scope="module")
def ids(module_db: str) -> dict[str, str]:
    """Messages of a topic with a group, a queue without consumers, a paused one, and one that gave up."""
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('orders', 2)")
        for queue in ("waits", "stopped", "failed"):
            conn.execute("select trunkline.create_queue(%s)", (queue,))
            conn.execute("select trunkline.subscribe(%s, 'orders', 'order.#')", (queue,))
        conn.execute("select trunkline.pause_queue('stopped')")
        conn.execute("select trunkline.create_group('orders', 'audit')")
        found = {"odd": publish(conn, ODD, "cust-7", "order.created.eu", {"tenant": "acme"})}
        for n in range(60):
            publish(conn, json.dumps({"n": n, "total": n * 10}), f"cust-{n}", "order.paid")
        for text in HOSTILE:
            found[text] = publish(conn, json.dumps({text: [text]}), text, "other", {text: text})
        conn.execute("call trunkline.upkeep()")
        conn.execute(
            "select trunkline.bury(array_agg(receipt), 'ConnectTimeout smtp.example') from trunkline.claim('failed')"
        )
    return found


@pytest.fixture(scope="module")
def server(module_db: str, ids: dict[str, str]) -> Iterator[HttpServer]:
    with serving(module_db) as running:
        yield running


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return check(answer.text).text


def test_a_message_says_why_it_waits(web: httpx.Client, ids: dict[str, str]) -> None:
    text = text_of(web.get(f"/console/m/{ids['odd']}"))
    assert "What to do now" in text
    for reader in ("waits", "stopped", "failed", "audit"):
        assert reader in text
    assert "the queue is paused" in text
    assert "cust-7" in text
    assert "order.created.eu" in text
    # byte-true
    for part in ("9007199254740993", "1e400", "</script>", "acme"):
        assert part in text
    raw = web.get(f"/console/m/{ids['odd']}", params={"show": "raw"})
    assert ODD in unescape(raw.text)
    assert web.get(f"/console/m/{ids['odd']}/payload").content == ODD.encode()


def test_a_message_by_its_place_and_its_neighbours(web: httpx.Client, ids: dict[str, str]) -> None:
    page = web.get(f"/console/m/{ids['odd']}").text
    place = re.search(r'href="(/console/topics/orders/\d@\d+)">\d@\d+</a>', page)
    assert place is not None
    there = web.get(place[1])
    assert ids["odd"] in text_of(there)
    assert 'rel="next"' in there.text
    assert web.get("/console/topics/orders/9@9").status_code in (200, 404)
    assert web.get("/console/topics/orders/nothing").status_code == 404
    assert web.get("/console/m/nothing").status_code == 404


def test_hostile_messages(web: httpx.Client, ids: dict[str, str]) -> None:
    for text in HOSTILE:
        for show in ("tree", "raw", "hex"):
            check(web.get(f"/console/m/{ids[text]}", params={"show": show}).text)
    check(web.get("/console/topics/orders/messages").text)


def test_search_says_what_it_costs_and_did(web: httpx.Client) -> None:
    address = "/console/topics/orders/messages"
    text = text_of(web.get(address, params={"where": "key:cust-7"}))
    assert "arithmetic" in text
    assert re.search(r"Reads at most \d+ messages", text)
    assert "1 partition" in text
    assert re.search(r"Scanned \d+ of \d+, matched 2 in", text)
    assert "That is all." in text
    text = text_of(web.get(address, params={"where": "body.total:100..200"}))
    assert "matched 11 in" in text
    text = text_of(web.get(address, params={"where": "routing:order.*.eu header.tenant:acme"}))
    assert "matched 1 in" in text
    first = web.get(address, params={"where": "routing:order.paid"})
    assert "Stopped at the limit of 50." in check(first.text).text
    on = re.search(r'href="([^"]*after=[^"]*)"', first.text)
    assert on is not None
    assert "matched 10 in" in text_of(web.get(unescape(on[1])))
    assert "matched 60 in" not in first.text


def test_wrong_filters_are_explained(web: httpx.Client) -> None:
    for where, words in [
        ("-key:a", "cannot negate"),
        ("colour:red", "no field"),
        ("key:a*", "one exact value"),
        ("partition:x", "must be a number"),
    ]:
        assert words in text_of(web.get("/console/topics/orders/messages", params={"where": where})), where
    assert "no place in a log" in text_of(web.get("/console/topics/orders/messages", params={"from": "soon"}))


def test_export(web: httpx.Client) -> None:
    address = "/console/topics/orders/messages/export"
    answer = web.get(address, params={"where": "key:cust-7", "format": "jsonl"})
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["key"] for row in rows] == ["cust-7", "cust-7"]
    # numbers that JSON readers round come as the bytes that were sent
    assert [base64.b64decode(row["payload"]).decode() for row in rows if row["encoding"] == "base64"] == [ODD]
    # a spreadsheet must not compute a key
    table = list(csv.reader(io.StringIO(web.get(address, params={"format": "csv"}).text)))
    assert table[0][:3] == ["partition", "offset", "id"]
    assert not any(cell[:1] in ("=", "+", "-", "@") for row in table for cell in row)


def test_topic_tabs(web: httpx.Client) -> None:
    page = text_of(web.get("/console/topics/orders"))
    assert "Offset ruler" in page
    assert "audit" in page
    text = text_of(
        web.get("/console/topics/orders/readers", params={"routing_key": "order.created", "headers": "tenant=acme"})
    )
    assert "4 of 4 would get it" in text
    assert "1 of 4 would get it" in text_of(web.get("/console/topics/orders/readers", params={"routing_key": "other"}))
    assert "write headers as" in text_of(web.get("/console/topics/orders/readers", params={"headers": "a"})).lower()
    answer = web.post("/console/topics/orders/settings", data={"retention": "2d"})
    assert answer.status_code == 303
    assert "Saved." in text_of(web.get(answer.headers["location"]))
    assert "Now 2 d" in text_of(web.get("/console/topics/orders/settings"))
    assert "Not saved." in text_of(web.post("/console/topics/orders/settings", data={"partitions": "1"}))


def test_publishing(web: httpx.Client, ids: dict[str, str]) -> None:
    form = check(web.get("/console/topics/orders/publish", params={"copy": ids["odd"]}).text)
    assert ODD in form.text
    assert "not valid JSON" in text_of(web.post("/console/topics/orders/publish", data={"payload": "{"}))
    answer = web.post(
        "/console/topics/orders/publish", data={"payload": ODD, "routing_key": "nobody", "headers": "tenant=b"}
    )
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/console/m/")
    address = answer.headers["location"]
    wait_until(lambda: "9007199254740993" in web.get(address).text)


def test_deleting_needs_the_name(web: httpx.Client, module_db: str) -> None:
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('old')")
        conn.execute("select trunkline.create_group('old', 'late')")
    assert "Ends with it: 1 group (late)" in text_of(web.get("/console/topics/old/delete"))
    assert web.post("/console/topics/old/delete", data={"name": "ol"}).status_code == 400
    assert web.post("/console/groups/old/late/delete", data={"name": "late"}).status_code == 303
    assert web.post("/console/topics/old/delete", data={"name": "old"}).status_code == 303
    assert web.get("/console/topics/old/settings").status_code == 404


def position(db: str) -> list[int]:
    with psycopg.connect(db, autocommit=True) as conn:
        rows = conn.execute("select next_offset from trunkline.group_stats('orders', 'audit') order by partition")
        return [int(row[0]) for row in rows]


def test_groups_seek_with_preview_and_undo(web: httpx.Client, module_db: str) -> None:
    text = text_of(web.get("/console/groups"))
    assert "audit" in text
    text = text_of(web.get("/console/groups/orders/audit"))
    assert "No member reads this group" in text
    before = position(module_db)
    page = web.get("/console/groups/orders/audit/seek", params={"to": "latest"})
    text = check(page.text).text
    assert re.search(r"\d+ messages are skipped", text)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text))
    assert position(module_db) == before
    # the numbers of another preview
    again = web.post("/console/groups/orders/audit/seek", data={**fields, "skipped": "100000"})
    assert "changed=1" in again.headers["location"]
    assert position(module_db) == before
    moved = web.post("/console/groups/orders/audit/seek", data=fields)
    assert moved.status_code == 303
    assert position(module_db) != before
    page = web.get(moved.headers["location"])
    assert "The group was moved." in check(page.text).text
    run = re.search(r'name="run" value="(\d+)"', page.text)
    assert run is not None
    assert web.post("/console/groups/orders/audit/undo", data={"run": "999999"}).status_code == 404
    assert web.post("/console/groups/orders/audit/undo", data={"run": run[1]}).status_code == 303
    assert position(module_db) == before
    assert "is no place" in text_of(web.get("/console/groups/orders/audit/seek", params={"to": "time", "place": "soon"}))


def test_reading_why_a_message_waits(browser: Browser, server: HttpServer, ids: dict[str, str]) -> None:
    page = browser.page()
    page.go(f"{server.url}/console")
    page.fill("#find", ids["odd"])
    with page.loading():
        page.run("document.querySelector('form.find').requestSubmit()")
    assert page.text("h1") == ids["odd"]
    assert "What to do now" in page.text(".verdict")
    assert page.run("document.querySelector('#panel-history svg') !== null")
    assert page.errors == []


def test_moving_a_group_in_the_browser(browser: Browser, server: HttpServer, module_db: str) -> None:
    before = position(module_db)
    page = browser.page()
    page.go(f"{server.url}/console/groups")
    with page.loading():
        page.click("#panel-rows tbody a")
    with page.loading():
        page.run("[...document.querySelectorAll('.acts a')].find((a) => a.textContent === 'Seek…').click()")
    page.run("document.querySelector('#to').value = 'latest'")
    with page.loading():
        page.run("document.querySelector('main form').requestSubmit()")
    assert "skip" in page.text("button.costly")
    with page.loading():
        page.click("button.costly")
    assert position(module_db) != before
    with page.loading():
        page.click(".banner button")
    assert position(module_db) == before
    assert page.errors == []


def test_searching_in_the_browser(browser: Browser, server: HttpServer) -> None:
    page = browser.page()
    page.go(f"{server.url}/console/topics/orders/messages")
    page.fill("#filter", "routing:order.paid")
    with page.loading():
        page.run("document.querySelector('form.filter').requestSubmit()")
    assert "Reads at most" in page.text(".cost")
    assert "reads each message" in page.text(".terms")
    assert "Scanned" in page.text(".pager")
    with page.loading():
        page.run("[...document.querySelectorAll('.pager a')].find((a) => a.textContent === 'Next 50').click()")
    assert "after=" in page.run("location.search")
    assert page.errors == []


def test_following_a_topic(browser: Browser, server: HttpServer, module_db: str) -> None:
    page = browser.page()
    page.go(f"{server.url}/console/topics/orders/messages")
    page.click("[data-tail-toggle]")
    page.until("document.querySelector('#tail').dataset.open !== undefined")
    with psycopg.connect(module_db, autocommit=True) as conn:
        publish(conn, '{"live": "<b>now</b>"}', "someone", "live")
    page.until("document.querySelector('#tail tbody tr') !== null")
    assert "<b>now</b>" in page.text("#tail tbody")
    assert page.run("document.querySelector('#tail tbody b')") is None
    assert page.text("#tail-count").startswith("1 of 1")
    page.click("[data-tail-toggle]")
    assert page.text("[data-tail-toggle]") == "Follow"
    assert page.errors == []
