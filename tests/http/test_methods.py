"""HEAD and OPTIONS, text bodies, and a body that is too large."""

from __future__ import annotations

import http.client as http_client
import shutil
import subprocess
import urllib.error
import urllib.request
from itertools import repeat
from pathlib import Path

import httpx
import pytest

from tests.http.servers import HttpServer, problem

JSON = {"content-type": "application/json"}
CHUNKED = {False: {}, True: {"transfer-encoding": "chunked"}}


@pytest.fixture
def queue(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/queues?ensure=true", json={"name": name}).status_code == 201
    return name


def test_options_lists_every_method(http: httpx.Client, queue: str) -> None:
    answer = http.options(f"/v1/queues/{queue}")
    assert answer.status_code == 204
    assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH"
    assert http.options(f"/compat/psqlqueue/v1/queues/{queue}/messages").headers["allow"] == "GET, OPTIONS, POST"
    assert http.options("/v1/nothing").status_code == 404


@pytest.mark.parametrize("path", ["/v1/queues/{}", "/v1/queues/{}/messages", "/v1/queues", "/healthz", "/"])
def test_405_lists_the_same_methods_as_options(http: httpx.Client, queue: str, path: str) -> None:
    for method in ("PATCH", "TRACE", "MKCOL"):
        allowed = http.options(path.format(queue)).headers["allow"]
        if method not in allowed:
            answer = http.request(method, path.format(queue))
            problem(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == allowed
            assert ("HEAD" in allowed) == (http.head(path.format(queue)).status_code != 405)


def test_root_leads_a_browser_to_the_console(http: httpx.Client) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    answer = http.get("/", headers=browser)
    assert (answer.status_code, answer.headers["location"], answer.headers["vary"]) == (303, "/console", "accept")
    page = http.get("/", headers=browser, follow_redirects=True)
    assert page.url.path == "/console" and page.headers["content-type"].startswith("text/html")
    problem(http.get("/"), 404, "no_route")
    problem(http.get("/nothing", headers=browser), 404, "no_route")


def test_head_is_get_without_a_body(http: httpx.Client, queue: str) -> None:
    for path, status in ((f"/v1/queues/{queue}", 200), ("/docs", 200), ("/healthz", 200), ("/v1/queues/none", 404)):
        get, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"") == (status, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
        assert head.headers["content-length"] == get.headers["content-length"]


def test_head_claims_nothing(http: httpx.Client, queue: str) -> None:
    http.post(f"/v1/queues/{queue}/messages", json={"payload": 1}).raise_for_status()
    answer = http.head(f"/compat/psqlqueue/v1/queues/{queue}/messages")
    assert answer.status_code == 405 and "HEAD" not in answer.headers["allow"]
    assert len(http.post(f"/v1/queues/{queue}/claims").json()["deliveries"]) == 1


@pytest.mark.parametrize(("text", "payload"), [("hello", "hello"), ("12", "12"), ('{"payload": {"n": 1}}', {"n": 1})])
def test_plain_text_is_the_payload_unless_it_looks_like_a_message(
    http: httpx.Client, queue: str, text: str, payload: object
) -> None:
    """`fetch` sends JSON as text when nothing else is said."""
    answer = http.post(f"/v1/queues/{queue}/messages", content=text, headers={"content-type": "text/plain"})
    assert answer.status_code == 201, answer.text
    (delivery,) = http.post(f"/v1/queues/{queue}/claims").json()["deliveries"]
    assert delivery["payload"] == payload


def test_plain_text_that_is_too_large(http: httpx.Client, queue: str) -> None:
    answer = http.post(f"/v1/queues/{queue}/messages", content="x" * 2**21, headers={"content-type": "text/plain"})
    problem(answer, 413, "body_too_large")


MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("size", [12, 40])
def test_413_reaches_urllib(server: HttpServer, queue: str, size: int) -> None:
    """urllib writes the whole body before it reads."""
    request = urllib.request.Request(
        f"{server.url}/v1/queues/{queue}/messages", data=b"x" * size * MEGABYTE, headers={"content-type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as caught:
        opener.open(request, timeout=60)
    assert caught.value.code == 413
    assert b"the body must have at most" in caught.value.read()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [12, 40])
def test_413_reaches_http_client(server: HttpServer, queue: str, size: int, chunked: bool) -> None:
    conn = http_client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = repeat(b"x" * MEGABYTE, size) if chunked else b"x" * size * MEGABYTE
    conn.request("POST", f"/v1/queues/{queue}/messages", body=body, encode_chunked=chunked, headers=JSON | CHUNKED[chunked])
    answer = conn.getresponse()
    assert (answer.status, answer.getheader("connection")) == (413, "close")
    assert b"the body must have at most" in answer.read()
    conn.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(("header", "sends"), [("Expect:", True), ("Expect: 100-continue", False)])
def test_413_reaches_curl(server: HttpServer, queue: str, tmp_path: Path, header: str, sends: bool) -> None:
    """curl asks for consent to a large body and then sends none of it."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(40 * MEGABYTE)
    command = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "-H", header, "-o", "-"]
    command += ["-w", "\n%{http_code} %{size_upload}", "--data-binary", f"@{large}"]
    done = subprocess.run(
        [*command, f"{server.url}/v1/queues/{queue}/messages"], capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr
    body, _, written = done.stdout.rpartition("\n")
    status, sent = written.split()
    assert status == "413" and "the body must have at most" in body
    assert (int(sent) > 0) == sends
