"""Behaviour does not depend on the names of modules: who raised an error, and which types are contexts."""

from __future__ import annotations

import types
from typing import Any

import pytest

from trunkline.cli.main import run
from trunkline.errors import InvalidValue
from trunkline.jobs.arguments import wants_context
from trunkline.jobs.context import Context, ProcessContext, SyncContext
from trunkline.server.problems import from_any

RAISING = """
def fail(error):
    raise error
"""


def module(name: str, source: str) -> types.ModuleType:
    created = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), created.__dict__)
    return created


def raised_in(name: str, error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        module(name, RAISING).fail(error)
    return caught.value


@pytest.mark.parametrize("name", ["trunkline.client.moved", "trunkline.db.moved", "elsewhere"])
def test_the_class_of_an_error_decides_its_http_response(name: str) -> None:
    problem = from_any(raised_in(name, InvalidValue("lease must be positive")))
    assert (problem.status, problem.error, problem.detail) == (
        400,
        "invalid_argument",
        "lease must be positive",
    )
    assert from_any(raised_in(name, ValueError("a defect"))).status == 500


@pytest.mark.parametrize("name", ["trunkline.client.moved", "trunkline.db.moved", "elsewhere"])
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InvalidValue("lease must be positive"), 2, "trunkline: lease must be positive [invalid_argument]\n"),
        (ValueError("a defect"), 1, "unexpected ValueError: a defect"),
    ],
)
def test_the_class_of_an_error_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    error: Exception,
    code: int,
    line: str,
) -> None:
    def main(*_: Any, **__: Any) -> None:
        module(name, RAISING).fail(error)

    monkeypatch.setattr("trunkline.cli.main.app.main", main)
    assert run(["topic", "list"]) == code
    assert line in capsys.readouterr().err


def test_contexts_are_recognised_by_their_base_class() -> None:
    assert all(map(wants_context, (Context, SyncContext, ProcessContext)))

    class Renamed(Context):
        pass

    Renamed.__module__ = "elsewhere"
    assert wants_context(Renamed)
    payload = module("trunkline.jobs.context", "class Payload: pass").Payload
    assert payload.__module__ == Context.__module__
    assert not wants_context(payload)
