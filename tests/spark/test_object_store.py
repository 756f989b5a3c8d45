"""The archive in an object store: the same commands with an S3 location. It runs where moto's server is named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from pyarrow import fs

from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.conftest import Connection
from tests.http.servers import free_port
from tests.spark.test_cli_pipeline import ENVIRONMENT
from trunkline import SyncClient
from trunkline.db.calls import archive as calls
from trunkline.spark.archive import files
from trunkline.spark.archive.export import export
from trunkline.spark.archive.writer import write_piece

# not whichever is on the path: old ones do not understand what Arrow says
PROGRAM = os.environ.get("TRUNKLINE_MOTO_SERVER")
pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(PROGRAM is None, reason="TRUNKLINE_MOTO_SERVER does not name the moto_server of moto 5.2.5 or later"),
]
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Yield the address of an object store with one bucket, `data`. Writers need the keys in the environment."""
    port = free_port()
    with (tmp_path / "store.log").open("w") as log:
        process = subprocess.Popen([str(PROGRAM), "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}).items():
        monkeypatch.setenv(name, value)
    try:
        httpx.Client(transport=httpx.HTTPTransport(retries=8)).get(f"http://127.0.0.1:{port}/moto-api/").raise_for_status()
        fs.FileSystem.from_uri("s3://data?allow_bucket_creation=true")[0].create_dir("data")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("settings_in", ["environment", "location"])
def test_archive_drop_read_and_replay(cli: Cli, conn: Connection, store: str, settings_in: str) -> None:
    location = "s3://data/log"
    environment = ENVIRONMENT | KEYS | {"AWS_ENDPOINT_URL": store}
    if settings_in == "location":
        location += f"?scheme=http&endpoint_override={urlsplit(store).netloc}"
        del environment["AWS_ENDPOINT_URL"]
    conn.execute("select trunkline.create_topic('orders', 2, p_retention => '0', p_segment_rows => 256)")
    with SyncClient(cli.url) as mq:
        mq.topics.create("copy")
        mq.publish_many("orders", [{"n": n} for n in range(2000)])
    spark = ("--master", "local[1]", "-o", "json")
    done = cli.process("pipeline", "archive", "orders", "--location", location, "--open", *spark, env=environment)
    assert done.json["rows"] == 2000
    for duty in ("segments", "segments", "retention"):
        conn.execute("select trunkline.run_upkeep(%s)", (duty,))
    lowest = conn.execute("select max(earliest_live) from trunkline.archive_stats('orders')").fetchone()
    assert lowest is not None and lowest[0] > 1
    read = cli.process("topic", "read", "orders", "--limit", "3000", "-o", "json", env=environment).json
    assert sorted(each["body"]["n"] for each in read) == list(range(2000))
    replayed = cli.process("pipeline", "replay", "orders", "--to", "copy", "--id", "all", *spark, env=environment)
    assert replayed.json["published"] == 2000

    system, base = files.place(location)
    victim = next(each for each in system.get_file_info(fs.FileSelector(base, recursive=True)) if each.is_file)
    system.delete_file(victim.path)
    lost = cli.process("topic", "read", "orders", "--limit", "3000", env=environment, code=1)
    assert f"{victim.base_name}" in lost.stderr
    assert "is missing" in lost.stderr


def test_delta_and_iceberg_tables_in_the_store(db: str, conn: Connection, store: str) -> None:
    """Also where the store is not Amazon's and speaks plain HTTP."""
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.publish('t', to_jsonb(n)) from generate_series(1, 50) n")
    conn.execute("call trunkline.sequence()")
    number = calls.ensure_archive(conn, "t", "s3://data/log").topic_id
    calls.add_archive_files(conn, "t", [write_piece(db, "t", number, "s3://data/log", calls.ArchiveRange(0, 1, 50))])
    for format in ("delta", "iceberg"):
        assert [export(db, "t", format).rows for _ in range(2)] == [50, 0]
