"""Every page over HTTP: well-formed, without inline code, also with hostile names and without the database."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.console.filling import fill
from tests.console.pages import fragments, make_dead_job, pages
from tests.http.servers import HttpServer, serving
from tests.support.waiting import wait_until
from trunkline.server.console.pages import STATIC

VENDORED = {"htmx-4.0.1.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"}
"""Files of others, as npm has them."""
HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "';alert(1)//", "{{ 7 * 7 }}", "{% raw %}",
    "javascript:alert(1)",
    "</textarea><svg/onload=alert(1)>", "\u202eevil", "&lt;b&gt;", "${7*7}", "<!--", "]]>",
    "\\u003cscript\\u003e", "%3Cscript%3E",
]  # fmt: skip
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Checker(HTMLParser):
    """Collects what a page must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.ids: set[str] = set()
        self.labels: set[str] = set()
        self.inputs: list[str | None] = []
        self.refers: set[str] = set()
        self.tags: list[str] = []
        self.headings = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if len(names) != len(attrs):
            self.wrong.append(f"an attribute twice in {tag}")
        if "style" in names or any(name.startswith("on") or name == "hx-on" for name in names):
            self.wrong.append(f"inline style or handler in {tag}")
        if tag == "style" or (tag == "script" and not names.get("src")):
            self.wrong.append(f"inline {tag}")
        for name in ("href", "src", "action", "hx-get", "hx-post"):
            if (names.get(name) or "/").partition(":")[0].lower() in ("javascript", "data", "http", "https"):
                self.wrong.append(f"{name} leaves the console: {names[name]}")
        if (id := names.get("id")) is not None:
            if id in self.ids:
                self.wrong.append(f"id {id} twice")
            self.ids.add(id)
        for name in ("aria-labelledby", "aria-describedby"):
            self.refers |= set((names.get(name) or "").split())
        if tag == "label":
            self.labels.add(names.get("for") or "")
        if tag in ("input", "select", "textarea") and names.get("type") != "hidden" and "aria-label" not in names:
            self.inputs.append(names.get("id"))
        self.headings += tag == "h1"
        if tag not in _VOID:
            self.tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.tags.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.tags or self.tags.pop() != tag:
            self.wrong.append(f"</{tag}> closes another tag")

    def handle_data(self, data: str) -> None:
        self.text += data


