"""What tokens with few scopes see of messages, searches and groups."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import psycopg
import pytest

from tests.console.test_pages import check
from tests.console.test_sessions import Token, csrf, sign_in, token, web
from tests.http.servers import HttpServer, serving
from tests.http.test_security import bearer

__all__ = ["bearer", "token", "web"]
SECRET = "hunter2"


@pytest.fixture(scope="module")
def message(module_db: str) -> str:
    with psycopg.connect(module_db, autocommit=True) as conn:
        for topic in ("orders", "other"):
            conn.execute("select trunkline.create_topic(%s)", (topic,))
            conn.execute("select trunkline.create_group(%s, 'audit')", (topic,))
        conn.execute("select trunkline.create_queue('mail')")
        conn.execute("select trunkline.subscribe('mail', 'orders')")
        query = "select (trunkline.publish('orders', %s::jsonb, p_key => %s, p_headers => %s::jsonb)).id"
        row = conn.execute(query, (f'{{"password": "{SECRET}"}}', SECRET, f'{{"h": "{SECRET}"}}')).fetchone()
        conn.execute("call trunkline.upkeep()")
        conn.execute("select trunkline.bury(array_agg(receipt), 'failed with hunter2') from trunkline.claim('mail')")
    assert row is not None
    return str(row[0])


@pytest.fixture(scope="module")
def server(module_db: str, token: Token, message: str) -> Iterator[HttpServer]:
    token("admin:*")
    with serving(module_db) as running:
        yield running


def test_names_without_contents(web: httpx.Client, token: Token, message: str) -> None:
    sign_in(web, token("view:orders", "view:mail"))
    page = web.get(f"/console/m/{message}")
    text = check(page.text).text
    assert "Needs scope read:orders." in text
    assert "audit" in text
    assert "mail" in text
    for path in (f"/console/m/{message}", "/console/topics/orders/0@1", "/console/topics/orders/messages",
                 f"/console/topics/orders/publish?copy={message}"):  # fmt: skip
        assert SECRET not in web.get(path).text, path
    assert "needs the scope read:orders" in web.get("/console/topics/orders/messages", params={"where": "key:a"}).text
    assert web.get("/console/topics/orders/messages/export").status_code == 403
    assert web.get(f"/console/m/{message}/payload").status_code == 403
    assert web.get("/console/topics/orders/tail").status_code == 403


def test_what_another_scope_hides(web: httpx.Client, token: Token, message: str) -> None:
    sign_in(web, token("read:other"))
    text = check(web.get(f"/console/m/{message}").text).text
    assert "No message has this id" in text
    assert "orders" not in text
    assert web.get("/console/topics/orders/0@1").status_code == 403
    groups = check(web.get("/console/groups").text).text
    assert "other" in groups
    assert "orders" not in groups
    assert web.get(f"/console/m/{message}/payload").status_code in (403, 404)


def test_moving_a_group_needs_operate(web: httpx.Client, token: Token) -> None:
    sign_in(web, token("read:orders"))
    page = web.get("/console/groups/orders/audit/seek", params={"to": "latest"}).text
    assert "needs scope operate:orders" in check(page).text
    form = {"csrf": csrf(web), "to": "latest", "skipped": "1", "again": "0"}
    assert web.post("/console/groups/orders/audit/seek", data=form).status_code == 403
    assert web.post("/console/groups/orders/audit/undo", data={**form, "run": "1"}).status_code == 403
    assert web.post("/console/topics/orders/publish", data={**form, "payload": "{}"}).status_code == 403
