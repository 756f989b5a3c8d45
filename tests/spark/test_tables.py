"""Tables replace tables that Trunkline wrote, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.errors import AlreadyExists, InvalidArgument
from trunkline.spark.pipelines import output_tables


def _table(path: Path) -> Path:
    path.mkdir()
    for name in (output_tables.MARKER, "_SUCCESS", "part-00000.zstd.parquet", ".part-00000.zstd.parquet.crc"):
        (path / name).touch()
    return path


def test_a_table_of_ours_can_be_overwritten(tmp_path: Path) -> None:
    table = _table(tmp_path / "table")
    for name in (str(table), table.as_uri(), str(tmp_path / "new")):
        output_tables.check(name, overwrite=True)
    (tmp_path / "empty").mkdir()
    output_tables.check(str(tmp_path / "empty"), overwrite=True)
    with pytest.raises(AlreadyExists):
        output_tables.check(str(table), overwrite=False)


def test_what_is_not_a_table_of_ours_is_not_overwritten(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").touch()
    mixed = _table(tmp_path / "mixed")
    (mixed / "thesis.txt").touch()
    (_table(tmp_path / "foreign") / output_tables.MARKER).unlink()
    (tmp_path / "link").symlink_to(_table(tmp_path / "table"))
    forged = _table(tmp_path / "forged")
    (forged / output_tables.MARKER).unlink()
    (forged / output_tables.MARKER).symlink_to(home / "thesis.txt")
    for name in ("home", "mixed", "foreign", "link", "forged"):
        for folder in (str(tmp_path / name), (tmp_path / name).as_uri(), f"file:{tmp_path / name}"):
            with pytest.raises(InvalidArgument):
                output_tables.check(folder, overwrite=True)
    with pytest.raises(InvalidArgument, match="cannot overwrite"):
        output_tables.check("s3a://bucket/table", overwrite=True)
