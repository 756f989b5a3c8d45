"""Settings. Flags take precedence over `TRUNKLINE_*` variables, and these over a `.env` file in the working directory.

`DATABASE_URL`, which other programs use too, applies if none of these names a database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trunkline.errors import InvalidDuration, SettingsError, TrunklineError

PREFIX = "TRUNKLINE_"
SHARED_URL = "DATABASE_URL"
"""Shared with other programs, so it is ignored unless it is a Postgres URL."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_URL_PREFIXES = ("postgresql://", "postgres://")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.ASCII)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a process needs before it connects to its database."""

    database_url: str | None = None
    """Connection string of the server; None means the embedded server."""
    database_url_source: str | None = None
    """The flag, variable or `.env` line that set `database_url`."""
    url: str | None = None
    """URL of an HTTP service that the command line uses instead of a database."""
    token: str | None = None
    """Token for the HTTP service."""
    data: Path = Path(".trunkline")
    """Directory of the embedded server."""
    port: int = 8080
    """HTTP port; 0 selects a free port."""
    pg_port: int | None = None
    """Port of the embedded server; None selects a free port and keeps it for the next start."""
    upkeep_interval: timedelta = timedelta(milliseconds=500)
    """Interval between runs of upkeep."""
    push_allow: tuple[str, ...] = ()
    """Private networks that webhooks may be sent to."""
    debug: bool = False
    """Show tracebacks."""

    @classmethod
    def load(
        cls,
        flags: Mapping[str, str | None] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Settings:
        """Merge the three sources. Raises `SettingsError`, which names the invalid flag, variable or line.

        `flags` maps field names to text; None and empty text mean that a flag is not set.
        """
        sources = _sources(flags or {}, os.environ if env is None else env, (cwd or Path()) / ".env")
        values: dict[str, Any] = {}
        for field, parse in _PARSERS.items():
            candidates = _naming_database(sources) if field == "database_url" else sources
            value = next((source[field] for source in candidates if field in source), None)
            if value is None:
                continue
            values[field] = _parsed(parse, value)
            if field == "database_url":
                values["database_url_source"] = value.source
        return cls(**values)


class _Value(NamedTuple):
    text: str
    source: str


_Source = Mapping[str, _Value]


def _sources(flags: Mapping[str, str | None], env: Mapping[str, str], dotenv: Path) -> list[_Source]:
    """Return the values of each source by field, in order of precedence."""
    file = read_dotenv(dotenv)
    options = {field: _Value(text, "--" + field.replace("_", "-")) for field, text in flags.items() if text}
    variables = {field: _Value(text, variable) for field, variable in _VARIABLE_OF.items() if (text := env.get(variable))}
    lines = {field: file[variable] for field, variable in _VARIABLE_OF.items() if variable in file and file[variable].text}
    shared = _Value(env.get(SHARED_URL, ""), SHARED_URL), file.get(SHARED_URL, _Value("", ""))
    usable = [{"database_url": value} for value in shared if value.text.startswith(_URL_PREFIXES)]
    return [options, variables, lines, *usable]


def _naming_database(sources: list[_Source]) -> list[_Source]:
    """Return the sources up to and including the first one that selects a database.

    A data directory and the flag `--pg-port` select one too: a URL in `.env` does not override `--data`.
    """
    for number, source in enumerate(sources):
        if "database_url" in source or "data" in source or (number == 0 and "pg_port" in source):
            return sources[: number + 1]
    return sources


def _parsed(parse: Callable[[str], Any], value: _Value) -> Any:
    try:
        return parse(value.text)
    except TrunklineError as exc:
        raise SettingsError(f"{value.source}: {exc.message}", hint=exc.hint) from exc


def parse_duration(text: str) -> timedelta:
    """Parse `500ms`, `30s`, `1.5m`, `2h` or `7d`. The only parser of durations in the package."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidDuration(f'invalid duration: "{text}"', hint="Write a number and a unit: 500ms, 30s, 5m, 2h or 7d.")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError as exc:
        raise InvalidDuration(f"duration must be at most {timedelta.max.days} days", hint="Use a shorter duration.") from exc


def _positive_duration(text: str) -> timedelta:
    value = parse_duration(text)
    if value <= timedelta(0):
        raise SettingsError(f'duration must be longer than zero, got "{text}"', hint="Use a duration such as 500ms.")
    return value


def _port(text: str, least: int = 1) -> int:
    # isascii: int() also accepts digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and least <= int(text) <= 65535):
        raise SettingsError(f'port must be a number from {least} to 65535, got "{text}"', hint="Use another port.")
    return int(text)


def _http_port(text: str) -> int:
    return _port(text, least=0)


def _url(text: str) -> str:
    if not text.startswith(_URL_PREFIXES) and "=" not in text:
        # The message does not repeat the value, which may contain a password.
        raise SettingsError(
            "not a Postgres connection string",
            hint="Write postgresql://user:password@host:5432/database or key=value pairs.",
        )
    return text


def _http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise SettingsError("not the URL of an HTTP service", hint="Write http://host:8080 or https://host.")
    return text.rstrip("/")


def _path(text: str) -> Path:
    if "\0" in text:
        raise SettingsError("path must not contain a NUL character", hint="Use another directory name.")
    return Path(text).expanduser()


def _boolean(text: str) -> bool:
    known = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    value = known.get(text.lower())
    if value is None:
        raise SettingsError(f'value must be 1 or 0, got "{text}"', hint="Use 1 or 0.")
    return value


def _networks(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[str, Callable[[str], Any]] = {
    "database_url": _url,
    "url": _http_url,
    "token": str,
    "data": _path,
    "port": _http_port,
    "pg_port": _port,
    "upkeep_interval": _positive_duration,
    "push_allow": _networks,
    "debug": _boolean,
}
_VARIABLE_OF = {field: PREFIX + field.upper() for field in _PARSERS}
VARIABLES = frozenset(_VARIABLE_OF.values())


def read_dotenv(path: Path) -> dict[str, _Value]:
    """Return the `TRUNKLINE_*` and `DATABASE_URL` lines of a `.env` file; none if the file does not exist.

    Variables of other programs are skipped. An unknown `TRUNKLINE_` name is an error, because it is most likely a
    misspelt setting.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeError) as exc:
        raise SettingsError(f"{path} cannot be read: {exc}", hint="Make the file readable, in UTF-8.") from exc
    values: dict[str, _Value] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            _read_line(line.strip(), f"{path} line {number}", values)
    return values


def _read_line(line: str, where: str, values: dict[str, _Value]) -> None:
    match = _LINE.fullmatch(line)
    if match is None:
        if PREFIX in line.partition("=")[0]:
            raise SettingsError(
                f"{where}: line must have the form KEY=VALUE", hint="Write a line such as TRUNKLINE_PORT=8080."
            )
        return
    key, rest = match.groups()
    if not key.startswith(PREFIX) and key != SHARED_URL:
        return
    if key == SHARED_URL:
        with suppress(SettingsError):  # the line is for other programs
            values[key] = _Value(_unquoted(rest, where), f"{key} ({where})")
        return
    if key not in VARIABLES:
        raise SettingsError(f"{where}: unknown setting {key}", hint=f"Use one of: {', '.join(sorted(VARIABLES))}.")
    values[key] = _Value(_unquoted(rest, where), f"{key} ({where})")


def _unquoted(rest: str, where: str) -> str:
    if rest[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s)#", rest, maxsplit=1)[0].strip()
    quote = rest[0]
    value, closed, tail = rest[1:].partition(quote)
    if not closed or (tail.strip() and not tail.lstrip().startswith("#")):
        raise SettingsError(f"{where}: unbalanced quote", hint=f"End the value with {quote}.")
    return value
