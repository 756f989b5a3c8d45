"""Settings: flags win over `TRUNKLINE_*` variables, those win over a `.env` file in the working directory.

`DATABASE_URL`, which other programs read too, is used when none of them names a database.
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
"""Where many programs find their database. It counts only if it is a Postgres URL: it may belong to something else."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_URL_PREFIXES = ("postgresql://", "postgres://")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.ASCII)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to know before it can reach its database."""

    database_url: str | None = None
    """A server to use; None means the embedded one."""
    database_url_source: str | None = None
    """The flag, variable or line of `.env` that `database_url` came from."""
    url: str | None = None
    """An HTTP service for the command line to speak to, instead of a database."""
    token: str | None = None
    """The token for it."""
    data: Path = Path(".trunkline")
    """Directory of the embedded server."""
    port: int = 8080
    """HTTP port; 0 means a free one."""
    pg_port: int | None = None
    """Port of the embedded server; None means a free one, kept for the next start."""
    upkeep_interval: timedelta = timedelta(milliseconds=500)
    """How often upkeep runs."""
    push_allow: tuple[str, ...] = ()
    """Networks that push deliveries may go to besides the public internet."""
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
        """Merge the three sources, or raise a `SettingsError` that names the culprit and the remedy.

        `flags` maps field names to text; None and empty text count as not given.
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
    """The values that are given, by field; the strongest source first."""
    file = read_dotenv(dotenv)
    given = {field: _Value(text, "--" + field.replace("_", "-")) for field, text in flags.items() if text}
    variables = {field: _Value(text, variable) for field, variable in _VARIABLE_OF.items() if (text := env.get(variable))}
    lines = {field: file[variable] for field, variable in _VARIABLE_OF.items() if variable in file and file[variable].text}
    shared = _Value(env.get(SHARED_URL, ""), SHARED_URL), file.get(SHARED_URL, _Value("", ""))
    usable = [{"database_url": value} for value in shared if value.text.startswith(_URL_PREFIXES)]
    return [given, variables, lines, *usable]


def _naming_database(sources: list[_Source]) -> list[_Source]:
    """The sources down to the first one that says which database to use.

    A directory names a database too: `--data` is not overruled by a URL in `.env`. So does the flag `--pg-port`.
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
    """Read `500ms`, `30s`, `1.5m`, `2h` or `7d`. The only reader of durations in the package."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidDuration(f"{text!r} is not a duration", hint="write a number and a unit: 500ms, 30s, 5m, 2h or 7d")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError as exc:
        raise InvalidDuration(f"the duration {text!r} is too long", hint="use fewer days") from exc


def _positive_duration(text: str) -> timedelta:
    value = parse_duration(text)
    if value <= timedelta(0):
        raise SettingsError(f"{text!r} must be longer than zero", hint="for example 500ms")
    return value


def _port(text: str, least: int = 1) -> int:
    # isascii: int() also reads digits of other scripts, which nobody means here.
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and least <= int(text) <= 65535):
        raise SettingsError(f"{text!r} is not a port", hint=f"use a number from {least} to 65535")
    return int(text)


def _http_port(text: str) -> int:
    return _port(text, least=0)


def _url(text: str) -> str:
    if not text.startswith(_URL_PREFIXES) and "=" not in text:
        # The value is not repeated: it may hold a password.
        raise SettingsError(
            "this is not a Postgres connection string",
            hint="write postgresql://user:password@host:5432/database or key=value pairs",
        )
    return text


def _http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise SettingsError("this is not the URL of an HTTP service", hint="write http://host:8080 or https://host")
    return text.rstrip("/")


def _path(text: str) -> Path:
    if "\0" in text:
        raise SettingsError("a path cannot hold a NUL character", hint="use an ordinary directory name")
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
        raise SettingsError(f"{text!r} is neither yes nor no", hint="use 1 or 0")
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
    """The `TRUNKLINE_*` lines of a `.env` file, and `DATABASE_URL`; a missing file is an empty one.

    Other programs' variables are skipped. A `TRUNKLINE_` name we do not know is an error, because it is
    most likely a misspelt setting that would otherwise be ignored in silence.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeError) as exc:
        raise SettingsError(f"{path} cannot be read: {exc}", hint="make it a readable UTF-8 file") from exc
    values: dict[str, _Value] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            _read_line(line.strip(), f"{path} line {number}", values)
    return values


def _read_line(line: str, where: str, values: dict[str, _Value]) -> None:
    match = _LINE.fullmatch(line)
    if match is None:
        if PREFIX in line.partition("=")[0]:
            raise SettingsError(f"{where}: not of the form KEY=VALUE", hint="write TRUNKLINE_PORT=8080")
        return
    key, rest = match.groups()
    if not key.startswith(PREFIX) and key != SHARED_URL:
        return
    if key == SHARED_URL:
        with suppress(SettingsError):  # written for other programs
            values[key] = _Value(_unquoted(rest, where), f"{key} ({where})")
        return
    if key not in VARIABLES:
        raise SettingsError(f"{where}: unknown setting {key}", hint="known are " + ", ".join(sorted(VARIABLES)))
    values[key] = _Value(_unquoted(rest, where), f"{key} ({where})")


def _unquoted(rest: str, where: str) -> str:
    if rest[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s)#", rest, maxsplit=1)[0].strip()
    quote = rest[0]
    value, closed, tail = rest[1:].partition(quote)
    if not closed or (tail.strip() and not tail.lstrip().startswith("#")):
        raise SettingsError(f"{where}: unbalanced quote", hint=f"end the value with {quote}")
    return value
