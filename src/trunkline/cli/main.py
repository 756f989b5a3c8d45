"""The `trunkline` command. Data goes to stdout, words to stderr; an error is one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys

try:
    import click
except ModuleNotFoundError:
    sys.exit("trunkline: the command line is not installed (pip install 'trunkline[cli]')")

from trunkline import __version__
from trunkline.errors import TrunklineError, from_psycopg

# Imported when used: `trunkline --help` should not wait for psycopg.
_COMMANDS = {
    "up": "Start everything: a private Postgres, the schema and upkeep.",
    "migrate": "Install the schema, or bring it up to date.",
    "doctor": "Look for what endangers durability or speed.",
    "bench": "Measure, next to other ways to do the same (needs a checkout).",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"trunkline.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Settings come from flags, TRUNKLINE_* variables or a .env file, in this order. "
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 not healthy, "
    "6 database unreachable, 7 outcome unknown. TRUNKLINE_DEBUG=1 shows tracebacks.",
)
@click.version_option(__version__, prog_name="trunkline", message="%(prog)s %(version)s")
def app() -> None:
    """One Postgres log, every way to consume it."""


def main() -> None:
    """Entry point of the installed command."""
    try:
        code = app.main(prog_name="trunkline", standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        code = exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        # The reader (head, less) is gone. Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as exc:
        code = _report(exc)
    sys.exit(code if isinstance(code, int) else 0)


def _report(exc: Exception) -> int:
    if os.environ.get("TRUNKLINE_DEBUG", "0") not in ("", "0"):
        raise exc
    while isinstance(exc, ExceptionGroup):  # the first failure of a task group is the cause of the others
        exc = exc.exceptions[0]
    error = exc if isinstance(exc, TrunklineError) else None
    if error is None and type(exc).__module__.partition(".")[0] in ("psycopg", "psycopg_pool"):
        error = from_psycopg(exc)
    if error is None:
        click.echo(f"trunkline: unexpected {type(exc).__name__}: {exc} (TRUNKLINE_DEBUG=1 shows where)", err=True)
        return 1
    if error.detail:
        click.echo(error.detail, err=True)
    click.echo(f"trunkline: {' '.join(str(error).split())} [{error.code}]", err=True)
    return error.exit_code
