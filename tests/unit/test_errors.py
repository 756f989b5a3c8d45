"""The table of errors: SQLSTATE -> class -> HTTP status -> exit code."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from trunkline import errors

EXPECTED = {
    "TL001": ("InvalidArgument", 400, 2),
    "TL002": ("InvalidName", 400, 2),
    "TL003": ("PayloadTooLarge", 413, 2),
    "TL004": ("BatchTooLarge", 413, 2),
    "TL005": ("InvalidDuration", 400, 2),
    "TL006": ("OffsetOutOfRange", 416, 3),
    "TL007": ("OffsetAhead", 409, 4),
    "TL008": ("WrongIsolation", 409, 4),
    "TL009": ("SchemaVersion", 503, 5),
    "TL010": ("TopicNotFound", 404, 3),
    "TL011": ("QueueNotFound", 404, 3),
    "TL012": ("GroupNotFound", 404, 3),
    "TL013": ("SubscriptionNotFound", 404, 3),
    "TL014": ("DeadLetterNotFound", 404, 3),
    "TL020": ("AlreadyExists", 409, 4),
    "TL021": ("InUse", 409, 4),
    "TL022": ("IdempotencyConflict", 409, 4),
    "TL023": ("NotSupported", 409, 4),
    "TL030": ("Busy", 503, 5),
    "TL060": ("ArchiveConflict", 409, 4),
    "25006": ("ReadOnly", 503, 5),
    "53100": ("DiskFull", 503, 5),
    "55P03": ("Busy", 503, 5),
    "57014": ("Timeout", 503, 5),
    "57P01": ("DatabaseUnavailable", 503, 6),
    "08006": ("DatabaseUnavailable", 503, 6),
    "42501": ("PermissionDenied", 403, 4),
    "22021": ("InvalidArgument", 400, 2),
    "40001": ("RetryableConflict", 409, 4),
    "40P01": ("RetryableConflict", 409, 4),
    "3F000": ("NotInstalled", 503, 5),
    "42883": ("NotInstalled", 503, 5),
    "42P01": ("NotInstalled", 503, 5),
}


@pytest.mark.parametrize("sqlstate", EXPECTED)
def test_sqlstate_maps_to_class_status_and_exit_code(sqlstate: str) -> None:
    cls = errors.class_for(sqlstate)
    assert (cls.__name__, cls.status, cls.exit_code) == EXPECTED[sqlstate]


def subclasses(cls: type[errors.TrunklineError]) -> set[type[errors.TrunklineError]]:
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


def test_every_class_has_its_own_code() -> None:
    # these two only add a built-in base
    classes = subclasses(errors.TrunklineError) - {errors.InvalidType, errors.InvalidValue}
    assert len({cls.code for cls in classes}) == len(classes)
    assert all(re.fullmatch("[a-z_]+", cls.code) for cls in classes)


def test_every_errcode_in_the_sql_is_in_the_table() -> None:
    folder = Path(errors.__file__).parent / "sql"
    raised = {code for file in folder.rglob("*.sql") for code in re.findall(r"'(TL\d{3})'", file.read_text())}
    assert raised <= errors.BY_SQLSTATE.keys()


def test_server_error_keeps_message_hint_and_detail() -> None:
    diag = SimpleNamespace(message_primary="no topic x", message_hint="create it", message_detail="d")
    exc = SimpleNamespace(sqlstate="TL010", diag=diag)
    error = errors.from_psycopg(exc)  # type: ignore[arg-type]
    assert type(error) is errors.TopicNotFound
    assert (error.message, error.hint, error.detail, error.sqlstate) == (
        "no topic x",
        "create it",
        "d",
        "TL010",
    )
    assert str(error) == "no topic x (create it)"


def test_refused_connection_is_database_unavailable_with_a_hint() -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect("host=127.0.0.1 port=1 connect_timeout=2")
    error = errors.from_psycopg(caught.value)
    assert type(error) is errors.DatabaseUnavailable
    assert error.hint
    assert "\n" not in error.message


def test_connection_lost_during_a_write_is_outcome_unknown() -> None:
    lost = psycopg.OperationalError("server closed the connection unexpectedly")
    assert type(errors.from_psycopg(lost)) is errors.DatabaseUnavailable
    error = errors.from_psycopg(lost, writing=True)
    assert (type(error), error.exit_code) == (errors.OutcomeUnknown, 7)


def test_nul_bytes_refused_by_the_driver_are_an_invalid_argument() -> None:
    error = errors.from_psycopg(psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"))
    assert type(error) is errors.InvalidArgument


def test_missing_schema_says_what_to_run() -> None:
    assert errors.from_psycopg(psycopg.errors.UndefinedFunction("f")).hint == 'Run "trunkline migrate".'


def test_unknown_sqlstate_is_the_base_class_and_our_own_errors_pass_through() -> None:
    assert type(errors.from_psycopg(psycopg.errors.DivisionByZero("x"))) is errors.TrunklineError
    mine = errors.Busy("b")
    assert errors.from_psycopg(mine) is mine


def test_errors_survive_pickling() -> None:
    error = errors.DiskFull("full", hint="h", detail="d", sqlstate="53100")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.__dict__) == (errors.DiskFull, error.__dict__)


def test_rejected_arguments_are_also_the_builtin_errors() -> None:
    kinds: tuple[tuple[type[errors.InvalidArgument], type[Exception]], ...] = (
        (errors.InvalidType, TypeError),
        (errors.InvalidValue, ValueError),
    )
    for cls, builtin in kinds:
        error = pickle.loads(pickle.dumps(cls("wrong", hint="h")))
        assert isinstance(error, builtin) and isinstance(error, errors.InvalidArgument)
        assert (type(error), error.code, error.status, error.exit_code) == (cls, "invalid_argument", 400, 2)


def test_bad_arguments_never_raise_a_bare_builtin() -> None:
    """Callers identify a rejected argument by its class. A bare TypeError or ValueError is a defect of the program."""
    folder = Path(errors.__file__).parent
    # values of requests and of HTTP headers: caught in the same module, or raised to aiohttp
    internal = {"server/query.py", "push/http1.py"}
    bare = [
        f"{file.relative_to(folder)}:{node.lineno}"
        for file in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("TypeError", "ValueError")
        if str(file.relative_to(folder)) not in internal
    ]
    assert bare == []


def test_module_does_not_import_the_driver() -> None:
    code = "import sys, trunkline.errors; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
