"""The `trunkline` command. Data goes to stdout, messages to stderr. An error is one line and an exit code."""

from __future__ import annotations

import importlib
import itertools
import os
import sys

try:
    import click
except ModuleNotFoundError:
    sys.exit("trunkline: the command line is not installed (pip install 'trunkline[cli]')")

import msgspec

from trunkline import __version__
from trunkline.cli.framework.command import CommandGroup
from trunkline.cli.framework.output import ClosedOutput, say
from trunkline.errors import TrunklineError, from_psycopg

# Commands are imported on use: `trunkline --help` must not wait for psycopg.
COMMANDS = {
    "topic": "Manage topics: create, publish, read, tail.",
    "group": "Manage consumer groups: create, lag, seek.",
    "queue": "Manage queues: create, enqueue, peek, claim, settle.",
    "subscription": "Manage subscriptions, which feed queues from topics.",
    "dead": "Manage dead letters: list, group, redrive, purge, export.",
    "run": "Run bulk actions in the database: redrive, retry, purge, replay.",
    "schedule": "Manage schedules, which publish messages at cron times.",
    "job": "Manage jobs: list, retry, cancel, run.",
    "worker": "Run and list job workers.",
    "endpoint": "Manage endpoints, the receivers of webhooks.",
    "message": "Explain or trace a message.",
    "pipeline": "Run Spark pipelines: archive, replay, compact, report, your own.",
    "top": "Show a live overview.",
    "attention": "Show what needs attention.",
    "demo": "Start a private Postgres with sample traffic.",
    "serve": "Serve the HTTP API.",
    "dispatch": "Send webhooks.",
    "token": "Manage tokens of the HTTP API.",  # nosec B105
    "up": "Start everything: a private Postgres, upkeep, HTTP and webhooks.",
    "migrate": "Install or upgrade the schema.",
    "doctor": "Check durability and performance risks.",
    "bench": "Run the benchmarks (needs a checkout).",
    "completion": "Print a shell completion script.",
}
# Modules whose name is not that of the command.
_MODULES = {"dead": "dead_letter"}
INTERRUPTED = 130
CLOSED_PIPE = 141


class _Lazy(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(
            f"trunkline.cli.commands.{_MODULES.get(cmd_name, cmd_name)}"
        ).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Settings come from flags, TRUNKLINE_* variables or a .env file, in this order. "
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 check failed or unavailable, "
    "6 database unreachable, 7 outcome unknown, 124 --timeout exceeded, 130 interrupted, 141 output closed. "
    "TRUNKLINE_DEBUG=1 shows tracebacks.",
)
@click.version_option(__version__, prog_name="trunkline", message="%(prog)s %(version)s")
@click.option("--url", metavar="URL", help="URL of an HTTP service to use instead of a database.")
@click.option("--token", metavar="TOKEN", help="Token for --url. Visible in the process list, unlike TRUNKLINE_TOKEN.")
@click.pass_context
def app(ctx: click.Context, url: str | None, token: str | None) -> None:
    """One Postgres log, every way to consume it."""
    for name, value in (("--url", url), ("--token", token)):
        if value == "":
            raise click.BadParameter("the value must not be empty", ctx, param_hint=f"'{name}'")
    ctx.obj = {"url": url, "token": token}


def main() -> None:
    """Entry point of the installed command."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # escape characters that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code."""
    as_json = _wants_json(arguments)
    try:
        code = app.main(arguments, prog_name="trunkline", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.ClickException as exc:
        return _report_usage(exc, as_json)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", "interrupted", INTERRUPTED, as_json)
    except (BrokenPipeError, ClosedOutput):
        # The reader (head, less) has gone. Avoid Python's second error, from the flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except Exception as exc:
        return _report(exc, as_json)
    return code if isinstance(code, int) else 0


def _wants_json(arguments: list[str]) -> bool:
    """Detect -o json in the raw arguments, since errors may occur before they are parsed."""
    joined = [f"{first}={second}" for first, second in itertools.pairwise(arguments)]
    known = ("-o=json", "-ojson", "--output=json")
    return any(text.startswith(known) for text in (*arguments, *joined))


def _report_usage(exc: click.ClickException, as_json: bool) -> int:
    text = exc.format_message()
    ctx = exc.ctx if isinstance(exc, click.UsageError) else None
    if not as_json and ctx is not None and text == ctx.get_help():
        click.echo(text, err=True)  # no arguments: print help, but exit with an error
        return exc.exit_code
    if not as_json and ctx is not None:
        say(f"{ctx.get_usage()}\nTry '{ctx.command_path} --help' for help.\n")
    return _fail(text, "usage" if exc.exit_code == 2 else "error", exc.exit_code, as_json)


def _report(exc: Exception, as_json: bool) -> int:
    if os.environ.get("TRUNKLINE_DEBUG", "0") not in ("", "0"):
        raise exc
    while isinstance(exc, ExceptionGroup):  # the first failure of a task group is the cause of the others
        exc = exc.exceptions[0]
    error = exc if isinstance(exc, TrunklineError) else None
    if error is None and type(exc).__module__.partition(".")[0] in ("psycopg", "psycopg_pool"):
        error = from_psycopg(exc)
    if error is None:
        words = f"unexpected {type(exc).__name__}: {exc}"
        return _fail(words, "error", 1, as_json, hint="Set TRUNKLINE_DEBUG=1 for a traceback.")
    return _fail(error.message, error.code, error.exit_code, as_json, hint=error.hint_in("command"), detail=error.detail)


def _fail(
    message: str, code: str, exit_code: int, as_json: bool, *, hint: str | None = None, detail: str | None = None
) -> int:
    message = " ".join(message.split())
    if as_json:
        error = {"code": code, "message": message, "hint": hint, "detail": detail, "exit_code": exit_code}
        click.echo(msgspec.json.encode({"error": error}), err=True)
        return exit_code
    if detail:
        say(detail)
    say(f"trunkline: {message}{f' ({hint})' if hint else ''} [{code}]")
    return exit_code


if __name__ == "__main__":
    main()
