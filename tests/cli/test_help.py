"""Help, examples, completion and the reference page."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Cli
from trunkline.cli.framework.command import Command
from trunkline.cli.main import app

ROOT = Path(__file__).parents[2]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from leaves(child, (*path, name))
    else:
        assert isinstance(command, Command), f"{path} is not one of ours"
        yield path, command


LEAVES = dict(leaves(app))
DESTRUCTIVE = {
    ("topic", "delete"),
    ("group", "delete"),
    ("group", "seek"),
    ("queue", "purge"),
    ("queue", "delete"),
    ("subscription", "remove"),
    ("dead", "purge"),
    ("schedule", "delete"),
    ("endpoint", "delete"),
}
BULK = {("dead", "redrive"), ("topic", "publish"), ("queue", "enqueue")}


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_verb_has_help_with_an_example_that_parses(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    assert command.help
    assert command.example.startswith(f"trunkline {' '.join(path)}")
    if path != ("bench",):
        assert "Example:" in command.get_help(click.Context(command, info_name=path[-1]))
    for line in command.example.splitlines():
        words = shlex.split(line.split(" > ")[0].split(" || ")[0])
        for start in (place for place, word in enumerate(words) if word == "trunkline"):
            end = words.index("|", start) if "|" in words[start:] else len(words)
            arguments = words[start + 1 : end]
            known = next(known for known in LEAVES if tuple(arguments[: len(known)]) == known)
            LEAVES[known].make_context(known[-1], arguments[len(known) :])


def test_the_number_of_rows_to_show_is_called_limit() -> None:
    limited = {
        path for path, command in LEAVES.items() if "--limit" in [name for each in command.params for name in each.opts]
    }
    assert {("queue", "peek"), ("queue", "claim"), ("topic", "read"), ("dead", "list"), ("job", "list")} <= limited
    assert ("endpoint", "attempts") in limited


@pytest.mark.parametrize("path", sorted(DESTRUCTIVE | BULK), ids=" ".join)
def test_what_destroys_asks_and_can_be_tried(path: tuple[str, ...]) -> None:
    names = {param.name for param in LEAVES[path].params}
    assert "dry_run" in names
    assert ("yes" in names) == (path in DESTRUCTIVE)


def test_no_other_verb_sounds_destructive() -> None:
    words = {"delete", "purge", "remove", "drop", "seek", "truncate"}
    assert {path for path in LEAVES if path[-1] in words} == DESTRUCTIVE


def test_help_is_quick_and_needs_no_database(cli: Cli) -> None:
    assert "One Postgres log" in cli.process("--help").stdout
    assert cli.process("--version").stdout.startswith("trunkline ")
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, trunkline.cli.main; print({'asyncio', 'psycopg', 'rich'} & set(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).stdout
    assert "_TRUNKLINE_COMPLETE" in script
    if shell == "bash" and shutil.which("bash"):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    words = {"COMP_WORDS": "trunkline topic pu", "COMP_CWORD": "2" if shell != "fish" else "pu"}
    answer = cli.process(env={"_TRUNKLINE_COMPLETE": f"{shell}_complete", **words})
    assert "publish" in answer.stdout
    cli("completion", "tcsh", code=2)


def test_the_reference_page_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, ROOT / "tools" / "docs_cli.py", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
