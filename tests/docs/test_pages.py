"""Every block of every page is run, in the order of the page, against a real Postgres; shown output is compared."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, RUN, SHOWN, Block, agree, blocks, pages, wants
from tests.docs.shells import Shells, Up, Upkeep, as_url, environment
from tests.docs.test_cli_examples import PAGE as CLI
from tests.http.servers import serving
from tests.support.postgres import WheelServer, scratch

# The only blocks that no test runs. Each says so, and why, on its page.
NOT_RUN = {
    "README.md": [
        "tests/e2e/test_wheel.py runs it, in a fresh environment",
        "the first stays in the foreground, the second runs this test among all others; tests/e2e/test_setup.py starts it",
    ],
    "docs/operations/pooler.md": ["needs PgBouncer; tests/docs/test_pooler.py runs this page where it is installed"],
    "docs/operations/roles.md": ["the role would own the schema of the other pages"],
    "docs/how-to/jobs.md": ["a test module; tests/jobs/test_plugin.py runs one"],
    "docs/tutorial/jobs.md": ["the test has the package and a database"],
    "docs/operations/upgrade.md": [
        "an installation over the one that runs the test; tests/migration upgrades from earlier versions"
    ],
    "docs/tutorial/first-hour.md": ["the test has the package, and starts `trunkline up` itself"],
}


@pytest.fixture
def second_server() -> Iterator[str]:
    """A server with nothing in it."""
    server = WheelServer(18)
    yield server.start()
    server.stop()


@pytest.fixture
def up() -> Iterator[tuple[Path, Up]]:
    """`trunkline up`, in a directory that the server's account can enter."""
    folder = scratch("tl-docs-")
    folder.chmod(0o755)
    started = Up(folder)
    yield folder, started
    started.stop()
    shutil.rmtree(folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in pages() if any(block.language in RUN for block in blocks(page))])
def test_page(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "trunkline up" in wants(page):
        folder, up = request.getfixturevalue("up")
        _run_page(page, Shells(environment(None), folder, up.conninfo))
        return
    db = request.getfixturevalue("db")
    more = {}
    if "a second server" in wants(page):
        more["NEW_DATABASE_URL"] = as_url(request.getfixturevalue("second_server"))
    upkeep = Upkeep(db)
    try:
        with serving(db, "--no-upkeep") if "HTTP" in wants(page) else nullcontext() as http:
            ports = {} if http is None else {"localhost:8080": f"127.0.0.1:{http.port}"}
            env = environment(db, **more)
            if "spark" not in page:
                env.pop("JDK_JAVA_OPTIONS", None)  # Java would tell that it has seen it
            _run_page(page, Shells(env, tmp_path, ports=ports))
    finally:
        upkeep.stop()


def _run_page(page: str, shells: Shells) -> None:
    try:
        for block in blocks(page):
            if block.language in RUN and block.not_run is None:
                shells.run(block)
    finally:
        shells.close()


def test_blocks_not_run_have_a_reason_and_are_listed_here() -> None:
    found: dict[str, list[str]] = {}
    for page in pages():
        for block in blocks(page):
            if block.language in RUN and block.not_run is not None:
                found.setdefault(page, []).append(block.not_run)
    for page, reasons in found.items():
        for reason in reasons:
            print(f"not run, {page}: {reason}")
    assert found == NOT_RUN


def test_every_block_names_a_known_language() -> None:
    # the command line's reference shows one line of use at a time: test_cli_examples.py runs these; tests/http runs the
    # pages on HTTP against a server
    listed = (CLI, "docs/reference/http/", "docs/migrate/http.md", "docs/operations/security.md")
    known = {page: RUN | SHOWN | ({"sh", ""} if page.startswith(listed) else set()) for page in pages()}
    unknown = [block.where for page in pages() for block in blocks(page) if block.language not in known[page]]
    assert unknown == []


def test_no_fence_is_hidden_by_indentation() -> None:
    assert [page for page in pages() if any(line.startswith(" ") and "```" in line for line in _lines(page))] == []


def _lines(page: str) -> list[str]:
    return (ROOT / page).read_text().splitlines()


# The runner itself


def _block(language: str, text: str, expected: str | None = None) -> Block:
    return Block("a page", 1, language, text, expected, None)


@pytest.mark.parametrize(
    "block",
    [
        _block("sql", "select 1 / 0;"),
        _block("sql", "select 2 as n;", " n\n---\n 3\n(1 row)\n"),
        _block("sql", "select 1 as n;", "ERROR:  division by zero\n"),
        _block("python", "1 / 0"),
        _block("python", "print(2)  # 3"),
        _block("python", "import asyncio\nawait asyncio.sleep(0)\nprint(2)", "3\n"),
        _block("bash", "false\ntrue"),
        _block("console", "$ echo 2\n3\n"),
    ],
)
def test_a_wrong_block_fails(block: Block, db: str, tmp_path: Path) -> None:
    shells = Shells(environment(db), tmp_path)
    try:
        with pytest.raises(AssertionError):
            shells.run(block)
    finally:
        shells.close()


def test_names_and_sessions_last_for_a_page(db: str, tmp_path: Path) -> None:
    shells = Shells(environment(db), tmp_path)
    try:
        shells.run(_block("sql", "begin; create table t (n int);"))
        shells.run(_block("sql", "rollback; select to_regclass('t') is null as gone;", " gone\n------\n t\n(1 row)\n"))
        shells.run(_block("python", "import asyncio\nn = await asyncio.sleep(0, 41)"))
        shells.run(_block("python", "print(n + 1)  # 42"))
        shells.run(_block("console", "$ echo one\none\n$ echo two\ntwo\n"))
    finally:
        shells.close()


def test_shown_output_may_leave_out_what_changes() -> None:
    assert agree("at 2026-01-01 10:00:00+00 ... done", "at  2027-02-03 11:12:13.123456+00 it was done\n")
    assert agree(
        " id\n----\n 019a8b3e-0000-7000-8000-000000000000\n", " id\n--------\n 019a8b3e-1111-7000-8000-00000000abcd\n"
    )
    assert not agree("one\n", "two\n")
    assert not agree("one\n", "one\ntwo\n")


def test_pages_for_newcomers_do_not_share_names() -> None:
    """README, what `up` prints, the tutorials and the webhooks page can be followed one after the other, in one database."""
    creates = re.compile(
        r"""(?:(?:create|ensure)_(?:topic|queue)|(?:topics|queues)\.ensure|App)\((?:queue=)?['"]([\w-]+)"""
        r"|queue create ([\w-]+)"
    )
    sources = [
        "README.md",
        "src/trunkline/cli/commands/up.py",
        "docs/tutorial/first-hour.md",
        "docs/tutorial/jobs.md",
        "docs/how-to/jobs.md",
        "docs/how-to/webhooks.md",
    ]
    users: dict[str, set[str]] = {}
    for source in sources:
        found = {first or second for first, second in creates.findall((ROOT / source).read_text())}
        assert found, source
        for name in found:
            users.setdefault(name, set()).add(source)
    assert {name: where for name, where in users.items() if len(where) > 1} == {}
