"""`tools/audit.py`: what it holds against a lock file and a release."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

_PATH = Path(__file__).parents[2] / "tools" / "audit.py"
ONE, TWO = "1" * 64, "2" * 64


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("audit", _PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module
    spec.loader.exec_module(module)
    return module


audit = _load()


def test_lock_entries() -> None:
    text = f"a==1.0 \\\n    --hash=sha256:{ONE} \\\n    --hash=sha256:{TWO}\n"
    text += f'B_c==2 ; python_version < "4" \\\n    --hash=sha256:{ONE}\n'
    entries, faults = audit.read_lock(text)
    assert [(entry.name, entry.version, entry.hashes) for entry in entries] == [
        ("a", "1.0", {ONE, TWO}),
        ("b-c", "2", {ONE}),
    ]
    assert faults == []


def test_entries_without_a_hash_or_an_exact_version() -> None:
    _, faults = audit.read_lock("a==1.0\nb>=2 \\\n    --hash=sha256:1\nhttps://example.org/c.whl\n")
    assert [fault.partition(":")[0] for fault in faults] == ["no hash", "not one exact version", "not one exact version"]


def test_installed_versions() -> None:
    entries = [audit.Entry("a", "1"), audit.Entry("a", "2"), audit.Entry("b", "1")]
    assert audit.compare_installed(entries, {"a": "2", "b": "1", "other": "9"}) == []
    assert audit.compare_installed(entries, {"a": "3"}) == ["installed is a 3, locked is 1 or 2"]


def test_what_the_index_says() -> None:
    page = (
        f'<a href="https://x/a-1.whl#sha256={ONE}">a-1.whl</a><a href="/a-2.whl#sha256={TWO}" data-yanked="bad">a-2.whl</a>'
    )
    assert audit.judge(audit.Entry("a", "1", {ONE}), page) == []
    assert audit.judge(audit.Entry("a", "2", {TWO}), page) == ["a 2 was yanked"]
    assert audit.judge(audit.Entry("a", "1", {"3" * 64}), page) == ["a 1: 1 locked hashes are not in the index"]


def test_our_own_locks_are_whole() -> None:
    for lock in audit.LOCKS:
        entries, faults = audit.read_lock((audit.ROOT / lock).read_text())
        assert len(entries) > (5 if "build" in lock else 40 if "runtime" in lock else 50)
        assert faults == []
