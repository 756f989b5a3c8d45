"""The reference pages are what the code says; pg_messaging.sql runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.docs.pages import ROOT, pages

sys.path.insert(0, str(ROOT / "tools"))

import docs_errors
import docs_sql

from trunkline.errors import BY_SQLSTATE

WRITERS = ["docs_sql.py", "docs_python.py", "docs_errors.py"]


@pytest.mark.parametrize("writer", WRITERS)
def test_page_is_up_to_date(writer: str) -> None:
    # In a separate process: classes that tests define must not appear on the page.
    command = [sys.executable, str(ROOT / "tools" / writer), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_page_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import docs_pages

    monkeypatch.setattr(docs_pages, "REFERENCE", tmp_path)
    monkeypatch.setattr(docs_pages, "ROOT", tmp_path)
    assert docs_pages.settle("errors.md", "new\n", ["--check"]) == 1
    assert docs_pages.settle("errors.md", "new\n", []) == 0
    assert docs_pages.settle("errors.md", "new\n", ["--check"]) == 0


# SQL


def test_every_public_function_is_on_the_page(conn: Connection) -> None:
    rows = conn.execute(
        "select distinct proname from pg_proc where pronamespace = 'trunkline'::regnamespace"
        " and proname !~ '^(_|topic_[0-9]|queue_[0-9])'"
    ).fetchall()
    assert {function.name for function in docs_sql.functions()} == {name for (name,) in rows}


def test_every_function_says_what_it_does() -> None:
    assert [function.name for function in docs_sql.functions() if not function.comment] == []


def test_roles_on_the_page_are_those_of_the_database(conn: Connection) -> None:
    may = docs_sql.callers()
    for function in docs_sql.functions():
        for role in ("publisher", "consumer", "reader", "owner"):
            row = conn.execute(
                "select bool_and(has_function_privilege(%s, oid, 'execute')) from pg_proc"
                " where pronamespace = 'trunkline'::regnamespace and proname = %s",
                (f"trunkline_{role}", function.name),
            ).fetchone()
            said = role == "owner" or role in may.get(function.name, [])
            assert row == (said,), f"{function.name}: trunkline_{role}"


def test_row_types_on_the_page_are_those_of_the_database(conn: Connection) -> None:
    for name, columns in docs_sql.types().items():
        found = conn.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 order by attnum",
            (f"trunkline.{name}",),
        ).fetchall()
        assert [column.split()[0] for column in columns.split(", ")] == [each for (each,) in found]


def test_functions_of_the_pages_exist(conn: Connection) -> None:
    """`trunkline.something(` in words and blocks alike."""
    known = {function.name for function in docs_sql.functions()}
    for page in pages():
        if page.startswith("docs/adr"):
            continue
        for name in re.findall(r"trunkline\.([a-z]\w*)\(", (ROOT / page).read_text()):
            assert name in known, f"{page}: trunkline.{name}()"


# Errors


def test_every_error_says_what_to_do() -> None:
    for cls in docs_errors.classes():
        assert docs_errors.advice(cls).endswith("."), cls
    codes = [cls.code for cls in docs_errors.classes()]
    assert len(codes) == len(set(codes))
    assert set(docs_errors.WHAT_TO_DO) <= set(codes)
    assert set(BY_SQLSTATE.values()) <= set(docs_errors.classes())


# pg_messaging.sql


def test_recipes_run_as_sqlc_would_prepare_them(conn: Connection) -> None:
    text = (ROOT / "docs" / "reference" / "pg_messaging.sql").read_text()
    recipes = dict(re.findall(r"^-- name: (\w+) :\w+\n(.*?);$", text, re.MULTILINE | re.DOTALL))
    assert len(recipes) == text.count("-- name: ") == 7
    for name, sql in recipes.items():
        # as a server-side prepared statement: the types must follow from the text alone
        conn.execute(f"prepare {name} as {sql}".encode())

    def run(name: str, *arguments: str) -> list[tuple[object, ...]]:
        given = f"({', '.join(arguments)})" if arguments else ""
        return conn.execute(f"execute {name}{given}".encode()).fetchall()

    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.create_queue('q')")
    assert len(run("PublishMessages", "'t'", "array['a', 'b', 'c']::bytea[]")) == 3
    run("InitConsumerGroup", "'g'", "'t'", "1")
    assert run("ClaimOffsets", "'g'", "2", "'t'") == [(1, 2)]
    assert [row[:2] for row in run("GetMessages", "1", "2", "'t'")] == [(1, b"a"), (2, b"b")]
    assert run("ClaimOffsets", "'g'", "2", "'t'") == [(3, 3)]
    assert run("ClaimOffsets", "'g'", "2", "'t'") == [(4, 3)]
    run("EnqueueJob", "'q'", "'work'::bytea")
    [(receipt, payload, _)] = run("ClaimJob", "'q'")
    assert payload == b"work"
    assert run("ArchiveJob", f"'{receipt}'") == [("done",)]
    assert conn.execute("select payload from trunkline.completed where queue = 'q'").fetchall() == [(b"work",)]


def test_tests_named_by_the_contract_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
    for name in re.findall(r"`((?:tests/)?[a-z0-9_]+/test_\w+\.py)`", text):
        assert (ROOT / "tests" / name.removeprefix("tests/")).exists(), name
