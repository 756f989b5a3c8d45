"""Hints are written once, in SQL, and translated to each caller's interface."""

from __future__ import annotations

import re

import pytest

from trunkline import errors
from trunkline.cli.main import app
from trunkline.hints import ARGUMENTS, FUNCTIONS, Interface, reword
from trunkline.server.app import create_app
from trunkline.server.config import Config
from trunkline.server.openapi import routes
from trunkline.sql import catalog


def hints() -> set[str]:
    """Return the quoted text of every refusal in the SQL sources."""
    calls = [call for file in catalog.functions() for call in re.findall(r"_fail\('(.*?)\);", file.text, flags=re.DOTALL)]
    return {text for call in calls for text in re.findall(r"'((?:[^']|'')*)'", f"'{call}")}


def test_every_function_and_argument_that_a_hint_names_has_its_other_forms() -> None:
    text = "\n".join(hints())
    assert "Create it with trunkline.create_queue(%L)" in text
    assert set(re.findall(r"trunkline\.(\w+)", text)) == set(FUNCTIONS)
    assert set(re.findall(r"\bp_\w+", text)) == set(ARGUMENTS)


def test_the_commands_and_their_options_are_there() -> None:
    for action in FUNCTIONS.values():
        if action.command is not None:
            _, noun, verb, *rest = action.command.split()
            command = app.get_command(None, noun).get_command(None, verb)  # type: ignore[arg-type, union-attr, attr-defined]
            options = {name for param in command.params for name in param.opts}
            assert {word for word in rest if word.startswith("--")} <= options, action.command


def test_the_routes_are_there() -> None:
    served = create_app(Config(database_url="postgresql://nowhere")).app  # type: ignore[attr-defined]
    known = {(verb, re.sub(r"\{.*?\}", "X", path)) for path, verb, _ in routes(served)}
    for action in FUNCTIONS.values():
        if action.route is not None:
            verb, path = action.route.partition(" {")[0].partition("?")[0].split()
            assert (verb, re.sub(r"[A-Z]{2,}", "X", path)) in known, action.route


@pytest.mark.parametrize(
    ("words", "made", "forced"),
    [
        ("sql", "Create it with trunkline.create_queue('mail')", "or pass p_force => true"),
        ("command", "Create it with trunkline queue create mail", "or pass --force"),
        ("route", 'Create it with POST /v1/queues?ensure=true {"name": "mail"}', "or pass force=true"),
        ("python", "Create it with client.queues.create('mail')", "or pass force=True"),
    ],
)
def test_each_caller_has_its_own_words(words: Interface, made: str, forced: str) -> None:
    assert reword("Create it with trunkline.create_queue('mail')", words) == made
    assert reword("or pass p_force => true", words) == forced


def test_a_name_that_needs_quotes_is_left_out() -> None:
    assert reword("trunkline.create_queue('a ''b; rm *')", "command") == "trunkline queue create NAME"
    assert reword("trunkline.create_group('t', 'g'), or fetch", "command") == "trunkline group create t g, or fetch"
    assert reword(None, "python") is None


def test_an_error_speaks_python_by_itself() -> None:
    error = errors.QueueNotFound("no queue", hint="Create it with trunkline.create_queue('mail')")
    assert str(error) == "no queue (Create it with client.queues.create('mail'))"
    assert error.hint_in("sql") == "Create it with trunkline.create_queue('mail')"
