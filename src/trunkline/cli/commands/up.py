"""`trunkline up`: a private Postgres (or yours), the schema, upkeep, HTTP and webhooks, in the foreground."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import shutil
import signal
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from trunkline.cli.framework.command import Command, Count
from trunkline.cli.framework.database import embedded_server, former_data, naming, warn_about_secrets
from trunkline.cli.framework.ports import Ports, compat_port_option
from trunkline.errors import TrunklineError
from trunkline.settings import Settings

if TYPE_CHECKING:
    from trunkline.cli.commands.http_child import HttpService
    from trunkline.embedded.server import EmbeddedServer

_LONGEST_PAUSE = 30.0
_COMMANDS = """
Commands for this database{where}:

  trunkline queue create hello
  trunkline queue enqueue hello '{{"to": "a@example.com"}}'
  trunkline queue peek hello
  trunkline top
"""
_HTTP_TOUR = """\
HTTP is served on {url}; see {url}/docs for all routes:

  curl -X POST '{url}/v1/queues?ensure=true' -d '{{"name": "hello"}}'
  curl -X POST {url}/v1/queues/hello/messages -d '{{"payload": {{"to": "a@example.com"}}}}'
  curl -X POST {url}/v1/queues/hello/claims
  curl -X POST {url}/v1/queues/hello/ack -d '{{"receipts": ["<receipt>"]}}'
"""
_TOUR = """\
A tour of 60 seconds; paste it into psql:

  select trunkline.create_topic('tour');
  select * from trunkline.publish('tour', '{"id": 42}');
  select * from trunkline.fetch('tour', 'readers', 'me');

  select trunkline.create_queue('tour-mail');
  select * from trunkline.enqueue('tour-mail', '{"to": "a@example.com"}');
  select * from trunkline.claim('tour-mail', 10);
  select * from trunkline.ack(array['<receipt>']);
