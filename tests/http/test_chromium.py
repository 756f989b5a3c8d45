"""A real browser against a server without tokens: forged requests, DNS rebinding; and the token field of the API page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.console import browser as driver
from tests.console.browser import Browser, Page
from tests.http.servers import HttpServer, free_port, serving
from tests.http.test_security import run
from tests.support.waiting import wait_until
from trunkline.db.calls import tokens

pytestmark = pytest.mark.skipif(driver.PROGRAM is None, reason=driver.MISSING)
QUEUE = {"name": "q", "lease_seconds": 30}


class Attacker(BaseHTTPRequestHandler):
    """A page on another site, whose script is that of the test."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>attacker</title><body></body>")

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def attacker(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    server = ThreadingHTTPServer((address, port), Attacker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def chromium(monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Resolves *.example to loopback addresses, as an attacker's name server would."""
    rules = "MAP evil.example 127.0.0.1, MAP rebind.example 127.0.0.2"
    monkeypatch.setattr(driver, "_SWITCHES", (*driver._SWITCHES, f"--host-resolver-rules={rules}"))
    browser = Browser()
    yield browser
    browser.close()


def attempt(page: Page, url: str, **options: Any) -> Any:
    """Return the body of a request of the page's script, or "refused" if the browser does not show it."""
    script = f"fetch({json.dumps(url)}, {json.dumps(options)}).then((r) => r.text(), () => 'refused')"
    return page.run(script)


def submit(server: HttpServer, page: Page, path: str, method: str, kind: str = "text/plain", field: str = "") -> None:
    """Submit a form into a frame and wait until the server has refused it."""
    before = refused(server)
    page.run(
        f"""{{
            const frame = document.body.appendChild(document.createElement("iframe"));
            frame.name = "f" + Math.random();
            const form = document.body.appendChild(document.createElement("form"));
            Object.assign(form, {json.dumps({"action": server.url + path, "method": method, "enctype": kind})});
            form.target = frame.name;
            const input = form.appendChild(document.createElement("input"));
            Object.assign(input, {{name: {json.dumps(field)}, value: ""}});
            form.submit();
        }}"""
    )
    wait_until(lambda: refused(server) > before)


def refused(server: HttpServer) -> float:
    """Return how many requests of other sites the server has refused."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith('trunkline_requests_refused_total{reason="cross_origin"}')]
    return float(counted[0].rpartition(" ")[2]) if counted else 0.0


def state(server: HttpServer) -> tuple[int, int, int]:
    """Return the number of queues, and of ready and leased messages of `q`."""
    stats = httpx.get(f"{server.url}/v1/queues/q/stats").json()
    return len(httpx.get(f"{server.url}/v1/queues").json()["data"]), stats["ready"], stats["leased"]


def test_a_page_of_another_site_can_do_nothing(chromium: Browser, db: str) -> None:
    with serving(db) as server, attacker() as port:
        httpx.post(f"{server.url}/v1/queues", json=QUEUE).raise_for_status()
        httpx.post(f"{server.url}/v1/queues/q/messages", json={"payload": 1}).raise_for_status()
        before = state(server)
        assert before == (1, 1, 0)
        page = chromium.page()
        page.go(f"http://evil.example:{port}/")
        assert page.run("document.title") == "attacker"
        for path in ("/v1/stats", "/metrics", "/v1/queues/q/peek", "/compat/pg-messaging/queue/claim?queue=q"):
            assert attempt(page, server.url + path) == "refused"
            attempt(page, server.url + path, mode="no-cors")
        body = json.dumps({"name": "evil"})
        for options in (
            {"body": body, "headers": {"content-type": "application/json"}},
            {"body": body, "mode": "no-cors"},
            {"body": body, "mode": "no-cors", "headers": {"content-type": "text/plain"}, "referrerPolicy": "no-referrer"},
        ):
            for path in ("/v1/queues", "/v1/queues/q/claims", "/v1/queues/q/messages"):
                attempt(page, server.url + path, method="POST", **options)
        attempt(page, f"{server.url}/v1/queues/q", method="DELETE")
        attempt(page, f"{server.url}/v1/queues/q/purge", method="PUT")
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            submit(server, page, "/v1/queues", "post", kind, '{"name": "evil", "x": "')
            submit(server, page, "/v1/queues/q/claims", "post", kind)
        submit(server, page, "/compat/pg-messaging/queue/claim?queue=q", "get", field="queue")
        count = refused(server)
        page.run(f"document.body.appendChild(new Image()).src = '{server.url}/compat/psqlqueue/v1/queues/q/messages'")
        assert page.run(f"navigator.sendBeacon('{server.url}/v1/queues/q/claims', '{{}}')")
        wait_until(lambda: refused(server) >= count + 2)
        # a link that the user follows
        count = refused(server)
        page.run(f"location.href = '{server.url}/compat/pg-messaging/queue/claim?queue=q'")
        wait_until(lambda: refused(server) > count)
        assert state(server) == before

        page.go(f"{server.url}/docs")
        assert json.loads(attempt(page, f"{server.url}/v1/queues/q/claims", method="POST"))["deliveries"]
        assert state(server) == (1, 0, 1), "the same requests work from a page of the server"


def test_a_name_that_is_rebound_reaches_nothing(chromium: Browser, db: str) -> None:
    """The attacker's name leads to his server, then to ours at the same port: the browser sees one origin."""
    page = chromium.page()
    with attacker("127.0.0.2", free_port()) as port:
        page.go(f"http://rebind.example:{port}/")
        assert page.run("document.title") == "attacker"
    with serving_on("127.0.0.2", port, db) as server:
        httpx.post(f"{server.url}/v1/queues", json=QUEUE).raise_for_status()
        for path in ("/v1/stats", "/metrics", "/v1/queues", "/"):
            assert json.loads(attempt(page, path))["error"] == "wrong_host"
        created = attempt(page, "/v1/queues", method="POST", body=json.dumps({"name": "evil"}))
        assert json.loads(created)["error"] == "wrong_host"
        assert len(httpx.get(f"{server.url}/v1/queues").json()["data"]) == 1


@contextmanager
def serving_on(address: str, port: int, db: str) -> Iterator[HttpServer]:
    server = HttpServer(db, "--host", address, port=port)
    server.url = f"http://{address}:{port}"
    try:
        yield server.start()
    finally:
        server.end()


def test_the_token_of_the_api_page(chromium: Browser, db: str) -> None:
    """The field decides about each request; the token is in no address, no cookie and no storage."""
    token, _ = run(db, lambda conn: tokens.create_token(conn, "me", ["admin:*"]))
    with serving(db) as server:
        use_token(chromium.page(), server, token)


def use_token(page: Page, server: HttpServer, token: str) -> None:
    page.go(f"{server.url}/docs")
    page.until("document.querySelectorAll('details').length > 10")
    page.run("[...document.querySelectorAll('details')].find((d) => d.innerText.includes('/v1/stats')).open = true")
    page.until("document.querySelector('details[open] button') !== null")
    for text, status in (("", "401"), ("tl_wrong", "401"), (token, "200")):
        page.run("document.getElementById('token').value = ''")
        page.fill("#token", text)
        page.click("details[open] button")
        page.until(f"document.querySelector('details[open] pre').innerText.includes('{status} ')")
    assert page.run("document.getElementById('token').type") == "password"
    assert page.run("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"
    assert not [url for url in page.requests if token in url]
    page.go(f"{server.url}/docs")
    assert page.run("document.getElementById('token').value") == ""
    assert not [error for error in page.errors if "401" not in error]
