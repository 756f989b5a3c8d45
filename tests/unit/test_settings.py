"""Settings: order of the sources, the `.env` reader, durations, and errors that name the culprit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from trunkline.errors import InvalidDuration, SettingsError
from trunkline.settings import Settings, parse_duration


def load(tmp_path: Path, dotenv: str = "", env: dict[str, str] | None = None, **flags: str | None) -> Settings:
    if dotenv:
        (tmp_path / ".env").write_text(dotenv)
    return Settings.load(flags, env=env or {}, cwd=tmp_path)


def test_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == Settings()
    assert (settings.port, settings.pg_port, settings.database_url) == (8080, None, None)
    assert settings.upkeep_interval == timedelta(seconds=0.5)


def test_flags_win_over_variables_and_variables_over_dotenv(tmp_path: Path) -> None:
    dotenv = "TRUNKLINE_PORT=1\nTRUNKLINE_PG_PORT=2\nTRUNKLINE_DATA=/three\n"
    env = {"TRUNKLINE_PORT": "11", "TRUNKLINE_PG_PORT": "12"}
    settings = load(tmp_path, dotenv, env, port="21")
    assert (settings.port, settings.pg_port, settings.data) == (21, 12, Path("/three"))


URL = "postgresql://a@h/db"


@pytest.mark.parametrize(
    ("dotenv", "env", "flags", "expected"),
    [
        (f"TRUNKLINE_DATABASE_URL={URL}\n", {}, {}, (URL, ".trunkline")),
        (f"TRUNKLINE_DATABASE_URL={URL}\n", {}, {"data": "d"}, (None, "d")),
        (f"TRUNKLINE_DATABASE_URL={URL}\n", {}, {"pg_port": "5000"}, (None, ".trunkline")),
        (f"TRUNKLINE_DATABASE_URL={URL}\n", {"TRUNKLINE_PG_PORT": "5000"}, {}, (URL, ".trunkline")),
        (f"TRUNKLINE_DATABASE_URL={URL}\n", {"TRUNKLINE_DATA": "d"}, {}, (None, "d")),
        ("TRUNKLINE_DATA=d\n", {"TRUNKLINE_DATABASE_URL": URL}, {}, (URL, "d")),
        ("", {"TRUNKLINE_DATABASE_URL": URL, "TRUNKLINE_DATA": "d"}, {}, (URL, "d")),
        ("TRUNKLINE_DATA=d\n", {"DATABASE_URL": URL}, {}, (None, "d")),
        ("", {"DATABASE_URL": URL}, {}, (URL, ".trunkline")),
        (f"DATABASE_URL='{URL}'\n", {}, {}, (URL, ".trunkline")),
        (f"DATABASE_URL={URL}2\n", {"DATABASE_URL": URL}, {}, (URL, ".trunkline")),
        (f"TRUNKLINE_DATABASE_URL={URL}\n", {"DATABASE_URL": "postgresql:///other"}, {}, (URL, ".trunkline")),
        ("DATABASE_URL='sqlite:///x\n", {"DATABASE_URL": "mysql://h/db"}, {}, (None, ".trunkline")),
    ],
)
def test_the_strongest_source_chooses_the_database(
    tmp_path: Path, dotenv: str, env: dict[str, str], flags: dict[str, str], expected: tuple[str | None, str]
) -> None:
    settings = load(tmp_path, dotenv, env, **flags)
    assert (settings.database_url, str(settings.data)) == expected
    assert (settings.database_url_source is None) == (settings.database_url is None)


def test_the_source_of_the_url_is_known(tmp_path: Path) -> None:
    line = load(tmp_path, f"TRUNKLINE_DATABASE_URL={URL}\n").database_url_source
    assert line is not None and line.startswith("TRUNKLINE_DATABASE_URL (") and line.endswith(" line 1)")
    assert load(tmp_path, database_url=URL).database_url_source == "--database-url"


def test_empty_values_count_as_not_given(tmp_path: Path) -> None:
    settings = load(tmp_path, "TRUNKLINE_PORT=7\n", {"TRUNKLINE_PORT": ""}, port=None)
    assert settings.port == 7


def test_dotenv_quotes_comments_and_export(tmp_path: Path) -> None:
    dotenv = (
        "# a comment\n\n"
        "export TRUNKLINE_PORT = 9000   # trailing comment\n"
        'TRUNKLINE_DATABASE_URL="postgresql://u:p#w@h/db"  # quoted hash is kept\n'
        "TRUNKLINE_DATA='/with space'\n"
        "TRUNKLINE_UPKEEP_INTERVAL=2s\n"
        "OTHER_PROGRAM=anything goes here\n"
        "not even a variable\n"
    )
    settings = load(tmp_path, dotenv)
    assert settings.port == 9000
    assert settings.database_url == "postgresql://u:p#w@h/db"
    assert settings.data == Path("/with space")
    assert settings.upkeep_interval == timedelta(seconds=2)


def test_hash_inside_an_unquoted_value_is_kept(tmp_path: Path) -> None:
    assert load(tmp_path, "TRUNKLINE_DATA=/a#b\n").data == Path("/a#b")


@pytest.mark.parametrize(
    ("dotenv", "named"),
    [
        ("\nTRUNKLINE_PROT=1\n", "line 2: unknown setting TRUNKLINE_PROT"),
        ("TRUNKLINE_DATA='x\n", "line 1: unbalanced quote"),
        ("TRUNKLINE_DATA='x' y\n", "line 1: unbalanced quote"),
        ("TRUNKLINE_PORT=x\n", "line 1"),
        ("TRUNKLINE PORT=x\n", ""),
        ("TRUNKLINE_PORT 8080\n", "line 1: line must have the form"),
    ],
)
def test_bad_dotenv_names_the_line(tmp_path: Path, dotenv: str, named: str) -> None:
    if not named:
        assert load(tmp_path, dotenv) == Settings()
        return
    with pytest.raises(SettingsError, match=named) as caught:
        load(tmp_path, dotenv)
    assert caught.value.hint


def test_unreadable_dotenv_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize("value", ["65536", "-1", "1.5", "http", "\u0661", "99999999999", " 80"])
def test_bad_ports_name_the_variable(tmp_path: Path, value: str) -> None:
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_PORT: ") as caught:
        load(tmp_path, env={"TRUNKLINE_PORT": value})
    assert caught.value.message == f'TRUNKLINE_PORT: port must be a number from 0 to 65535, got "{value}"'
    assert caught.value.hint == "Use another port."


def test_port_0_is_a_free_one_for_http_and_nothing_for_postgres(tmp_path: Path) -> None:
    assert load(tmp_path, port="0").port == 0
    with pytest.raises(SettingsError, match=r"^--pg-port: ") as caught:
        load(tmp_path, pg_port="0")
    assert caught.value.message == '--pg-port: port must be a number from 1 to 65535, got "0"'
    assert caught.value.hint == "Use another port."


def test_bad_flag_is_named_as_a_flag(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--pg-port: "):
        load(tmp_path, pg_port="none")


def test_bad_url_is_not_repeated_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, database_url="mysql://u:secret@h/db")
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith("--database-url: ")


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("TRUE", True), ("off", False), ("0", False)])
def test_debug_reads_yes_and_no(tmp_path: Path, text: str, expected: bool) -> None:
    assert load(tmp_path, env={"TRUNKLINE_DEBUG": text}).debug is expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("7d", 604800), ("0s", 0), (" 5s ", 5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "5 s", "1e3s", "NaNs", "infs", "5w", "1h30m", "\u0665s"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InvalidDuration, match="invalid duration"):
        parse_duration(text)


def test_endless_duration_is_refused() -> None:
    with pytest.raises(InvalidDuration, match="at most 999999999 days"):
        parse_duration("9" * 400 + "d")


@pytest.mark.parametrize("text", ["0s", "soon"])
def test_upkeep_interval_must_be_a_positive_duration(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_UPKEEP_INTERVAL: "):
        load(tmp_path, env={"TRUNKLINE_UPKEEP_INTERVAL": text})
