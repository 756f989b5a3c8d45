"""The check that SQL text in Python is only in db/calls."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_PATH = Path(__file__).parents[2] / "tools" / "sql_text.py"


@pytest.fixture(scope="module")
def sql_text() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sql_text", _PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sql_text"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "source",
    [
        'rows = fetch(conn, "select 1")',
        'rows = fetch(conn, f"select {fields} from trunkline.log")',
        'QUERY = """\n    insert into trunkline.topics values (1)"""',
        'conn.execute("vacuum")',
        'conn.execute(b"call trunkline.upkeep()")',
        'conn.execute("set local " + name)',
        'statement = "with x as (select 1) select * from x"',
        'cursor.execute("call " "trunkline.upkeep()")',
    ],
)
def test_a_statement_is_found(sql_text: ModuleType, source: str) -> None:
    assert [line for line, _ in sql_text.statements(source)] == [1]


@pytest.mark.parametrize(
    "source",
    [
        '"""Select rows of a table."""',
        'hint = "Run select pg_drop_replication_slot()."',
        'help = "Call it again."',
        "cursor.execute(statement)",
        'conn.execute("")',
        'word = "select"',
    ],
)
def test_other_text_is_not_a_statement(sql_text: ModuleType, source: str) -> None:
    assert list(sql_text.statements(source)) == []


def test_the_package_has_no_sql_text_outside_of_its_place(sql_text: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert sql_text.main() == 0, capsys.readouterr().out
