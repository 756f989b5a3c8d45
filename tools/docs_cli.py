"""Writes docs/reference/cli.md from the commands themselves. `--check`: only says whether the page is up to date."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from trunkline import errors
from trunkline.cli import command as commands
from trunkline.cli import main, payloads
from trunkline.cli.command import Command

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
SHARED = ("database_url", "data", "output", "timeout", "quiet")
INTRO = """# Command line

This page is made from the commands by `tools/docs_cli.py`.

`trunkline <noun> <verb>`. Data goes to stdout, words go to stderr. On a terminal data is a table, elsewhere JSON; `-o`
chooses. Control characters in messages are shown as escapes. Nothing destructive happens without a terminal unless `--yes`
is given; on a terminal you type the name. `topic read`, `topic tail` and `queue peek` never change anything for any reader.

Every command that talks to a database has these options:

| option | meaning |
|---|---|
| `--database-url URL` | the database; with a password better in `TRUNKLINE_DATABASE_URL` or a `.env` file |
| `--data DIR` | or the directory of a running `trunkline up` or `trunkline demo` (`TRUNKLINE_DATA`) |
| `-o table\\|json\\|jsonl` | a table, one JSON document, or one JSON object per line |
| `--timeout TIME` | give up after this time |
| `-q`, `--quiet` | no words on stderr, only errors |

`trunkline --url URL <noun> <verb>` speaks HTTP to a service instead, with a token from `--token` or `TRUNKLINE_TOKEN`;
`TRUNKLINE_URL` does the same for every command. Answers and exit codes are the same. `queue purge`, `queue cleanup`,
`token`, `doctor` and `migrate` have no HTTP form.

Times are `500ms`, `30s`, `5m`, `2h` or `7d`. A place in a log is `earliest`, `latest`, an offset, a time such as
`2026-01-31T12:00:00Z`, or an age such as `1h`. What does not end (`topic tail`, `top`, `--watch`) is
written as lines with `-o json` too.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | failed, or done in part (`--continue-on-error`) |
| 2 | wrong usage, or input that is refused |
| 3 | not found |
| 4 | conflict with the present state, or not permitted |
| 5 | a check failed (`doctor`, `group lag --max-seconds`), or not available now |
| 6 | the database cannot be reached |
| 7 | the outcome is unknown: repeat with the same idempotency key |
| 124 | `--timeout` passed |
| 130 | interrupted |
| 141 | whoever read the output has gone |

An error is one line on stderr with its code in brackets. With `-o json` or `-o jsonl` the last line of stderr is
`{"error": {"code", "message", "hint", "detail", "exit_code"}}` and stdout holds no error.

| error | exit code | meaning |
|---|---|---|
"""


def main_page() -> str:
    """The whole page."""
    rows = [f"| `{kind.code}` | {kind.exit_code} | {_first(kind.__doc__)} |" for kind in _errors()]
    context = click.Context(main.app, info_name="trunkline")
    return INTRO + "\n".join(rows) + "\n" + "".join(_command(main.app, context, 2))


def _errors() -> Iterator[type[errors.TrunklineError]]:
    seen = set()
    for module in (errors, payloads, commands):
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
