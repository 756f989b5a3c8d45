"""`trunkline endpoint`: manage endpoints, the receivers of webhooks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import click

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CHECK_FAILED, CommandGroup, Count, Duration, Invocation, stacked
from trunkline.cli.framework.input import parse_headers
from trunkline.cli.framework.output import Column
from trunkline.cli.framework.positions import Moment
from trunkline.errors import InUse, Timeout

command = CommandGroup("endpoint", help="Manage endpoints, the receivers of webhooks.")

_ENDPOINTS = (
    Column("endpoint", "name", whole=True),
    Column("url", "url"),
    Column("state", "state"),
    Column("reason", "reason"),
    Column("rate", "rate"),
    Column("burst", "burst"),
    Column("breaker", "breaker"),
    Column("queues", lambda row: ", ".join(row.queues)),
)
_ATTEMPTS = (
    Column("started", "started_at", whole=True),
    Column("endpoint", "endpoint", whole=True),
    Column("queue", "queue"),
    Column("id", "id", whole=True),
    Column("attempt", "attempt"),
    Column("status", "status"),
    Column("seconds", lambda row: round(row.seconds, 3)),
    Column("outcome", "outcome"),
    Column("error", "error"),
)
_settings = stacked(
    click.option(
        "--rate",
        type=click.FloatRange(0, 100_000),
        help="Requests per second across all dispatchers, 0.001 to 100,000; 0: no limit.",
    ),
    click.option(
        "--burst",
        type=Count(1, 100_000),
        help="Extra requests above the rate.  [default: a tenth of the rate, at least 2]",
    ),
    click.option("--max-in-flight", type=Count(1, 1000), help="Maximum concurrent requests.  [default: 50]"),
    click.option("--request-timeout", type=Duration(), help="Time limit of a request.  [default: 15s]"),
    click.option(
        "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Extra request header; may be repeated."
    ),
    click.option(
        "--mode", type=click.Choice(["single", "batch"]), help="One message per request, or a JSON array of messages."
    ),
    click.option("--batch-size", type=Count(1, 1000), help="Maximum messages per batch.  [default: 100]"),
)


def _chosen(headers: tuple[str, ...], request_timeout: timedelta | None, settings: dict[str, Any]) -> dict[str, Any]:
    texts = {name: str(value) for name, value in (parse_headers(headers) or {}).items()}
    return settings | {"timeout": request_timeout, "headers": texts or None}


def _say_needs(invocation: Invocation, name: str, network: str | None) -> None:
    """Warn about an address that needs --push-allow: otherwise nothing would be sent, without an obvious reason."""
    if network is not None:
        invocation.say(
            f"endpoint {name} is in {network}: it needs a dispatcher with --push-allow {network}"
            f" (or TRUNKLINE_PUSH_ALLOW={network}); `trunkline up` takes the same flag"
        )


@command.subcommand("list", example="trunkline endpoint list")
def list_(invocation: Invocation) -> None:
    """List endpoints with their state."""
    invocation.out.many(invocation.run_on_database(lambda mq: mq.endpoints.list()), _ENDPOINTS)


@command.subcommand("show", example="trunkline endpoint show hooks")
@click.argument("name")
def show(invocation: Invocation, name: str) -> None:
    """Show an endpoint, without header values and secrets."""
    invocation.out.one(invocation.run_on_database(lambda mq: mq.endpoints.get(name)))


@command.subcommand("create", example="trunkline endpoint create hooks https://example.com/hooks --rate 100")
@click.argument("name")
@click.argument("url")
@_settings
@click.option("--ed25519", is_flag=True, help="Sign with a new Ed25519 key, and print its public key.")
def create(
    invocation: Invocation,
    name: str,
    url: str,
    headers: tuple[str, ...],
    request_timeout: timedelta | None,
    ed25519: bool,
    **settings: Any,
) -> None:
    """Create an endpoint. Prints the secret that signs its deliveries."""
    secret, shown = _key(ed25519)
    chosen = _chosen(headers, request_timeout, settings)
    if chosen["rate"] == 0:
        chosen["rate"] = None
    made = invocation.run_on_database(lambda mq: mq.endpoints.create(name, url, secret=secret, **chosen))
    invocation.out.one({"name": made.name, "secret": made.secret, **shown})
    _say_needs(invocation, name, made.needs_allow)


def _key(ed25519: bool) -> tuple[str | None, dict[str, str]]:
    if not ed25519:
        return None, {}
    from trunkline.push.signing import new_private_key, public_key

    private = new_private_key()
    return private, {"public_key": public_key(private)}


@command.subcommand("alter", example="trunkline endpoint alter hooks --rate 50 --burst 10")
@click.argument("name")
@click.option("--url", help="Address of the receiver.")
@_settings
def alter(
    invocation: Invocation, name: str, headers: tuple[str, ...], request_timeout: timedelta | None, **settings: Any
) -> None:
    """Change endpoint settings. New headers replace all existing ones."""
    chosen = _chosen(headers, request_timeout, settings)
    if all(value is None for value in chosen.values()):
        raise click.UsageError(
            "nothing to change: specify --url, --rate, --burst, --max-in-flight, --request-timeout, --header, --mode"
            " or --batch-size"
        )
    changed = invocation.run_on_database(lambda mq: mq.endpoints.alter(name, **chosen))
    invocation.out.one(changed)
    if chosen["url"] is not None:
        _say_needs(invocation, name, changed.needs_allow)


@command.subcommand("bind", example="trunkline endpoint bind mail hooks")
@click.argument("queue")
@click.argument("endpoint")
def bind(invocation: Invocation, queue: str, endpoint: str) -> None:
    """Send a queue's messages to an endpoint."""
    invocation.run_on_database(lambda mq: mq.endpoints.bind(queue, endpoint))
    invocation.say(f"queue {queue} is bound to endpoint {endpoint}")


