"""Flows of operators in a browser: endpoints, pipelines and archives, schedules, tokens.

With TRUNKLINE_SCREENSHOTS=DIRECTORY, pictures of these pages are stored there, in light, dark and phone width.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.console.browser import Browser, Page
from tests.console.filling import fill
from tests.http.servers import HttpServer, serving
from tests.http.test_security import run
from tests.push.dispatch import Process
from tests.push.receivers import Receiver, receiving
from tests.support.waiting import wait_until
from trunkline import Client
from trunkline.cli.commands.demo_push import Pipelines
from trunkline.cli.commands.demo_traffic import Traffic
from trunkline.db.calls import tokens

SHOTS = os.environ.get("TRUNKLINE_SCREENSHOTS")


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture(scope="module")
def admin(module_db: str) -> str:
    text, _ = run(module_db, lambda conn: tokens.create_token(conn, "ops", ["admin:*"], made_by="tests"))
    return str(text)


@pytest.fixture(scope="module")
def server(module_db: str, admin: str, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('sales', 1)")
        conn.execute("select trunkline.publish('sales', '{}') from generate_series(1, 40)")
        fill(conn)
        conn.execute("select trunkline.create_endpoint(p_name => 'shop', p_url => %s)", [receiver.url])
        conn.execute("select trunkline.create_queue('shipped')")
        conn.execute("select trunkline.bind_queue('shipped', 'shop')")
        conn.execute("insert into trunkline.sink_commits values ('clean', 1, 10, now()), ('clean', 2, 20, now())")
        conn.execute("select trunkline.sequence_logs(null, array['sales'])")
        conn.execute("select trunkline.ensure_archive('sales', '/archive')")
        conn.execute(
            "select trunkline.add_archive_files('sales', '{0}', '{1}', '{30}', '{a.parquet}', '{9000}',"
            " array[now()], array[now()], array[repeat('0', 64)])"
        )
    if SHOTS:
        asyncio.run(trade(module_db))
    dispatcher = Process(module_db, tmp_path_factory.mktemp("starts") / "starts")
    try:
        with serving(module_db) as running:
            yield running
    finally:
        dispatcher.stop()


async def trade(url: str) -> None:
    """Let the pictures show what the demo shows."""
    async with Client(url) as mq:
        traffic, pipelines = Traffic(mq), Pipelines(mq, url)
        await traffic.prepare()
        await pipelines.start()
        for _ in range(12):
            await traffic.round()
            await pipelines.round()


@pytest.fixture(scope="module")
def operator(browser: Browser, server: HttpServer, admin: str) -> Page:
    """A tab of somebody who is signed in."""
    page = browser.page()
    sign_in(page, server, admin)
    return page


def sign_in(page: Page, server: HttpServer, text: str) -> None:
    page.go(f"{server.url}/console/login")
    page.fill("input[name=token]", text)
    submit(page, "form:has(input[name=token])")


def submit(page: Page, form: str) -> None:
    with page.loading():
        page.run(f"document.querySelector('{form}').requestSubmit()")


def press(page: Page, word: str) -> None:
    """Press the button with this word."""
    with page.loading():
        page.run(
            f"[...document.querySelectorAll('main button, dialog button')].find((b) => b.innerText === '{word}').click()"
        )


def test_test_an_endpoint_and_rotate_its_secret(
    operator: Page, server: HttpServer, receiver: Receiver, module_db: str
) -> None:
    page = operator
    page.go(f"{server.url}/console/endpoints")
    assert "Healthy" in page.text("#panel-rows")
    page.go(f"{server.url}/console/endpoints/shop")
    press(page, "Send test request")
    assert "The receiver accepted the test request." in page.text("#test")
    assert "test request" in page.text("#panel-attempts")
    before = len(receiver.seen)
    assert before
    page.run("document.querySelector('a[data-dialog]').click()")
    page.until("document.querySelector('dialog[open] form') !== null")
    press(page, "Rotate secret")
    secret = page.text(".code pre").strip()
    assert secret.startswith("whsec_")
    with psycopg.connect(module_db) as conn:
        row = conn.execute("select (trunkline.endpoint_secrets('shop'))[1]").fetchone()
    assert row == (secret,)
    page.go(f"{server.url}/console/endpoints/shop")
    assert secret not in str(page.run("document.documentElement.outerHTML"))
    assert "secret_rotated" in page.text("#panel-events")
    press(page, "Pause")
    assert "Paused" in page.text("#panel-status")
    press(page, "Resume")
    assert "Healthy" in page.text("#panel-status")
    assert page.errors == []


def test_attempts_are_filtered_by_outcome_and_status(
    operator: Page, server: HttpServer, receiver: Receiver, module_db: str
) -> None:
    page = operator
    receiver.answer = lambda seen: 503 if b"bad" in seen.body else 200
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.enqueue('shipped', '{\"state\": \"bad\"}')")
        conn.execute("select trunkline.enqueue('shipped', '{\"state\": \"good\"}')")

    def shown(query: str) -> str:
        page.go(f"{server.url}/console/endpoints/shop?{query}")
        return page.text("#panel-attempts")

    wait_until(lambda: "503" in shown("status=5xx") and "200" in shown("outcome=acked"))
    assert "503" not in page.run("document.querySelector('#panel-attempts tbody').innerText")
    assert "No attempt matches." in shown("outcome=buried")
    assert "must be a number" in shown("status=what")


def test_a_portal_token_sees_one_endpoint_only(browser: Browser, operator: Page, server: HttpServer) -> None:
    operator.go(f"{server.url}/console/endpoints/shop/portal")
    press(operator, "Create token")
    text = operator.text(".code pre").strip()
    page = browser.page()
    sign_in(page, server, text)
    assert page.run("location.pathname") == "/console/endpoints/shop"
    assert "shipped" not in page.text()
    for word in ("Send test request", "Pause", "Rotate secret"):
        assert word in page.text("main")
    press(page, "Send test request")
    assert "The receiver accepted the test request." in page.text("#test")
    for path in ("/console/endpoints/mine", "/console/endpoints", "/console", "/console/system"):
        page.go(f"{server.url}{path}")
        assert page.text("h1") == "Not allowed"
    page.go(f"{server.url}/console/endpoints/shop")
    with page.loading():
        page.click("form.who button")
    assert page.run("location.pathname") == "/console/login"


def test_watch_a_spark_query_and_the_archive(operator: Page, server: HttpServer, module_db: str) -> None:
    page = operator
    page.go(f"{server.url}/console/pipelines")
    rows = page.text("#panel-rows tbody")
    assert "<b>bold</b>" in rows
    assert rows.index("Failed") < rows.index("Running")
    archive = page.text("#panel-archives tbody")
    assert "sales" in archive
    assert "30" in archive
    assert "10" in archive
    page.go(f"{server.url}/console/pipelines/status?name=clean")
    assert "addBatch" in page.text("#panel-batch")
    assert "20" in page.text("#panel-commits")
    page.until("document.querySelector('.live.on') !== null")
    page.run("window.kept = true")
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.report_pipeline('clean', 'stream', p_batch => 8, p_rows => 1000, p_lag => 4321)")
    page.until("document.querySelector('#panel-status').innerText.includes('4,321')")
    assert page.run("window.kept") is True


def test_create_a_schedule_with_its_preview(operator: Page, server: HttpServer, module_db: str) -> None:
    page = operator
    page.go(f"{server.url}/console/new-schedule")
    page.fill("#f-name", "nightly")
    page.fill("#f-target", "hooks")
    page.fill("#f-zone", "Europe/Berlin")
    page.fill("#f-cron", "99 * * * *")
    page.until("document.querySelector('#preview .bad') !== null")
    page.fill("#f-cron", "30 3 * * 1-5")
    page.until("document.querySelector('#preview li') !== null")
    assert "at 03:30 from Monday to Friday" in page.text("#preview")
    press(page, "Create nightly")
    assert page.text("h1") == "nightly"
    press(page, "Run now")
    assert "by hand" in page.text("#panel-fires")
    press(page, "Pause")
    assert "paused" in page.text("#panel-status")
    with psycopg.connect(module_db) as conn:
        row = conn.execute("select cron, timezone, paused from trunkline.list_schedules() where name = 'nightly'").fetchone()
    assert row == ("30 3 * * 1-5", "Europe/Berlin", True)


def test_issue_and_revoke_a_token(browser: Browser, operator: Page, server: HttpServer) -> None:
    page = operator
    page.go(f"{server.url}/console/access/new")
    page.fill("#t-name", "reader")
    page.click("#t-read")
    page.fill("#t-pattern", "orders")
    press(page, "Create token")
    text = page.text(".code pre").strip()
    assert text.startswith("tl_")
    page.go(f"{server.url}/console/access?token=reader&object=orders")
    assert text.rpartition("_")[2] not in str(page.run("document.documentElement.outerHTML"))
    assert "ops" in page.text("#panel-token_list")
    rights = page.run("[...document.querySelectorAll('#panel-rights tbody tr')].map((row) => row.innerText)")
    assert [row.split()[0] for row in rights if "Yes" in row] == ["view", "read"]
    reader = browser.page()
    sign_in(reader, server, text)
    assert reader.text("h1") == "Overview"
    page.go(f"{server.url}/console/access/revoke?token=reader")
    assert page.run("document.querySelector('.btn.final').disabled") is True
    page.fill("#confirm", "reader")
    press(page, "Revoke token")
    assert "1 revoked or expired" in page.text("#panel-token_list")

    def refused() -> bool:
        reader.go(f"{server.url}/console")
        return bool(reader.run("location.pathname === '/console/login'"))

    wait_until(refused)
    page.go(f"{server.url}/console/access/audit?verify=1")
    assert "Verified" in page.text("#panel-chain")
    assert "reader" in page.text("#panel-entries")
    assert page.errors == []


def test_the_system_page_says_who_holds_back_vacuum(operator: Page, server: HttpServer, module_db: str) -> None:
    page = operator
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute(
            "insert into trunkline.alerts (at, kind, detail) values (now(), 'odd_thing', '{\"queue\": \"<b>x</b>\"}')"
        )
    page.go(f"{server.url}/console/system")
    assert "<b>x</b>" in page.text("#panel-alerts")
    with page.loading():
        page.run("document.querySelector('#panel-alerts form button').click()")
    assert "No open alerts." in page.text("#panel-alerts")
    page.go(f"{server.url}/console/system?alerts=all")
    assert "by ops" in page.text("#panel-alerts")
    assert "log" in page.text("#panel-sizes")


PAGES = {
    "overview": "/console",
    "endpoints": "/console/endpoints",
    "endpoint": "/console/endpoints/shop",
    "pipelines": "/console/pipelines",
    "pipeline": "/console/pipelines/status?name=clean",
    "schedules": "/console/schedules",
    "schedule": "/console/schedules/s",
    "new-schedule": "/console/new-schedule?name=nightly&cron=30+3+*+*+1-5&timezone=Europe/Berlin&target=hooks",
    "system": "/console/system?checks=all",
    "segments": "/console/system/segments",
    "access": "/console/access?token=ops&object=orders",
    "new-token": "/console/access/new",
    "audit": "/console/access/audit?verify=1",
    "rotate": "/console/endpoints/shop/rotate",
}


@pytest.mark.skipif(not SHOTS, reason="set TRUNKLINE_SCREENSHOTS to a directory to store pictures")
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_pictures(browser: Browser, server: HttpServer, admin: str, look: str) -> None:
    width, height = (390, 844) if look == "phone" else (1440, 1000)
    page = browser.page(dark=look == "dark", width=width, height=height)
    sign_in(page, server, admin)
    for name, path in PAGES.items():
        page.go(f"{server.url}{path}")
        page.screenshot(Path(str(SHOTS)) / f"{name}-{look}.png")
