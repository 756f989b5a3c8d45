"""Generate docs/reference/cli.md from the commands. `--check` only verifies that the page is up to date."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from trunkline import errors
from trunkline.cli import main
from trunkline.cli.framework import command as commands
from trunkline.cli.framework import input as command_input
from trunkline.cli.framework.command import Command

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
SHARED = ("database_url", "data", "output", "timeout", "quiet")
INTRO = """# Command line

`tools/docs_cli.py` generates this page from the commands.

Commands have the form `trunkline <resource> <command>`. Data goes to stdout, all other output to stderr. Data is
printed as a table on a terminal and as JSON elsewhere; `-o` overrides this. Control characters in messages are
escaped. Destructive commands ask you to type the name on a terminal and require `--yes` elsewhere. `topic read`,
`topic tail` and `queue peek` have no effect on any reader.

All commands that use a database have these options:

| option | meaning |
|---|---|
| `--database-url URL` | database URL; to hide a password, set `TRUNKLINE_DATABASE_URL` or use a `.env` file |
| `--data DIR` | directory of a running `trunkline up` or `trunkline demo` (`TRUNKLINE_DATA`) |
| `-o table\\|json\\|jsonl` | output format: a table, one JSON document, or one JSON object per line |
| `--timeout TIME` | maximum time for the command |
| `-q`, `--quiet` | print only errors to stderr |

`trunkline --url URL <resource> <command>` sends requests to an HTTP service instead, with a token from `--token`
or `TRUNKLINE_TOKEN`. `TRUNKLINE_URL` has the same effect for every command. Output and exit codes are the same.
`token`, `endpoint` and `migrate` are not available over HTTP.

Write durations as `500ms`, `30s`, `5m`, `2h` or `7d`. A position is `earliest`, `latest`, an offset, a timestamp
such as `2026-01-31T12:00:00Z`, or an age such as `1h`. Commands without an end (`topic tail`, `top`, `--watch`)
write one JSON object per line with `-o json` too.

## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 1 | failed, or partly failed (`--continue-on-error`) |
| 2 | wrong usage, or invalid input |
| 3 | not found |
| 4 | conflict with the current state, or permission denied |
| 5 | a check failed (`doctor`, `group lag --max-seconds`), or temporarily unavailable |
| 6 | the database cannot be reached |
| 7 | unknown outcome: retry with the same idempotency key |
| 124 | `--timeout` exceeded |
| 130 | interrupted |
| 141 | stdout was closed by its reader |

An error is one line on stderr with its code in brackets. With `-o json` or `-o jsonl`, the last line of stderr is
`{"error": {"code", "message", "hint", "detail", "exit_code"}}`, and stdout contains no error.

| error | exit code | meaning |
|---|---|---|
"""


def main_page() -> str:
    """Return the page."""
    rows = [f"| `{kind.code}` | {kind.exit_code} | {_first(kind.__doc__)} |" for kind in _errors()]
    context = click.Context(main.app, info_name="trunkline")
    return INTRO + "\n".join(rows) + "\n" + "".join(_command(main.app, context, 2))


def _errors() -> Iterator[type[errors.TrunklineError]]:
    seen = set()
    for module in (errors, command_input, commands):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, errors.TrunklineError) and kind.code not in seen:
                seen.add(kind.code)
                yield kind


def _command(command: click.Command, context: click.Context, depth: int) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            inner = click.Context(child, info_name=name, parent=context)
            if isinstance(child, click.Group):
                yield f"\n## {inner.command_path}\n\n{child.help}\n"
                yield from _command(child, inner, 3)
            else:
                yield f"\n{'#' * depth} {inner.command_path}\n\n" + _leaf(child, inner)
    else:
        yield _leaf(command, context)


def _leaf(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    text = f"{inspect.cleandoc(command.help or '')}\n\n```\n{context.command_path} {usage}\n```\n"
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    if {"output", "timeout"} <= {param.name for param in options}:
        options = [param for param in options if param.name not in SHARED]
    if options:
        text += "\n| option | meaning |\n|---|---|\n" + "".join(_option(param, context) for param in options)
    if isinstance(command, Command) and command.example:
        text += f"\n```sh\n{command.example}\n```\n"
    return text


def _option(param: click.Option, context: click.Context) -> str:
    record = param.get_help_record(context)
    assert record is not None
    return f"| `{record[0].replace('|', chr(92) + '|')}` | {record[1].replace('|', chr(92) + '|')} |\n"


def _first(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


if __name__ == "__main__":
    page = main_page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != page:
            sys.exit(f"{PAGE} is out of date: run tools/docs_cli.py")
    else:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page)
