"""The base of all commands: strict options, examples in help, shared options, and the invocation."""

from __future__ import annotations

import difflib
import functools
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trunkline.cli.framework.output import FORMATS, Output, say
from trunkline.errors import SettingsError, Timeout, TrunklineError
from trunkline.resources import Field, fields
from trunkline.settings import Settings, parse_duration

if TYPE_CHECKING:
    from trunkline import Client
    from trunkline.http_client import HttpClient
    from trunkline.messaging import Messaging

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
CHECK_FAILED = 5


class TimedOut(Timeout):
    """The command took longer than --timeout."""

    code, exit_code = "timed_out", 124


class Command(click.Command):
    """A command that rejects repeated options and empty option values, which click accepts."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and not ctx.ignore_unknown_options:
            values, _, order = self.make_parser(ctx).parse_args(list(args))
            options = [param for param in order if isinstance(param, click.Option)]
            for param in options:
                value = values.get(param.name or "")
                if value == "" or (isinstance(value, list) and "" in value):
                    raise click.BadParameter("the value must not be empty", ctx, param)
                if options.count(param) > 1 and not (param.multiple or param.count):
                    raise click.BadParameter("must be given only once", ctx, param)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            formatter.write_paragraph()
            formatter.write("Example:\n")
            for line in self.example.splitlines():
                formatter.write(f"  {line}\n")
        super().format_epilog(ctx, formatter)


class CommandGroup(click.Group):
    """A command group that suggests the closest name for a misspelt command."""

    command_class = Command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # no abbreviations: a new command would change what they mean
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.5)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"unknown command {name!r}{guess}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def subcommand(self, name: str, *, example: str) -> Callable[[Callable[..., Any]], click.Command]:
        """Register a function as a command of this group; its first argument is the invocation."""
        return lambda function: _add(self, function, name, example)


def command(name: str, *, example: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Register a function as a top-level command. Its first argument is the invocation."""
    return lambda function: _add(None, function, name, example)


def _add(group: CommandGroup | None, function: Callable[..., Any], name: str, example: str) -> click.Command:
    @functools.wraps(function)
    def call(
        *,
        database_url: str | None,
        data: str | None,
        output: str | None,
        timeout: timedelta | None,
        quiet: bool,
        **values: Any,
    ) -> Any:
        service: dict[str, str | None] = click.get_current_context().find_root().obj or {}
        flags = {"database_url": database_url, "data": data, **service}
        return function(Invocation(flags, output, timeout, quiet), **values)

    call.__click_params__ = [*_shared(), *getattr(function, "__click_params__", [])]  # type: ignore[attr-defined]
    make = click.command if group is None else group.command
    return make(name, cls=Command, example=example)(call)


def _shared() -> list[click.Option]:
    """The options of every command, in reverse order, as click stores them."""
    return [
        click.Option(["-q", "--quiet"], is_flag=True, help="Print only errors on stderr."),
        click.Option(["--timeout"], type=Duration(), help="Time limit of the command (exit code 124)."),
        click.Option(
            ["-o", "--output"], type=click.Choice(FORMATS), help="Output format.  [default: table on a terminal, else json]"
        ),
        click.Option(["--data"], metavar="DIR", help="Data directory of a running `trunkline up` or `trunkline demo`."),
        click.Option(["--database-url"], metavar="URL", help="Connection URL.  [default: the embedded server of --data]"),
    ]


