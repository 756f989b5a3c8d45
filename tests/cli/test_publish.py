"""Publishing lines: streams, bad lines, interruptions, and resuming afterwards."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.cli.conftest import Cli, on_a_terminal
from tests.conftest import Connection
from tests.sql.calls import value
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def topic(cli: Cli) -> str:
    cli("topic", "create", "t", "--max-payload", 5000)
    return "t"


def bodies(cli: Cli) -> list[object]:
    return [row["body"] for row in cli("topic", "read", "t", "--limit", 100_000).json]


def test_lines_of_a_file_and_of_stdin(cli: Cli) -> None:
    (cli.folder / "in.ndjson").write_text('1\n\n  {"a": 2}\r\n"last"')  # no newline at the end
    assert cli("topic", "publish", "t", "--file", "in.ndjson").json == {
        "stored": 3,
        "duplicates": 0,
        "failed": 0,
        "unknown": 0,
    }
    assert cli.process("topic", "publish", "t", input=b"4\n5").json["stored"] == 2
    assert cli.process("topic", "publish", "t", "--file", "-", input=b"6\n").json["stored"] == 1
    assert cli.process("topic", "publish", "t", input=b"").json["stored"] == 0
    assert bodies(cli) == [1, {"a": 2}, "last", 4, 5, 6]


def test_many_lines_keep_their_order(cli: Cli) -> None:
    lines = b"".join(b"%d\n" % n for n in range(5000))
    assert cli.process("topic", "publish", "t", "--key", "k", input=lines).json["stored"] == 5000
    assert bodies(cli) == list(range(5000))


def test_a_bad_line_is_named_and_what_stands_before_it_is_stored(cli: Cli) -> None:
    bad = cli.process("topic", "publish", "t", "-o", "json", input=b"1\n2\n{broken\n4\n", code=2)
    assert bad.stdout == "" and bad.error["code"] == "invalid_line" and "line 3" in bad.error["message"]
    assert "2 stored" in bad.stderr and "lines 1 to 2 are done" in bad.stderr
    assert bodies(cli) == [1, 2]


def test_continue_on_error_counts(cli: Cli) -> None:
    lines = b'1\n{broken\n\xff\xfe\n"' + b"x" * 6000 + b'"\n5\n'
    done = cli.process("topic", "publish", "t", "--continue-on-error", input=lines, code=1)
    assert done.json == {"stored": 2, "duplicates": 0, "failed": 3, "unknown": 0}
    assert {"line 2", "line 3", "line 4"} <= {words.split(":")[1].strip() for words in done.stderr.splitlines()}
    assert bodies(cli) == [1, 5]


def test_a_batch_that_the_database_refuses_is_not_stored(cli: Cli) -> None:
    refused = cli.process("topic", "publish", "t", "-o", "json", input=b'1\n"' + b"x" * 6000 + b'"\n', code=2)
    assert refused.error["code"] == "payload_too_large" and "lines 1 to 2 were not stored" in refused.error["message"]
    assert bodies(cli) == []


def test_dry_run_stores_nothing(cli: Cli) -> None:
    assert "would store 2 messages" in cli.process("topic", "publish", "t", "--dry-run", input=b"1\n2\n").stderr
    assert "would store 1 message" in cli("topic", "publish", "t", "1", "--dry-run").stderr
    assert (
        "1 lines rejected"
        in cli.process("topic", "publish", "t", "--dry-run", "--continue-on-error", input=b"1\nx", code=1).stderr
    )
    cli("topic", "publish", "missing", "1", "--dry-run", code=3)
    assert bodies(cli) == []


def test_envelopes_carry_whole_messages(cli: Cli) -> None:
    cli("topic", "create", "copy", "--max-payload", 5000)
    cli("topic", "publish", "t", '{"a": 1.10}', "--key", "k", "--routing-key", "r", "--label", "l", "-H", "x=1")
    cli("topic", "publish", "t", "hällo\n", "--content-type", "text/plain")
    (cli.folder / "raw").write_bytes(b"\x00\x01\xff")
    cli("topic", "publish", "t", "--body-file", "raw", "--content-type", "application/octet-stream")
    cli("topic", "publish", "t", "null")
    lines = cli("topic", "read", "t", "-o", "jsonl").stdout
    assert cli.process("topic", "publish", "copy", "--envelope", input=lines.encode()).json["stored"] == 4
    keep = ("id", "key", "routing_key", "label", "headers", "content_type", "body", "payload_base64")
    copies = cli("topic", "read", "copy").json
    for original, copy in zip(cli("topic", "read", "t").json, copies, strict=True):
        assert [original.get(name) for name in keep] == [copy.get(name) for name in keep]
    assert "1.10" in cli("topic", "read", "copy").stdout
    cli.process("topic", "publish", "copy", "--envelope", input=b'{"key": "no body"}', code=2)
    cli.process("topic", "publish", "copy", "--envelope", input=b'{"body": 1, "key": 5}', code=2)


def test_a_repeat_with_a_prefix_adds_only_what_is_missing(cli: Cli) -> None:
    first = cli.process("topic", "publish", "t", "--idempotency-prefix", "run", input=b"1\n2\n")
    assert first.json["stored"] == 2
    again = cli.process("topic", "publish", "t", "--idempotency-prefix", "run", input=b"1\n2\n3\n")
    assert again.json == {"stored": 1, "duplicates": 2, "failed": 0, "unknown": 0}
    assert sorted(map(str, bodies(cli))) == ["1", "2", "3"]


def test_ctrl_c_reports_how_many_are_stored_and_a_repeat_continues(cli: Cli, conn: Connection) -> None:
    lines = [b"%d\n" % n for n in range(3000)]
    publisher = cli.start("topic", "publish", "t", "--idempotency-prefix", "run")
    assert publisher.stdin is not None
    publisher.stdin.write(b"".join(lines[:2000]))
    publisher.stdin.flush()

    def stored() -> int:
        return int(value(conn, "select trunkline.head('t', 0)"))

    wait_until(lambda: stored() == 2000)
    publisher.send_signal(signal.SIGINT)
    out, err = publisher.communicate(timeout=30)
    assert publisher.returncode == 130
    assert b"2,000 stored" in err and b"0 unknown" in err and b"again to resume" in err
    assert out == b"" and b"Traceback" not in err
    repeat = cli.process("topic", "publish", "t", "--idempotency-prefix", "run", input=b"".join(lines))
    assert repeat.json == {"stored": 1000, "duplicates": 2000, "failed": 0, "unknown": 0}
    assert bodies(cli) == list(range(3000))


def test_lines_are_stored_as_they_come(cli: Cli, conn: Connection) -> None:
    """A pipe that stays open (tail -f) does not hold messages back."""
    publisher = cli.start("topic", "publish", "t")
    assert publisher.stdin is not None
    for n in (1, 2):
        publisher.stdin.write(b"%d\n" % n)
        publisher.stdin.flush()
        wait_until(lambda n=n: value(conn, "select trunkline.head('t', 0)") == n)  # type: ignore[misc]
    out, _ = publisher.communicate(timeout=30)
    assert json.loads(out)["stored"] == 2


def test_a_database_that_goes_away_is_told(cli: Cli, conn: Connection) -> None:
    publisher = cli.start("topic", "publish", "t", "-o", "json")
    assert publisher.stdin is not None
    publisher.stdin.write(b"1\n")
    publisher.stdin.flush()
    wait_until(lambda: value(conn, "select trunkline.head('t', 0)") == 1)
    conn.execute("alter table trunkline.topics rename to topics_away")
    publisher.stdin.write(b"2\n")
    _, err = publisher.communicate(timeout=60)
    assert publisher.returncode == 5 and b"Traceback" not in err
    assert b"1 stored" in err


def test_sources_exclude_each_other(cli: Cli) -> None:
    cli("topic", "publish", "t", "1", "--file", "x", code=2)
    cli("topic", "publish", "t", "1", "--envelope", code=2)
    cli("topic", "publish", "t", "--file", "x", "--idempotency-key", "k", code=2)
    cli("topic", "publish", "t", "1", "-H", "a=1", "-H", "a=2", code=2)


def test_fifo(cli: Cli) -> None:
    os.mkfifo(cli.folder / "pipe")
    publisher = cli.start("topic", "publish", "t", "--file", "pipe")
    with (cli.folder / "pipe").open("wb") as pipe:
        pipe.write(b"1\n2\n")
    out, _ = publisher.communicate(timeout=30)
    assert json.loads(out)["stored"] == 2


def test_progress_only_on_a_terminal(cli: Cli) -> None:
    (cli.folder / "in.ndjson").write_text("1\n2\n")
    code, shown = on_a_terminal(cli, "topic", "publish", "t", "--file", "in.ndjson")
    assert code == 0 and "to t" in shown and "stored" in shown
    assert "to t" not in on_a_terminal(cli, "topic", "publish", "t", "--file", "in.ndjson", "-q")[1]
    assert cli.process("topic", "publish", "t", "--file", "in.ndjson").stderr == ""


def test_typed_lines(cli: Cli) -> None:
    code, shown = on_a_terminal(cli, "topic", "publish", "t", typed="1\n2\n\x04", after="Ctrl-D ends")
    assert code == 0 and "stored" in shown
    assert bodies(cli) == [1, 2]
