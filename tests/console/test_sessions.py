"""Sign in and out, CSRF and scopes, for every route of the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import httpx
import psycopg
import pytest

from tests.console.pages import declared, filled
from tests.http.servers import HttpServer, problem, serving
from tests.http.test_security import bearer, run
from tests.support.waiting import wait_until
from trunkline.db.calls import tokens
from trunkline.server.auth import SOME

__all__ = ["bearer"]
Token = Callable[..., str]
PAGE = {"accept": "text/html", "sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def token(module_db: str) -> Token:
    """Create a token; return its secret form."""
    count = 0

    def make(*scopes: str) -> str:
        nonlocal count
        count += 1
        name = f"person-{count}"
        text, _ = run(module_db, lambda conn: tokens.create_token(conn, name, scopes))
        return str(text)

    return make


@pytest.fixture(scope="module")
def server(module_db: str, token: Token) -> Iterator[HttpServer]:
    token("admin:*")
    with serving(module_db) as running:
        yield running


@pytest.fixture
def web(server: HttpServer) -> Iterator[httpx.Client]:
    """A browser that has not signed in, from an address of its own: sign-ins are limited by address."""
    global _address
    _address += 1
    transport = httpx.HTTPTransport(local_address=f"127.0.0.{_address}")
    with httpx.Client(base_url=server.url, headers=PAGE, timeout=30, transport=transport) as client:
        yield client


_address = 10


def sign_in(web: httpx.Client, text: str, **fields: str) -> httpx.Response:
    return web.post("/console/login", data={"token": text, **fields})


def csrf(web: httpx.Client) -> str:
    page = web.get("/console").text
    return page.partition('data-csrf="')[2].partition('"')[0]


def test_who_is_not_signed_in_goes_to_the_form_and_back(web: httpx.Client, token: Token) -> None:
    answer = web.get("/console/topics?sort=rate")
    assert answer.status_code == 303
    form = web.get(answer.headers["location"])
    assert form.status_code == 200
    assert 'name="next" value="/console/topics?sort=rate"' in form.text
    answer = sign_in(web, token("view:*"), next="/console/topics?sort=rate")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/topics?sort=rate")
    cookie = answer.headers["set-cookie"]
    for part in ("tl=", "HttpOnly", "SameSite=Strict", "Path=/console"):
        assert part in cookie
    assert web.get("/console/topics?sort=rate").status_code == 200
    fragment = httpx.get(f"{web.base_url}/console/~/queues", headers={**PAGE, "hx-request": "true"})
    assert (fragment.status_code, fragment.headers["hx-redirect"]) == (401, "/console/login?next=%2Fconsole")


def test_sign_in_goes_nowhere_else(web: httpx.Client, token: Token) -> None:
    for place in ("https://evil.example/", "//evil.example", "/v1/topics", "/console\\@evil"):
        assert sign_in(web, token("view:*"), next=place).headers["location"] == "/console"


def test_wrong_tokens(web: httpx.Client, token: Token) -> None:
    right = token("view:*")
    for text in ("", "x", right[:-4] + "0000", f"tl_{'0' * 16}_{'0' * 64}"):
        answer = sign_in(web, text)
        assert answer.status_code == 401
        assert "This token is not known." in answer.text
        assert "set-cookie" not in answer.headers
    answer = sign_in(web, token("publish:*"))
    assert answer.status_code == 403
    assert "may not look" in answer.text


def test_sign_ins_are_limited(web: httpx.Client) -> None:
    found = [sign_in(web, "x").status_code for _ in range(11)]
    assert found == [401] * 10 + [429]


def test_a_session_is_new_each_time_and_no_token_for_the_api(web: httpx.Client, token: Token) -> None:
    text = token("admin:*")
    web.cookies.set("tl", "chosen-by-somebody-else", path="/console")
    sign_in(web, text)
    first = [cookie.value for cookie in web.cookies.jar if cookie.name == "tl"][-1]
    assert first != "chosen-by-somebody-else"
    sign_in(web, text)
    assert first not in [cookie.value for cookie in web.cookies.jar if cookie.name == "tl"]
    answer = httpx.get(f"{web.base_url}/v1/topics", headers={"cookie": f"tl={first}"})
    problem(answer, 401, "unauthenticated")


def test_sign_out(web: httpx.Client, server: HttpServer, token: Token) -> None:
    text = token("view:*")
    sign_in(web, text)
    with httpx.Client(base_url=server.url, headers=PAGE) as other:
        other.post("/console/login", data={"token": text})
        assert web.post("/console/logout", data={"csrf": csrf(web)}).status_code == 303
        assert web.get("/console").status_code == 303
        assert other.get("/console").status_code == 200
        sign_in(web, text)
        assert web.post("/console/logout/everywhere", data={"csrf": csrf(web)}).status_code == 303
        wait_until(lambda: other.get("/console").status_code == 303)


@pytest.mark.parametrize("end", ["revoke", "rotate"])
def test_a_session_ends_with_its_token(web: httpx.Client, module_db: str, end: str) -> None:
    text, _ = run(module_db, lambda conn: tokens.create_token(conn, f"ended-{end}", ["view:*"]))
    sign_in(web, text)
    assert web.get("/console").status_code == 200
    work = tokens.revoke_token if end == "revoke" else tokens.rotate_token
    run(module_db, lambda conn: work(conn, f"ended-{end}"))
    wait_until(lambda: web.get("/console").status_code == 303)


def actions() -> list[str]:
    return [filled(path) for path, method, doc in declared() if method == "POST" and doc.scope != "public"]


@pytest.mark.parametrize("path", actions())
def test_every_action_wants_the_value_of_the_session(web: httpx.Client, token: Token, path: str) -> None:
    sign_in(web, token("admin:*"))
    for fields in ({"x": "1"}, {"csrf": ""}, {"csrf": "0" * 64}):
        assert "wrong_csrf" in web.post(path, data=fields).text
    right = {"csrf": csrf(web)}
    for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}):
        answer = web.post(path, data=right, headers=headers)
        assert answer.status_code == 403
        assert "cross_origin" in answer.text
    assert web.post(path, json=right, headers={"x-trunkline-csrf": "no"}).status_code == 403
    assert web.get("/console").status_code == 200


def test_every_route_checks_its_scope(web: httpx.Client, token: Token) -> None:
    """A token for other names reaches no page of one name; pages of many names show it nothing of others."""
    headers = {
        verb: {"authorization": f"Bearer {token(f'{verb}:elsewhere.*')}"} for verb in ("view", "read", "operate", "admin")
    }
    useless = {"authorization": f"Bearer {token('publish:*', 'consume:*')}"}
    count = 0
    for path, method, doc in declared():
        assert doc.scope in ("public", "view", "read", "operate", "admin")
        if doc.scope == "public" or path == "/console/live":
            continue
        assert method == "GET" or doc.audit == "body" or path.startswith("/console/logout"), path
        count += 1
        target = filled(path)
        assert web.request(method, target, headers=useless).status_code == 403, path
        for verb in headers:
            answer = web.request(method, target, headers=headers[verb], data={"x": "1"} if method == "POST" else None)
            if doc.object != SOME:
                assert answer.status_code == 403, (path, verb)
            elif doc.scope == "view":
                # a path that names something else than a topic or queue names nothing here
                assert answer.status_code in (200, 303, *((404,) if "{" in path else ())), (path, verb)
    assert count > 15


def test_lists_show_only_what_the_token_may_see(web: httpx.Client, token: Token) -> None:
    admin = {"authorization": f"Bearer {token('admin:*')}"}
    for name in ("shop.orders", "bank.payments"):
        assert web.post("/v1/topics", json={"name": name}, headers=admin).status_code in (200, 201)
        assert web.post("/v1/queues", json={"name": name}, headers=admin).status_code in (200, 201)
    sign_in(web, token("view:shop.*"))
    wait_until(lambda: "shop.orders" in web.get("/console").text and "shop.orders" in web.get("/console/topics").text)
    for path in ("/console", "/console/topics", "/console/find?q=payments", "/console/~/queues"):
        assert "bank.payments" not in web.get(path).text
    assert web.get("/console/topics/shop.orders").status_code == 200
    assert web.get("/console/topics/bank.payments").status_code == 403
    changes = web.get("/console/changes?since=0").json()
    assert not [key for key in changes["dirty"] if "bank" in key]


def test_new_verbs_are_weaker_than_the_old(web: httpx.Client, token: Token) -> None:
    view = {"authorization": f"Bearer {token('view:*')}"}
    operate = {"authorization": f"Bearer {token('operate:*')}"}
    for headers in (view, operate):
        assert web.get("/console", headers=headers).status_code == 200
        assert web.get("/v1/topics", headers=headers).status_code == 403
        assert web.post("/v1/topics", json={"name": "no"}, headers=headers).status_code == 403
    for verb in ("read", "admin"):
        assert web.get("/console", headers={"authorization": f"Bearer {token(f'{verb}:*')}"}).status_code == 200


def test_errors_need_read_and_purges_need_admin(web: httpx.Client, token: Token, module_db: str) -> None:
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.create_queue('till.mail')")
        conn.execute("select trunkline.enqueue('till.mail', '{\"card\": 4242}', p_label => 'charge')")
        rows: list[tuple[str, UUID]] = []

        def claimed() -> bool:
            rows.extend(conn.execute("select receipt, id from trunkline.claim('till.mail', 1)").fetchall())
            return bool(rows)

        wait_until(claimed)
        [row] = rows
        conn.execute("select trunkline.bury(array[%s], 'card 4242 refused')", (row[0],))
        query = "select fingerprint from trunkline.dead_groups('till.mail')"
        wait_until(lambda: conn.execute(query).fetchone() is not None)
        group = conn.execute(query).fetchone()
        assert group is not None
    paths = (
        "/console/dead", "/console/dead/till.mail", f"/console/dead/till.mail/{group[0]}", f"/console/jobs/{row[1]}",
        f"/console/queues/till.mail/dead/{row[1]}", "/console/queues/till.mail?tab=dead",
        "/console/jobs?where=error:*refused*",
        "/console/queues/till.mail?tab=history&where=refused", "/console/dead/till.mail?show=messages",
    )  # fmt: skip
    view = {"authorization": f"Bearer {token('view:till.*', 'operate:till.*')}"}
    for path in paths:
        answer = web.get(path, headers=view)
        assert answer.status_code == 200, path
        assert "4242" not in answer.text, path
    assert web.get("/console/queues/till.mail/dead-export", headers=view).status_code == 403
    assert web.get(f"/console/jobs/{row[1]}/again", headers=view).status_code == 403
    fields = {"kind": "purge_dead_letters", "all": "1", "expected": "1", "confirm": "till.mail"}
    assert web.post("/console/queues/till.mail/run", headers=view, data=fields).status_code == 403
    assert web.post("/console/queues/till.mail/enqueue", headers=view, data={"payload": "{}"}).status_code == 403
    elsewhere = {"authorization": f"Bearer {token('read:elsewhere.*')}"}
    assert web.get(f"/console/jobs/{row[1]}", headers=elsewhere).status_code == 404
    assert "till.mail" not in web.get("/console/dead", headers=elsewhere).text
    assert str(row[1]) not in web.get("/console/jobs", headers=elsewhere).text
    # one who may read sees it: the text above is where it would be
    read = {"authorization": f"Bearer {token('read:till.*')}"}
    assert "refused" in web.get(paths[1], headers=read).text
    for path in paths[2:5]:
        assert "4242" in web.get(path, headers=read).text, path
