"""`trunkline demo`: a private Postgres with sample topics, queues and traffic."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import click

from trunkline.cli.framework.command import Command
from trunkline.cli.framework.output import say, write_line

_UPKEEP = timedelta(milliseconds=200)
_LOOK = """
Explore it from another terminal:

  export TRUNKLINE_DATA={data}
  trunkline top
  trunkline topic tail orders
  trunkline group lag
  trunkline queue list
  trunkline dead list mail
  trunkline message trace {message}
  trunkline doctor
  trunkline serve         # the console: http://localhost:8080/
"""


@click.command("demo", cls=Command, example="trunkline demo\ntrunkline demo --data ./demo --seconds 60")
@click.option("--data", metavar="DIR", help="Directory to keep the data.  [default: a temporary one, removed at the end]")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Time limit of the demo in seconds.")
@click.option("--once", is_flag=True, help="Stop after one round of traffic.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(data: str | None, seconds: float | None, once: bool, quiet: bool) -> None:
    """Run a private Postgres with sample topics, queues and traffic until Ctrl-C.

    Messages are published, delayed, acked, nacked and buried. A worker crashes with its leases. A group lags behind.
    Webhooks go to receivers of which one fails, so that its circuit breaker opens.
    """
    if data is not None:
        asyncio.run(_demo(Path(data), seconds, once, quiet))
        return
    home = Path(tempfile.mkdtemp(prefix="trunkline-demo-"))
    try:
        # the server may run under another account, which needs access
        home.chmod(0o755)
        asyncio.run(_demo(home / "data", seconds, once, quiet))
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def _demo(data: Path, seconds: float | None, once: bool, quiet: bool) -> None:
    from trunkline.embedded.server import EmbeddedServer
    from trunkline.sql.migrate import migrate

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    server = EmbeddedServer(data)
    if not quiet:
        say(f"Starting Postgres in {data} ...")
    url = await asyncio.to_thread(server.start)
    try:
        await asyncio.to_thread(migrate, url)
        await _traffic(url, data, stop, once, quiet)
    finally:
        await asyncio.to_thread(server.stop)
    if not quiet:
        say("Stopped.")


async def _traffic(url: str, data: Path, stop: asyncio.Event, once: bool, quiet: bool) -> None:
    from trunkline import Client, upkeep
    from trunkline.cli.commands.demo_push import Pipelines, Webhooks
    from trunkline.cli.commands.demo_traffic import Traffic

    async with Client(url) as mq:
        traffic = Traffic(mq)
        await traffic.prepare()
        webhooks, pipelines = Webhooks(mq, url), Pipelines(mq, url)
        keeper = asyncio.create_task(upkeep.run(url, _UPKEEP, stop))
        try:
            await webhooks.start()
            await pipelines.start()
            await traffic.round()
            await pipelines.round()
            if not quiet:
                write_line(_LOOK.format(data=shlex.quote(str(data.resolve())), message=traffic.failed_id))
                say("One round is done." if once else "Traffic is running. Ctrl-C stops it.")
            while not (once or stop.is_set() or keeper.done()):
                await traffic.round()
                await pipelines.round()
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.5)
        finally:
            stop.set()
            await webhooks.close()
            await keeper
