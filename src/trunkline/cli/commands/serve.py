"""`trunkline serve`: the HTTP API on an existing database."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import click

from trunkline.cli.framework.command import Command, Count
from trunkline.cli.framework.output import say
from trunkline.cli.framework.ports import compat_port_option
from trunkline.errors import SettingsError
from trunkline.settings import Settings


@click.command("serve", cls=Command, example="trunkline serve --port 8080")
@click.option("--database-url", metavar="URL", help="Connection URL.  [default: the embedded server of --data]")
@click.option("--data", metavar="DIR", help="Data directory of a running `trunkline up`.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any other than loopback requires tokens."
)
@click.option("--port", metavar="N", help="HTTP port; 0 for a free one.  [default: 8080]")
@compat_port_option
@click.option("--workers", type=Count(1, 64), default=1, show_default=True, help="Number of server processes per port.")
@click.option(
    "--max-connections",
    type=Count(2, 1000),
    default=10,
    show_default=True,
    help="Database connections per process.",
)
@click.option(
    "--upkeep/--no-upkeep",
    default=True,
    help="Run upkeep; one process is active at a time.",
)
@click.option(
    "--require-token/--no-require-token",
    default=None,
    help="Reject requests without a token.  [default: once a token exists]",
)
@click.option("--rate", type=click.FloatRange(min=0.1), help="Maximum requests per second, per token and process.")
@click.option(
    "--metrics-port", type=Count(1, 65535), help="Additional port on 127.0.0.1 that serves metrics without a token."
)
@click.option("--max-pull", type=Count(1, 1000), default=10, help="Maximum messages of a pull by psqlqueue's API.")
@click.option(
    "--max-publishing", type=Count(1, 100_000), default=2000, help="Maximum concurrent publishes; more are rejected."
)
@click.option(
    "--max-wait",
    type=click.FloatRange(0, 30),
    default=30,
    help="Maximum time in seconds that a request may wait for messages.",
)
@click.option("--console/--no-console", default=True, help="Serve the web console at /console.")
@click.option(
    "--console-url",
    metavar="URL",
    help="Address of the server as browsers see it behind a proxy, or only its path, such as /queue.",
)
@click.option("--access-log", is_flag=True, help="Log each request.")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate file.")
@click.option("--parent", type=Count(1), hidden=True, help="Process to end with.")
@click.option("--in-process", is_flag=True, hidden=True, help="Run the only worker in this process.")
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Private key file of the certificate."
)
def command(
    database_url: str | None,
    data: str | None,
    host: str,
    port: str | None,
    compat_ports: tuple[tuple[str, int], ...],
    workers: int,
    max_connections: int,
    upkeep: bool,
    require_token: bool | None,
    rate: float | None,
    max_wait: float,
    metrics_port: int | None,
    max_pull: int,
    max_publishing: int,
    console: bool,
    console_url: str | None,
    access_log: bool,
    parent: int | None,
    in_process: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Serve the HTTP API.

    Clients of psqlqueue, postgres-backed-pubsub-queue and pg-messaging are served below /compat/NAME, and at the root of
    the ports in --compat-port.

    Runs in the foreground. Ctrl-C or SIGTERM stops it after the requests in flight. Logs are JSON lines on stdout.
    """
    try:
        from trunkline.server.run import serve
    except ModuleNotFoundError as exc:
        raise SettingsError("the HTTP server is not installed", hint="pip install 'trunkline[server]'") from exc
    from trunkline.cli.framework.database import conninfo
    from trunkline.cli.framework.ports import reserved_ports
    from trunkline.server.config import Config
    from trunkline.server.listen import check_address
    from trunkline.server.parent_death import end_with

    if parent is not None:
        end_with(parent)
    if (tls_cert is None) != (tls_key is None):
        raise SettingsError("--tls-cert requires --tls-key and vice versa", hint="Specify both or neither.")
    if console_url is not None and not re.fullmatch(r"(https?://[^/?#\s]+)?(/[^?#\s]*)?", console_url):
        raise SettingsError(
            f"--console-url must be a URL or a path, got {console_url!r}", hint="Write https://ops.example/queue."
        )
    settings = Settings.load({"database_url": database_url, "data": data, "port": port})
    url = conninfo(settings)
    tokens = require_token
    if tokens is None:
        # None: required once a token exists
        tokens = asyncio.run(_has_tokens(url, settings.database_url_source)) or None
    # check before binding the port
    check_address(host, tokens=bool(tokens))
    with reserved_ports(host, settings.port, compat_ports) as ports:
        if settings.port == 0:
            say(f"Serving http://{host}:{ports.http}")
        # Not in a log: its lines are JSON.
        if console and sys.stderr.isatty():
            scheme = "http" if tls_cert is None else "https"
            say(f"The console is at {console_address(console_url, f'{scheme}://{host}:{ports.http}')}")
        for name, number in ports.compat:
            say(f"Serving the API of {name} on http://{host}:{number}")
        serve(
            Config(
                database_url=url,
                host=host,
                port=ports.http,
                compat_ports=dict(ports.compat),
                workers=workers,
                max_connections=max_connections,
                upkeep_seconds=settings.upkeep_interval.total_seconds() if upkeep else None,
                require_token=tokens,
                rate=rate,
                max_wait=max_wait,
                metrics_port=metrics_port,
                max_pull=max_pull,
                max_publishing=max_publishing,
                console=console,
                console_url=console_url,
                access_log=access_log,
            ),
            tls_cert=tls_cert,
            tls_key=tls_key,
            in_process=in_process,
        )


def console_address(public: str | None, own: str) -> str:
    """Return the address of the console as a person types it."""
    if public is None:
        return f"{own}/console"
    return f"{public.rstrip('/')}/console" if "://" in public else f"{own}{public.rstrip('/')}/console"


async def _has_tokens(url: str, source: str | None) -> bool:
    from trunkline.cli.framework.database import probe
    from trunkline.db.calls import tokens
    from trunkline.db.pool import connect

    # report database problems before any worker starts
    await probe(url, source)
    conn = await connect(url)
    try:
        return bool(await tokens.list_tokens(conn))
    finally:
        await conn.close()
