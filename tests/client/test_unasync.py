"""The sync twins are what tools/unasync.py makes of their sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unasync(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "tools" / "unasync.py"), *arguments], capture_output=True, text=True, timeout=100
    )


def test_twins_are_up_to_date() -> None:
    result = unasync("--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_check_names_a_twin_that_was_changed(tmp_path: Path) -> None:
    for part in ("tools/unasync.py", "pyproject.toml"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).write_text((ROOT / part).read_text())
    for source in (ROOT / "src" / "trunkline").rglob("*.py"):
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(source.read_text())
    twin = tmp_path / "src/trunkline/client/sync/queues.py"
    twin.write_text(twin.read_text().replace("def pause", "def stop"))
    result = unasync("--check", root=tmp_path)
    assert result.returncode == 1
    assert "client/sync/queues.py" in result.stderr
    assert unasync(root=tmp_path).returncode == 0
    assert unasync("--check", root=tmp_path).returncode == 0
    assert twin.read_text().startswith("# Written by tools/unasync.py")