def check(text: str, *, whole: bool = True) -> Checker:
    """Check the markup of a page or of a fragment."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.wrong == []
    assert checker.tags == []
    assert checker.refers <= checker.ids
    if whole:
        assert checker.headings == 1
        assert set(checker.inputs) <= checker.labels
    return checker


@pytest.fixture(scope="module")
def filled_db(module_db: str) -> str:
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('mine', 2)")
        conn.execute("select trunkline.create_queue('mine')")
        make_dead_job(conn)
        conn.execute("select trunkline.subscribe('mine', 'mine', 'mine')")
        conn.execute("select trunkline.publish('mine', '{}') from generate_series(1, 5)")
        conn.execute("select trunkline.fetch('mine', 'g', 'me')")
        fill(conn)
    return module_db


@pytest.mark.parametrize("path", pages())
def test_every_page(web: httpx.Client, filled_db: str, path: str) -> None:
    answer = web.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    page = check(answer.text)
    assert "This panel failed" not in page.text


@pytest.mark.parametrize("path", fragments())
def test_every_fragment_is_a_part_of_its_page(web: httpx.Client, filled_db: str, path: str) -> None:
    answer = web.get(path, headers={"hx-request": "true"})
    assert answer.status_code == 200, answer.text
    check(answer.text, whole=False)
    page = web.get(path.partition("/~/")[0]).text
    id = re.search(r'id="([^"]+)"', answer.text)
    assert id is not None
    assert f'id="{id[1]}"' in page
    assert f'hx-get="{path}"' in answer.text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_never_becomes_markup(web: httpx.Client, filled_db: str, text: str) -> None:
    for path in [*pages(), *fragments()]:
        answer = web.get(path, params={"q": text, "where": text, "range": text, "sort": text, "after": text, "at": text})
        assert answer.status_code in (200, 400), (path, answer.text)
        check(answer.text, whole="/~/" not in path and answer.status_code == 200)
    missing = web.get(f"/console/topics/{text.replace('/', '')}")
    assert missing.status_code in (400, 404)
    check(missing.text)


def test_unknown_pages_and_topics(web: httpx.Client) -> None:
    for path in ("/console/nothing", "/console/topics/nothing"):
        answer = web.get(path)
        assert answer.status_code == 404
        assert check(answer.text).text.count("Not found")


def test_browsers_are_sent_to_the_console(web: httpx.Client) -> None:
    answer = web.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert web.get("/", headers={"accept": "application/json"}).json()["error"] == "no_route"


def test_find_goes_to_what_is_certain(web: httpx.Client, filled_db: str) -> None:
    id = "0199A1B2-0000-7000-8000-000000000001"
    receipt = f"5.3.1.0.{id.lower()}"
    for text, place in [
        (id, f"/console/m/{id.lower()}"),
        (f"urn:uuid:{id}", f"/console/m/{id.lower()}"),
        ("mine/3@9981204", "/console/topics/mine/3@9981204"),
        (receipt, f"/console/receipts/{receipt}"),
        ("g", "/console/groups/mine/g"),
        ("kind:send", "/console/jobs?where=kind%3Asend"),
    ]:
        answer = web.get("/console/find", params={"q": text})
        assert (answer.status_code, answer.headers.get("location")) == (303, place), text
    # a topic and a queue of this name
    both = check(web.get("/console/find", params={"q": "mine"}).text).text
    assert "topic" in both
    assert "queue" in both


def test_static_files(web: httpx.Client) -> None:
    page = web.get("/console").text
    for address in re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page):
        answer = web.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        again = web.get(address, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert web.get(address.partition("?")[0]).headers["cache-control"] == "no-cache"
    for name in ("nothing.js", "console.css/..", "..%2fpages.py"):
        assert web.get(f"/console/static/{name}").status_code in (400, 404)


def test_files_of_others_are_unchanged() -> None:
    for name, known in VENDORED.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == known
    ours = {path.name for path in STATIC.iterdir()} - set(VENDORED)
    assert ours == {"console.css", "console.js", "icon.svg", "htmx-LICENSE.txt"}


def test_templates_and_scripts_need_no_eval() -> None:
    script = (STATIC / "console.js").read_text()
    assert len(script.splitlines()) <= 450
    assert not re.search(r"\beval\(|new Function|innerHTML|document\.write|\.style\b", script)
    for template in (STATIC.parent / "templates").glob("**/*.html"):
        text = template.read_text()
        assert not re.search(r"hx-on|js:|\|\s*safe\b|autoescape false|style=|\son\w+=", text), template
        allowed = {"hx-get", "hx-post", "hx-target", "hx-swap", "hx-trigger", "hx-push-url", "hx-select", "hx-indicator"}
        assert set(re.findall(r"\bhx-[a-z-]+(?==)", text)) <= allowed, template


def test_looks_are_kept_in_cookies(web: httpx.Client) -> None:
    for name, value, seen in [("theme", "dark", 'data-theme="dark"'), ("rows", "compact", 'data-rows="compact"')]:
        answer = web.post("/console/look", data={name: value, "back": "/console/topics?sort=rate"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/topics?sort=rate")
        assert seen in web.get("/console").text
    web.post("/console/look", data={"zone": "local"})
    web.cookies.set("tl-tz", "Asia/Tokyo")
    assert "JST" in web.get("/console/topics/mine").text
    web.cookies.set("tl-tz", "../../etc/passwd")
    assert "UTC" in web.get("/console/topics/mine").text
    for back in ("https://evil.example/", "//evil.example", "/console/../v1", "/consolex", "\\\\evil"):
        answer = web.post("/console/look", data={"theme": "", "back": back})
        assert answer.headers["location"].startswith("/console")
        assert "evil" not in answer.headers["location"]


def test_without_the_console(module_db: str) -> None:
    with serving(module_db, "--no-console") as running:
        assert httpx.get(f"{running.url}/console", headers={"accept": "text/html"}).status_code == 404
        answer = httpx.get(running.url, headers={"accept": "text/html"})
        assert (answer.status_code, answer.headers["location"]) == (302, "docs")


def test_behind_a_proxy_with_a_path(module_db: str) -> None:
    with serving(module_db, "--console-url", "https://ops.example/queue/") as running:
        headers = {"accept": "text/html", "sec-fetch-site": "same-origin"}
        assert httpx.get(running.url, headers=headers).headers["location"] == "/queue/console"
        page = httpx.get(f"{running.url}/console", headers=headers).text
        addresses = re.findall(r'(?:href|src|action|hx-get)="([^"#]+)"', page)
        assert addresses
        assert all(address.startswith("/queue/console") for address in addresses)
        cookie = httpx.post(f"{running.url}/console/look", headers=headers, data={"theme": "dark"}).headers["set-cookie"]
        assert "Path=/queue/console" in cookie
        assert "Secure" in cookie


@pytest.fixture
def own_server(db: str) -> Iterator[HttpServer]:
    with serving(db) as running:
        yield running


def test_a_slow_panel_degrades_alone(own_server: HttpServer, db: str) -> None:
    headers = {"accept": "text/html", "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=own_server.url, headers=headers, timeout=30) as web, psycopg.connect(db) as conn:
        assert "timed out" not in web.get("/console").text
        conn.execute("lock table trunkline.endpoints in access exclusive mode")

        def late() -> str:
            return check(web.get("/console").text).text

        wait_until(lambda: "Endpoint statistics" in late())
        text = late()
        assert re.search(r"Endpoint statistics timed out; showing \d\d:\d\d:\d\d UTC\.", text), text
        assert "Queue statistics timed out" not in text
        conn.rollback()
        wait_until(lambda: "timed out" not in late())


def test_the_wheel_has_templates_and_static_files() -> None:
    package = Path(STATIC).parent
    assert (package / "templates" / "base.html").is_file()
    assert "packages = [" in (Path(__file__).parents[2] / "pyproject.toml").read_text()