def stacked(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Combine several options into one decorator, in help order."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A duration such as `500ms`, `30s`, `5m`, `2h` or `7d`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value)
        except TrunklineError as exc:
            self.fail(str(exc), param, ctx)


class Count(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A whole number from `least` to `most`."""

    name = "n"

    def __init__(self, least: int, most: int = 2**31 - 1) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        # int() also accepts other scripts and underscores
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,20}", value):
            self.fail(f"must be a number, got {value!r}", param, ctx)
        number = int(value)
        if not self._least <= number <= self._most:
            self.fail(f"must be between {self._least} and {self._most}, got {number}", param, ctx)
        return number


def setting_options(settings: type) -> Callable[[F], F]:
    """Add an option for each declared setting (resources.py)."""
    return stacked(*(_setting_option(field) for field in fields(settings)))


def _setting_option(field: Field) -> Callable[[Any], Any]:
    name = f"--{field.name.replace('_', '-')}"
    default = f"  [default: {field.setting.default}]" if field.setting.default else ""
    text = f"{field.setting.help}{default}"
    if field.type is bool:
        return click.option(name, is_flag=True, default=None, help=text)
    if field.type is int:
        most = 2**63 - 1 if field.sql == "bigint" else 2**31 - 1
        metavar = field.setting.unit.upper() if field.setting.unit else None
        return click.option(name, type=Count(field.setting.low or 0, most), metavar=metavar, help=text)
    return click.option(name, type=Duration() if field.type is timedelta else field.type, help=text)


def needs_database() -> click.UsageError:
    """Return the error for --url with a command that needs the database."""
    name = click.get_current_context().command_path
    return click.UsageError(f"`{name}` does not work over HTTP; use --database-url or --data instead of --url")


class Invocation:
    """The context of a command: its database or HTTP service, its time limit and its output."""

    def __init__(self, flags: dict[str, str | None], output: str | None, timeout: timedelta | None, quiet: bool) -> None:
        self._flags = flags
        self._timeout = timeout
        self.quiet = quiet
        self.out = Output(output)

    @functools.cached_property
    def _settings(self) -> Settings:
        return Settings.load(self._flags)

    @functools.cached_property
    def service(self) -> str | None:
        """The URL of the HTTP service, or None if the command uses a database."""
        database = next((f"--{name.replace('_', '-')}" for name in ("database_url", "data") if self._flags[name]), None)
        if self._flags.get("url") and database:
            raise click.UsageError(f"specify either --url or {database}")
        if database is not None or self._settings.url is None:
            return None
        return self._settings.url

    @functools.cached_property
    def url(self) -> str:
        """The connection string of the database, with our application name."""
        from trunkline.cli.framework.database import conninfo, warn_about_secrets

        if self._flags.get("url"):
            raise needs_database()
        if not self.quiet:
            warn_about_secrets(self._flags["database_url"])
        return conninfo(self._settings)

    @property
    def source(self) -> str | None:
        """The setting that names the database, or None for the embedded server."""
        return self._settings.database_url_source

    @property
    def names_database(self) -> bool:
        """True if a flag names the database."""
        return bool(self._flags["database_url"] or self._flags["data"])

    def say(self, text: str) -> None:
        """Print a message for people, unless --quiet."""
        if not self.quiet:
            say(text)

    def run(self, work: Callable[[Messaging], Awaitable[T]], *, untouched: bool = False) -> T:
        """Run `work` with an open client of the HTTP service or the database, within --timeout.

        Committed messages get their offsets first, unless the command needs to see them `untouched`.
        """
        if self.service is not None:
            return self.run_alone(functools.partial(_with_http_client, self.service, self._settings.token, work))
        return self.run_alone(functools.partial(_with_client, self.url, self.source, work, untouched))

    def run_either(
        self, on_database: Callable[[Client], Awaitable[T]], over_http: Callable[[HttpClient], Awaitable[T]]
    ) -> T:
        """Run one of two functions with an open client, for what the two clients offer in different ways."""
        return self.run_on_database(on_database) if self.service is None else self.run_over_http(over_http)

    def run_over_http(self, work: Callable[[HttpClient], Awaitable[T]]) -> T:
        """Run `work` with an open client of the HTTP service, within --timeout."""
        assert self.service is not None  # noqa: S101
        return self.run_alone(functools.partial(_with_http_client, self.service, self._settings.token, work))

    def run_on_database(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run `work` with an open client of the database, within --timeout. It does what the HTTP service cannot."""
        if self.service is not None:
            raise needs_database()
        return self.run_alone(functools.partial(_with_client, self.url, self.source, work, False))

    def run_alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, which opens its own connections, within --timeout."""
        import asyncio  # a quarter of the time of --help, which needs none

        return asyncio.run(self._limited(work))

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Run a synchronous block within --timeout."""
        if self._timeout is None:
            yield
            return

        def end(*_: object) -> None:
            raise self._timed_out()

        previous = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, max(self._timeout.total_seconds(), 0.001))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def _timed_out(self) -> TimedOut:
        seconds = self._timeout.total_seconds() if self._timeout is not None else 0
        return TimedOut(f"not finished after {seconds:g} s", hint="Increase --timeout.")

    async def _limited(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._timeout is None:
            return await work()
        import asyncio

        limit = asyncio.timeout(self._timeout.total_seconds())
        try:
            async with limit:
                return await work()
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._timed_out() from None


async def _with_client(url: str, source: str | None, work: Callable[[Client], Awaitable[T]], untouched: bool) -> T:
    from trunkline import Client
    from trunkline.cli.framework.database import naming

    with naming(source):
        async with Client(url) as mq:
            if not untouched:
                await sequence(mq)
            return await work(mq)


async def sequence(mq: Messaging) -> None:
    """Assign offsets to committed messages, so that a command shows them even if no service is running."""
    import psycopg

    from trunkline import Client
    from trunkline.db import calls

    if isinstance(mq, Client):  # the HTTP service does it
        async with mq.connection() as conn:
            with suppress(psycopg.errors.UndefinedFunction):  # the schema is older than this program
                await calls.sequence_before_reading(conn)


async def _with_http_client(url: str, token: str | None, work: Callable[[HttpClient], Awaitable[T]]) -> T:
    try:
        from trunkline.http_client import HttpClient
    except ModuleNotFoundError as exc:
        raise SettingsError("the HTTP client is not installed", hint="pip install 'trunkline[http]'") from exc

    async with HttpClient(url, token) as http:
        return await work(http)
