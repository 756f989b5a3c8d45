"""`trunkline bench`: run the benchmarks of a checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from trunkline.cli.framework.command import Command
from trunkline.errors import NotFound


@click.command(
    "bench",
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
    example="trunkline bench --help",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run the benchmarks. Arguments are passed to `python -m bench`."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "bench" / "__main__.py").exists():
        raise NotFound(
            "the benchmarks are not part of the installed package",
            hint="Clone the repository and run `make bench` there.",
        )
    os.chdir(checkout)
    os.execv(sys.executable, [sys.executable, "-m", "bench", *arguments])  # noqa: S606  our own interpreter  # nosec B606