@command.subcommand("unbind", example="trunkline endpoint unbind mail")
@click.argument("queue")
def unbind(invocation: Invocation, queue: str) -> None:
    """Stop sending a queue's messages. The messages remain in the queue."""
    invocation.run_on_database(lambda mq: mq.endpoints.unbind(queue))
    invocation.say(f"queue {queue} is no longer bound to an endpoint")


@command.subcommand("pause", example="trunkline endpoint pause hooks --reason maintenance")
@click.argument("name")
@click.option("--reason", help="Reason to show in `endpoint list`.")
def pause(invocation: Invocation, name: str, reason: str | None) -> None:
    """Pause an endpoint."""
    invocation.run_on_database(lambda mq: mq.endpoints.pause(name, reason=reason))
    invocation.say(f"endpoint {name} is paused")


@command.subcommand("resume", example="trunkline endpoint resume hooks")
@click.argument("name")
def resume(invocation: Invocation, name: str) -> None:
    """Resume sending after a pause, a 410 response or an open circuit breaker."""
    invocation.run_on_database(lambda mq: mq.endpoints.resume(name))
    invocation.say(f"endpoint {name} is enabled")


@command.subcommand("test", example="trunkline endpoint test hooks --wait 30s")
@click.argument("name")
@click.option(
    "--wait", type=Duration(), default="30s", show_default=True, help="Time limit for a dispatcher and the response."
)
def test(invocation: Invocation, name: str, wait: timedelta) -> int:
    """Send a test request through a dispatcher and show its outcome. Exits with 5 unless the response is 2xx."""
    attempt = invocation.run_on_database(lambda mq: mq.endpoints.test(name, timeout=wait))
    if attempt is None:
        raise Timeout("no dispatcher sent the test in time", hint="Start one with `trunkline dispatch`, or increase --wait.")
    invocation.out.one(attempt)
    good = attempt.status is not None and 200 <= attempt.status < 300
    if not good:
        invocation.say(f"endpoint {name} did not accept the test: {attempt.error or attempt.status}")
    return 0 if good else CHECK_FAILED


