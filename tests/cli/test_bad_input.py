"""Bad input on the command line: a clear line, an exit code, no traceback, nothing changed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Cli, on_a_terminal
from tests.conftest import Connection


@pytest.fixture
def topic(cli: Cli) -> str:
    cli("topic", "create", "t")
    return "t"


def test_missing_and_unknown_commands_print_help(cli: Cli) -> None:
    assert "Commands:" in cli(code=2).stderr
    assert "Commands:" in cli("topic", code=2).stderr
    assert "did you mean 'topic'?" in cli("topci", "list", code=2).stderr
    assert "did you mean 'publish'?" in cli("topic", "publsh", code=2).stderr
    assert "did you mean" not in cli("xyzzy", code=2).stderr
    assert "unknown command" in cli("tra", code=2).stderr  # a prefix is not a command
    assert cli("topci", "-o", "json", code=2).error["code"] == "usage"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--timeout", "1s", "--timeout", "2s"),
        ("-o", "json", "--output", "table"),
        ("-q", "-q"),
        ("--timeout=",),
        ("--database-url", ""),
        ("--quiet=yes",),
        ("--unknown",),
        ("--timeout", "soon"),
        ("-o", "xml"),
        ("surplus",),
    ],
    ids=" ".join,
)
def test_invalid_flags_are_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    refused = cli("topic", "list", *arguments, code=2)
    assert refused.stdout == ""


def test_a_flag_may_use_an_equals_sign(cli: Cli) -> None:
    assert cli("topic", "list", "--timeout=10s", "--output=json").json == []


def test_secrets_are_not_printed(cli: Cli) -> None:
    secret = "s3cr3t"
    url = f"postgresql://me:{secret}@127.0.0.1:1/x"
    warned = cli("topic", "list", "--database-url", url, code=6)
    assert "process list" in warned.stderr and secret not in warned.stderr
    quiet = cli.process("topic", "list", code=6, env={"TRUNKLINE_DATABASE_URL": url})
    assert "process list" not in quiet.stderr and secret not in quiet.stderr
    assert secret not in cli("topic", "list", "--database-url", f"postgresql://me:{secret}@[bad:1/x", code=2).stderr
    assert secret not in cli("topic", "list", "--database-url", secret, code=2).stderr


def test_unusable_files_are_refused(cli: Cli, topic: str) -> None:
    cli("topic", "publish", topic, "--file", "missing", code=3)
    cli("topic", "publish", topic, "--file", ".", code=3)
    cli("topic", "publish", topic, "--file", "a\0b", code=3)
    cli("topic", "publish", topic, "--body-file", "missing", code=3)
    unreadable = cli.folder / "secret"
    unreadable.write_text("1")
    unreadable.chmod(0)
    if os.geteuid() != 0:
        cli("topic", "publish", topic, "--file", "secret", code=3)
    large = cli.folder / "large"
    with large.open("wb") as file:
        file.truncate(5 * 1024**3)  # five sparse gigabytes
    refused = cli("topic", "publish", topic, "--body-file", "large", code=2)
    assert "larger than" in refused.stderr
    assert "longer than" in cli("topic", "publish", topic, "--file", "large", code=2).stderr
    assert "longer than" in cli.process("topic", "publish", topic, "--file", "/dev/zero", code=2).stderr
    assert cli("topic", "read", topic).json == []


def test_unusable_standard_input_is_refused(cli: Cli, topic: str) -> None:
    closed = subprocess.run(
        ["sh", "-c", f"exec {COMMAND} topic publish {topic} <&-"], env=cli.environment(), capture_output=True, cwd=cli.folder
    )
    assert closed.returncode == 2 and b"stdin is closed" in closed.stderr
    assert cli.process("topic", "publish", topic, input=b"").json["stored"] == 0
    binary = cli.process("topic", "publish", topic, input=b"\x00\xff\n", code=2)
    assert "line 1" in binary.stderr
    assert cli.process("topic", "publish", topic, input=b"1").json["stored"] == 1
    counted = cli.process("topic", "publish", topic, "--continue-on-error", input=b"\x00\xff\n2\n", code=1)
    assert counted.json["failed"] == 1 and counted.json["stored"] == 1


def test_a_closed_pipe_ends_the_command(cli: Cli, topic: str) -> None:
    cli.process("topic", "publish", topic, input=b'"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"\n' * 3000)
    for format in ("json", "jsonl", "table"):
        reader = cli.start("topic", "read", topic, "--limit", 3000, "-o", format)
        assert reader.stdout is not None and reader.stderr is not None
        reader.stdout.read(10)
        reader.stdout.close()
        assert reader.wait(60) == 141
        assert reader.stderr.read() == b""


def test_escape_sequences_do_not_reach_the_terminal(cli: Cli, topic: str) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    cli("topic", "publish", topic, evil, "--content-type", "text/plain", "--key", evil, "--label", "\x1b[1mx")
    code, shown = on_a_terminal(cli, "topic", "read", topic, NO_COLOR="1")
    assert code == 0 and "\\x1b]0;owned" in shown
    without_styles = re.sub(r"\x1b\[\d*m", "", shown)  # the bold of the header is ours
    assert "\x1b" not in without_styles and "\x9b" not in shown and "\u202e" not in shown and "\x07" not in shown
    for format in ("json", "jsonl", "table"):
        assert not set("\x1b\x07\x9b\u202e") & set(cli("topic", "read", topic, "-o", format).stdout)
    assert "\x1b" not in cli("topic", "show", "\x1b[31m", code=3).stderr
    assert "\x1b" not in cli("\x1b[31m", code=2).stderr


def test_errors_as_json(cli: Cli) -> None:
    for format in ("json", "jsonl"):
        failed = cli("topic", "show", "missing", "-o", format, code=3)
        assert failed.stdout == ""
        assert failed.error["code"] == "topic_not_found" and failed.error["exit_code"] == 3 and failed.error["message"]
    assert cli("topic", "show", "-o", "json", code=2).error["code"] == "usage"


def test_an_unreachable_or_wrong_database_is_named(cli: Cli, empty_db: str) -> None:
    refused = cli("topic", "list", "--database-url", "postgresql://127.0.0.1:1/x", "-o", "json", code=6)
    assert refused.error["code"] == "database_unavailable" and "refused" in refused.error["message"]
    tls = cli(
        "topic", "list", "--database-url", f"{cli.url} sslmode=verify-full sslrootcert=/nowhere host=127.0.0.1", code=6
    )
    assert tls.stdout == ""
    empty = cli("topic", "list", "--database-url", empty_db, "-o", "json", code=5)
    assert empty.error["code"] == "not_installed" and "migrate" in empty.error["hint"]


def test_a_schema_of_another_version_is_named(cli: Cli, conn: Connection) -> None:
    conn.execute("insert into trunkline.migrations (version, name, checksum) select 9999, 'x', 'x'")
    assert cli("topic", "list", "-o", "json", code=5).error["code"] == "schema_version"


def test_a_destructive_command_needs_a_confirmation(cli: Cli, topic: str) -> None:
    refused = cli.process("topic", "delete", topic, code=2)
    assert "--yes" in refused.stderr
    cli("topic", "show", topic)


def test_on_a_terminal_the_name_is_typed(cli: Cli, topic: str) -> None:
    code, shown = on_a_terminal(cli, "topic", "delete", topic, typed="nope\n")
    assert code == 1 and "not confirmed" in shown
    cli("topic", "show", topic)
    code, shown = on_a_terminal(cli, "topic", "delete", topic, typed="t\n")
    assert code == 0 and "deleted topic t" in shown
    cli("topic", "show", topic, code=3)


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX"},
        {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
        {"PYTHONIOENCODING": "ascii"},
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
    ],
    ids=str,
)
def test_any_locale_and_terminal(cli: Cli, topic: str, env: dict[str, str]) -> None:
    cli("topic", "publish", topic, '"İı ünï 日本"')
    assert cli.process("topic", "read", topic, env=env).json[0]["body"] == "İı ünï 日本" or "PYTHONIOENCODING" in env
    assert "POSITION" in cli.process("topic", "read", topic, "-o", "table", env=env).stdout


def test_a_terminal_of_twenty_columns(cli: Cli, topic: str) -> None:
    cli("topic", "publish", topic, '"hello"')
    for arguments in (("topic", "list"), ("topic", "read", topic), ("doctor",), ("top", "--once")):
        code, shown = on_a_terminal(cli, *arguments, columns=20, NO_COLOR="1")
        assert code == 0, shown
        assert "\x1b[3" not in shown  # no colour
    assert 'payload      "hello"' in on_a_terminal(cli, "topic", "read", topic, columns=20)[1]


def test_settings_files(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUNKLINE_DATABASE_URL")
    dotenv = Path(".env")
    dotenv.write_text("TRUNKLINE_DATABSE_URL=x\n")
    assert ".env line 1" in cli("topic", "list", code=2).stderr
    dotenv.write_text("# comment\nTRUNKLINE_PORT=many\n")
    assert ".env line 2" in cli("topic", "list", code=2).stderr
    dotenv.write_text("TRUNKLINE_DATABASE_URL=postgresql://me:secret@127.0.0.1:1/x\n")
    dotenv.chmod(0o644)
    warned = cli("topic", "list", code=6)
    assert "chmod 600" in warned.stderr and "secret" not in warned.stderr
    dotenv.chmod(0o600)
    assert "chmod" not in cli("topic", "list", code=6).stderr


def test_time_out_and_interrupt(cli: Cli, topic: str) -> None:
    late = cli("topic", "tail", topic, "--timeout", "100ms", "-o", "json", code=124)
    assert late.error["code"] == "timed_out"
    cli("doctor", "--timeout", "0s", code=124)
    cli("migrate", "--timeout", "0s", code=124)
    tail = cli.start("topic", "tail", topic, "--start", "earliest")
    cli("topic", "publish", topic, "1")
    assert tail.stdout is not None and tail.stdout.readline()
    tail.send_signal(signal.SIGINT)
    _, err = tail.communicate(timeout=30)
    assert tail.returncode == 130 and b"Traceback" not in err


def test_names_and_numbers_that_are_refused(cli: Cli) -> None:
    for name in ("", "a b", "x" * 300, "ü", "a/b", "\x1b"):
        cli("topic", "create", name, code=2)
        cli("queue", "create", name, code=2)
    cli("topic", "create", "t", "--partitions", 0, code=2)
    cli("topic", "create", "t", "--partitions", 10**12, code=2)
    cli("topic", "create", "t", "--retention", "-1d", code=2)
    cli("queue", "create", "q", "--lease", "99999999999d", code=2)
    assert cli("topic", "list").json == [] and cli("queue", "list").json == []
    cli("group", "create", "t", "g", "--filter", '{"a": ' + "[" * 100_000, code=2)


def test_unexpected_errors_have_no_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("trunkline.cli.framework.database.conninfo", broken)
    failed = cli("topic", "list", "-o", "json", code=1)
    assert failed.error == {
        "code": "error",
        "message": "unexpected RuntimeError: boom",
        "hint": "Set TRUNKLINE_DEBUG=1 for a traceback.",
        "detail": None,
        "exit_code": 1,
    }
    assert json.loads(failed.stderr)
