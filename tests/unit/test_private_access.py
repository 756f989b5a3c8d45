"""The check of private access: no package uses private names of another one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

TOOL = Path(__file__).parents[2] / "tools" / "private_access.py"


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("private_access", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_package_uses_private_names_of_another_one() -> None:
    assert tool().violations() == []


def test_the_check_finds_a_use(tmp_path: Path) -> None:
    for folder, text in {
        "client": "class Client:\n    def _open(self): ...\n",
        "jobs": "def run(client, future):\n    client._open()\n    future._state\n    row._replace()\n",
        "push": "from trunkline.client import _open\n",
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(text)
    assert tool().violations(tmp_path) == [
        "jobs/module.py:2: client._open",
        "push/module.py:1: from trunkline.client import _open",
    ]