@command.subcommand("attempts", example="trunkline endpoint attempts hooks --since 1h -n 20")
@click.argument("name", required=False)
@click.option("--id", "id", type=click.UUID, help="Only attempts of this message.")
@click.option("--since", type=Duration(), default="1d", show_default=True, help="Age limit.")
@click.option("-n", "--limit", type=Count(1, 10_000), default=100, show_default=True, help="Maximum number of attempts.")
def attempts(invocation: Invocation, name: str | None, id: UUID | None, since: timedelta, limit: int) -> None:
    """List requests, newest first, with status, time and outcome."""
    invocation.out.many(
        invocation.run_on_database(lambda mq: mq.endpoints.attempts(name, id=id, since=since, limit=limit)), _ATTEMPTS
    )


@command.subcommand("rotate", example="trunkline endpoint rotate hooks")
@click.argument("name")
@click.option("--ed25519", is_flag=True, help="Rotate to a new Ed25519 key, and print its public key.")
@click.option("--drop-old", is_flag=True, help="Stop signing with the previous secret now.")
def rotate(invocation: Invocation, name: str, ed25519: bool, drop_old: bool) -> None:
    """Create a new secret. The previous one also signs until the next rotation."""
    secret, shown = _key(ed25519)
    made = invocation.run_on_database(lambda mq: mq.endpoints.rotate(name, secret=secret, keep=not drop_old))
    invocation.out.one({"name": name, "secret": made, **shown})


@command.subcommand("secrets", example="trunkline endpoint secrets hooks")
@click.argument("name")
def secrets(invocation: Invocation, name: str) -> None:
    """Print the active secrets, newest first."""
    invocation.out.one({"name": name, "secrets": invocation.run_on_database(lambda mq: mq.endpoints.secrets(name))})


@command.subcommand("replay", example="trunkline endpoint replay mail --from 2h --dry-run")
@click.argument("queue")
@click.option("--id", "ids", type=click.UUID, multiple=True, help="Message to replay; may be repeated.")
@click.option("--from", "start", type=Moment(), help="Start of the range: a time (2026-01-31T12:00:00Z) or an age (2h).")
@click.option("--to", "end", type=Moment(), help="End of the range: a time or an age.  [default: now]")
@click.option(
    "-n",
    "--limit",
    type=Count(1, 10_000),
    default=1000,
    show_default=True,
    help="Maximum number of messages; fails if there are more.",
)
@confirm.dry_run()
def replay(
    invocation: Invocation,
    queue: str,
    ids: tuple[UUID, ...],
    start: datetime | None,
    end: datetime | None,
    limit: int,
    dry_run: bool,
) -> None:
    """Deliver messages again that were already delivered, by id or by time range."""
    if not ids and start is None:
        raise click.UsageError("specify --id, or --from with a time or an age, such as --from 2h")
    if start is not None and end is not None and end <= start:
        raise click.UsageError("--to must be later than --from")
    if dry_run:
        invocation.run_on_database(lambda mq: mq.queues.get(queue))
        invocation.say(f"would deliver {len(ids)} messages again" if ids else f"would deliver messages since {start} again")
        return

    count = invocation.run_on_database(
        lambda mq: mq.endpoints.replay(queue, ids=ids or None, start=start, end=end, limit=limit)
    )
    invocation.out.one({"queue": queue, "replayed": count})


@command.subcommand("delete", example="trunkline endpoint delete hooks --yes")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete even if queues are bound to it.")
@confirm.dry_run()
@confirm.yes()
def delete(invocation: Invocation, name: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Delete an endpoint. Its queues remain."""
    found = invocation.run_on_database(lambda mq: mq.endpoints.get(name))
    if found.queues and not force:
        bound = ", ".join(found.queues)
        raise InUse(f"queues are bound to endpoint {name}: {bound}", hint="Unbind them first, or add --force.")
    what = f"delete endpoint {name}"
    if dry_run:
        invocation.say(f"would {what}")
        return
    confirm.confirm(what, name, confirmed=yes)
    invocation.run_on_database(lambda mq: mq.endpoints.delete(name, force=force))
    invocation.say(f"deleted endpoint {name}")
