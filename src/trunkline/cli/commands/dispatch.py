"""`trunkline dispatch`: send webhooks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trunkline.cli.framework.command import Command, Count, needs_database
from trunkline.cli.framework.output import say
from trunkline.errors import SettingsError, TrunklineError, from_psycopg
from trunkline.settings import Settings

if TYPE_CHECKING:
    from trunkline.push.dispatcher import Dispatcher

_LONGEST_PAUSE = 30.0
_ENDPOINT_SECONDS = 0.9


@click.command("dispatch", cls=Command, example="trunkline dispatch\ntrunkline dispatch --push-allow 10.20.0.0/16")
@click.option("--database-url", metavar="URL", help="Connection URL.  [default: the embedded server of --data]")
@click.option("--data", metavar="DIR", help="Data directory of a running `trunkline up`.")
@click.option(
    "--push-allow", metavar="NETWORK,...", help="Networks to allow besides the public internet, such as 10.1.0.0/16."
)
@click.option(
    "--max-connections", type=Count(2, 1000), default=10, show_default=True, help="Number of database connections."
)
def command(database_url: str | None, data: str | None, push_allow: str | None, max_connections: int) -> None:
    """Send messages of bound queues to their endpoints.

    Runs in the foreground. Ctrl-C or SIGTERM stops it after the requests in flight. Several dispatchers can run; they
    share the endpoints' rates and limits. Private, loopback and other special addresses are denied unless --push-allow
    lists their network.
    """
    from trunkline.cli.framework.database import conninfo, probe

    if (click.get_current_context().find_root().obj or {}).get("url"):
        raise needs_database()
    settings = Settings.load({"database_url": database_url, "data": data, "push_allow": push_allow})
    url = conninfo(settings)

    async def run() -> None:
        await probe(url, settings.database_url_source)
        stop = asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        say(_greeting(url, settings.push_allow))
        await dispatch(settings, url, stop, max_connections=max_connections)

    asyncio.run(run())


def _greeting(url: str, allow: Sequence[str]) -> str:
    from psycopg.conninfo import conninfo_to_dict

    database = conninfo_to_dict(url).get("dbname") or "the default"
    where = (
        f"the public internet and {', '.join(allow)}" if allow else "the public internet (add networks with --push-allow)"
    )
    return f"Sending webhooks from database {database} to {where}. Ctrl-C stops after the requests in flight."


async def dispatch(
    settings: Settings, url: str, stop: asyncio.Event, *, max_connections: int = 10, await_endpoint: bool = False
) -> None:
    """Dispatch until `stop` is set. Report errors and retry.

    With `await_endpoint`, the dispatcher is loaded once an endpoint exists, which saves its memory until then.
    """
    import psycopg

    pause = 0.5
    while not stop.is_set():
        try:
            if await_endpoint and not await _endpoint_exists(url, stop):
                return
            await _dispatcher()(url, allow=settings.push_allow, max_connections=max_connections).run(stop)
        except SettingsError:
            raise
        except (TrunklineError, psycopg.Error) as exc:
            error = from_psycopg(exc)
            say(f"trunkline: dispatch: {error} [{error.code}]; retrying in {pause:.1f} s")
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                pause = min(pause * 2, _LONGEST_PAUSE)


def _dispatcher() -> type[Dispatcher]:
    try:
        from trunkline.push.dispatcher import Dispatcher
    except ModuleNotFoundError as exc:
        raise SettingsError("push is not installed", hint="pip install 'trunkline[push]'") from exc
    return Dispatcher


async def _endpoint_exists(url: str, stop: asyncio.Event) -> bool:
    """Wait until an endpoint exists. Return False if `stop` was set before."""
    from trunkline.db.calls import push
    from trunkline.db.pool import connect

    async with await connect(url) as conn:
        while not stop.is_set():
            if await push.any_endpoint(conn):
                return True
            try:
                await asyncio.wait_for(stop.wait(), _ENDPOINT_SECONDS)
            except TimeoutError:
                continue
    return False