"""


@click.command("up", cls=Command, example="trunkline up\ntrunkline up --database-url postgresql:///app")
@click.option("--data", metavar="DIR", help="Data directory of the embedded Postgres.  [default: .trunkline]")
@click.option("--port", metavar="N", help="HTTP port on 127.0.0.1; 0 for a free one.  [default: 8080]")
@compat_port_option
@click.option("--no-http", is_flag=True, help="Do not serve HTTP.")
@click.option("--no-console", is_flag=True, help="Do not serve the web console.")
@click.option("--pg-port", metavar="M", help="Port of the embedded Postgres.  [default: a free one]")
@click.option("--database-url", metavar="URL", help="Server to use instead of the embedded one.")
@click.option("--push-allow", metavar="NETWORK,...", help="Networks that webhooks may reach besides the public internet.")
@click.option("--upkeep-interval", metavar="TIME", help="Interval of upkeep.  [default: 500ms]")
@click.option(
    "--metrics-port", type=Count(1, 65535), help="Additional port on 127.0.0.1 that serves metrics without a token."
)
def command(
    no_http: bool,
    no_console: bool,
    metrics_port: int | None,
    compat_ports: tuple[tuple[str, int], ...],
    **flags: str | None,
) -> None:
    """Start everything in the foreground: Postgres, the schema, upkeep, HTTP and webhooks.

    Installs or upgrades the schema, runs upkeep, serves HTTP on 127.0.0.1 (unless --no-http) and sends webhooks like
    `trunkline dispatch`. HTTP and webhooks need extra packages: pip install 'trunkline[server,push]'. To run jobs, use
    `trunkline worker`.

    Without --database-url, a private Postgres runs in --data, on loopback and with a password. Ctrl-C stops it and
    keeps its data. A second `up` on the same directory shares the server of the first. A --database-url of
    this Postgres, such as the one that `up` prints, also starts it.
    """
    settings = Settings.load(flags)
    warn_about_secrets(flags["database_url"])
    for option, value in (("--metrics-port", metrics_port), ("--compat-port", compat_ports)):
        if no_http and value:
            raise click.UsageError(f"{option} requires the HTTP service: omit --no-http")
    if not _push_installed():
        click.echo("Webhooks are disabled: push is not installed (pip install 'trunkline[push]').", err=True)
    with nullcontext() if no_http else _http_ports(settings, compat_ports) as ports:
        asyncio.run(_up(settings, None if ports is None else ports._replace(metrics=metrics_port, console=not no_console)))


def _http_ports(settings: Settings, compat: tuple[tuple[str, int], ...]) -> AbstractContextManager[Ports | None]:
    """Reserve the HTTP ports. Raise if one is in use, before anything has started."""
    from trunkline.cli.commands import http_child
    from trunkline.cli.framework.ports import reserved_ports

    if not http_child.installed():
        click.echo("HTTP is disabled: the server is not installed (pip install 'trunkline[server]').", err=True)
        return nullcontext()
    return reserved_ports("127.0.0.1", settings.port, compat)


async def _up(settings: Settings, ports: Ports | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    server = embedded_server(settings)
    if settings.database_url is None or server is not None:
        await _up_embedded(settings, server, ports, stop)
        return
    click.echo(f"Using the database of {settings.database_url_source}.")
    await asyncio.to_thread(_check_reachable, settings)
    await _serve(settings, settings.database_url, ports, stop, None)


def _check_reachable(settings: Settings) -> None:
    import psycopg

    assert settings.database_url is not None  # noqa: S101
    with naming(settings.database_url_source):
        psycopg.connect(settings.database_url, connect_timeout=10).close()


async def _up_embedded(settings: Settings, server: EmbeddedServer | None, ports: Ports | None, stop: asyncio.Event) -> None:
    from trunkline.embedded.server import EmbeddedServer

    if server is None:
        if former := former_data(settings):
            click.echo(f"Starting with an empty directory {settings.data}; {former}.")
        server = EmbeddedServer(settings.data, settings.pg_port)
    url = await asyncio.to_thread(server.start)
    try:
        if not server.owned:
            click.echo(f"Using the Postgres of {settings.data}, which is already running.")
        if settings.pg_port not in (None, server.port):
            click.echo(f"It already listens on port {server.port}, not on {settings.pg_port}.")
        if settings.database_url is not None and str(server.port) != _port_of(settings.database_url):
            click.echo(f"It listens on port {server.port}: correct {settings.database_url_source}.")
        await _serve(settings, url, ports, stop, server)
    finally:
        owned = server.owned
        await asyncio.to_thread(server.stop)
    click.echo(f"Postgres stopped; the data stays in {settings.data}." if owned else "Postgres was left running.")


async def _serve(
    settings: Settings, url: str, ports: Ports | None, stop: asyncio.Event, server: EmbeddedServer | None
) -> None:
    from trunkline.cli.commands.http_child import HttpService
    from trunkline.sql.migrate import migrate

    report = await asyncio.to_thread(migrate, url)
    if report.applied:
        migrations = sum(name[0].isdigit() for name in report.applied)
        click.echo(f"Applied {migrations} migrations and {len(report.applied) - migrations} files of functions.")
    http = None if ports is None else HttpService(url, ports)
    try:
        if http is not None:
            await http.start(stop)
        click.echo(f"Schema trunkline is at version {report.version}; upkeep is running.")
        click.echo(_COMMANDS.format(where=_where_commands_run(settings, server)))
        if http is not None:
            if http.console:
                click.echo(f"The console is at {http.url}/console\n")
            click.echo(_HTTP_TOUR.format(url=http.url))
            for name, port in http.compat_ports:
                click.echo(f"The API of {name} is on http://127.0.0.1:{port}.\n")
        click.echo(_how_to_connect(server) if server else "Connect with psql and your database URL.\n")
        click.echo(_TOUR)
        click.echo("Ctrl-C stops.")
        await _keep(settings, url, stop, server, http)
    finally:
        # stop before the database does
        if http is not None:
            await http.stop()


async def _keep(
    settings: Settings, url: str, stop: asyncio.Event, server: EmbeddedServer | None, http: HttpService | None
) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_keep_upkeep(settings, url, stop))
        tasks.create_task(_keep_dispatching(settings, url, stop))
        if server is not None:
            tasks.create_task(_keep_running(server, stop))
        if http is not None:
            tasks.create_task(http.keep(stop))


def _where_commands_run(settings: Settings, server: EmbeddedServer | None) -> str:
    """Return how commands find the same database."""
    if server is None:
        return ", with the same --database-url" if settings.database_url_source == "--database-url" else ""
    flag = f"--data {shlex.quote(str(server.data_dir))}"
    found = server.data_dir == Settings().data.absolute()
    return f", in this directory (elsewhere with {flag})" if found else f", with {flag}"


def _port_of(url: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    return str(conninfo_to_dict(url).get("port"))


def _how_to_connect(server: EmbeddedServer) -> str:
    from trunkline.embedded.install import psql

    program = "psql" if shutil.which("psql") else shlex.quote(str(psql()))
    password = f'PGPASSWORD="$(cat {shlex.quote(str(server.password_file))})"'
    return (
        f"Postgres runs on 127.0.0.1 port {server.port} and in {server.socket_dir}, "
        f"user and database trunkline,\npassword in {server.password_file}, log in {server.log_file}:\n\n"
        f"  {password} {program} -h {server.socket_dir} -p {server.port} -U trunkline trunkline\n\n"
        "This role owns the database but is not a superuser. To create roles, extensions and databases, connect as\n"
        f"trunkline_superuser, password in {server.superuser_password_file}.\n\n"
        "From Python and other programs:\n\n"
        f'  export TRUNKLINE_DATABASE_URL="postgresql://trunkline:$(cat {shlex.quote(str(server.password_file))})'
        f'@127.0.0.1:{server.port}/trunkline"\n'
    )


async def _keep_running(server: EmbeddedServer, stop: asyncio.Event) -> None:
    """Restart the embedded server whenever it is gone (killed, or its owner has left)."""
    pause = 0.5
    while not await _stopped_within(stop, pause):
        if await asyncio.to_thread(server.alive):
            pause = 0.5
            continue
        click.echo("Postgres has stopped; restarting it.", err=True)
        try:
            await asyncio.to_thread(server.start)
            click.echo(f"Postgres is running again on port {server.port}.", err=True)
        except TrunklineError as exc:
            pause = min(pause * 2, _LONGEST_PAUSE)
            click.echo(f"trunkline: {exc} [{exc.code}]; retrying in {pause:.0f} s", err=True)


async def _keep_upkeep(settings: Settings, url: str, stop: asyncio.Event) -> None:
    """Run upkeep until `stop` is set."""
    from trunkline import upkeep

    await upkeep.run(url, settings.upkeep_interval, stop, lambda text: click.echo(f"trunkline: {text}", err=True))


async def _keep_dispatching(settings: Settings, url: str, stop: asyncio.Event) -> None:
    """Send webhooks, if the packages are installed."""
    if _push_installed():
        from trunkline.cli.commands.dispatch import dispatch

        await dispatch(settings, url, stop, await_endpoint=True)


def _push_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("aiohttp", "cryptography"))


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
