"""The console in Debian's chromium: live updates, keys, copying, looks, and axe-core on every page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.console.browser import Browser, Page
from tests.console.filling import fill
from tests.console.pages import make_dead_job, pages
from tests.http.servers import HttpServer, serving
from tests.support.waiting import wait_until

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@pytest.fixture(scope="module")
def server(module_db: str) -> Iterator[HttpServer]:
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('mine', 2)")
        conn.execute("select trunkline.create_queue('mine')")
        make_dead_job(conn)
        conn.execute("select trunkline.create_queue('idle')")
        conn.execute("select trunkline.pause_queue('idle')")
        conn.execute("select trunkline.subscribe('mine', 'mine', 'mine')")
        conn.execute("select trunkline.publish('mine', '{}') from generate_series(1, 5)")
        conn.execute("select trunkline.fetch('mine', 'g', 'me')")
        fill(conn)
    with serving(module_db) as running:
        yield running


def axe(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the page."""
    page.run(AXE)
    found: list[dict[str, Any]] = page.run(f"axe.run(document, {json.dumps(_RULES)}).then((found) => found.violations)")
    return [f"{each['id']}: {each['help']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_is_accessible_and_runs_nothing_inline(browser: Browser, server: HttpServer, dark: bool) -> None:
    page = browser.page(dark=dark)
    for path in pages():
        page.go(f"{server.url}{path}")
        assert axe(page) == [], path
        assert page.errors == [], path


def test_every_page_fits_a_phone(browser: Browser, server: HttpServer) -> None:
    page = browser.page(width=390, height=844)
    for path in pages():
        page.go(f"{server.url}{path}")
        assert page.run("document.documentElement.scrollWidth") <= 390, path
        assert page.errors == [], path


def test_every_page_without_scripts(browser: Browser, server: HttpServer) -> None:
    page = browser.page(scripts=False)
    for path in pages():
        page.go(f"{server.url}{path}")
        root = page.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        html = page.send("DOM.getOuterHTML", nodeId=root)["outerHTML"]
        assert "<main" in html
        assert "data-pause" in html
        assert page.errors == [], path
        assert not [address for address in page.requests if "/~/" in address or "/live" in address]


def ready(page: Page) -> str:
    """Return the number of ready messages that the overview shows."""
    row = "[...document.querySelectorAll('#panel-queues tbody tr')].find((row) => row.innerText.startsWith('mine'))"
    return str(page.run(f"{row}.cells[1].innerText"))


def test_a_change_arrives_without_a_reload(browser: Browser, server: HttpServer, module_db: str) -> None:
    page = browser.page()
    page.go(f"{server.url}/console")
    page.until("document.querySelector('.live.on') !== null")
    before = ready(page)
    page.run("window.kept = true")
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.enqueue('mine', '{}') from generate_series(1, 100)")
    wait_until(lambda: ready(page) != before)
    assert page.run("window.kept") is True
    assert page.errors == []


def test_one_stream_for_all_tabs_and_the_next_takes_over(browser: Browser, server: HttpServer, module_db: str) -> None:
    tabs = [browser.page()]
    tabs += [browser.tab(tabs[0].context) for _ in range(9)]
    for page in tabs:
        page.go(f"{server.url}/console")
        assert page.text("h1") == "Overview"
    streams = [page for page in tabs if any("/console/live" in address for address in page.requests)]
    assert len(streams) == 1
    others = [page for page in tabs if page is not streams[0]]
    streams[0].go("about:blank")
    wait_until(lambda: any("/console/live" in address for page in others for address in page.requests))
    before = {id(page): ready(page) for page in others}
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.enqueue('mine', '{}') from generate_series(1, 10)")
    shown = [page for page in others if page.run("document.visibilityState") == "visible"]
    assert shown
    wait_until(lambda: all(ready(page) != before[id(page)] for page in shown))


def test_keys(browser: Browser, server: HttpServer) -> None:
    page = browser.page()
    page.go(f"{server.url}/console")
    page.press("k", control=True)
    assert page.run("document.activeElement.id") == "find"
    page.go(f"{server.url}/console")
    with page.loading():
        page.press("g")
        page.press("t")
    assert page.text("h1") == "Topics"
    page.press("j")
    assert page.run("document.activeElement.textContent") == "mine"
    page.run("document.activeElement.blur()")
    page.press(" ")
    assert page.text("[data-pause]") == "Paused"


def test_finding_and_looks(browser: Browser, server: HttpServer) -> None:
    page = browser.page()
    page.go(f"{server.url}/console")
    page.fill("#find", "g")
    with page.loading():
        page.run("document.querySelector('form.find').requestSubmit()")
    assert page.run("location.pathname") == "/console/groups/mine/g"
    page.go(f"{server.url}/console")
    with page.loading():
        page.click("button[name=theme][value=dark]")
    page.until("getComputedStyle(document.body).backgroundColor === 'rgb(15, 16, 18)'")
    with page.loading():
        page.click("button[name=rows]")
    page.until("document.documentElement.dataset.rows === 'compact'")
    with page.loading():
        page.click("button[name=zone][value=local]")
    assert page.run("location.pathname") == "/console"


def test_copy_as(browser: Browser, server: HttpServer) -> None:
    page = browser.page()
    page.go(f"{server.url}/console/topics/mine")
    page.run("document.querySelector('main details.menu').open = true")
    page.run("document.querySelector('.copies details').open = true")
    page.click(".copies [data-copy]")
    page.until("document.querySelector('.toast') !== null")
    assert page.text(".toast") == "Copied."
