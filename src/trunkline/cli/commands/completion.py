"""`trunkline completion`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from trunkline.cli.framework.command import Command
from trunkline.cli.framework.output import write_line


@click.command(
    "completion",
    cls=Command,
    example="trunkline completion bash > ~/.local/share/bash-completion/completions/trunkline\n"
    "trunkline completion zsh > ~/.zfunc/_trunkline\n"
    "trunkline completion fish > ~/.config/fish/completions/trunkline.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"completion is not available for {shell}")
    script = found(ctx.find_root().command, {}, "trunkline", "_TRUNKLINE_COMPLETE")
    # not source(): it runs the shell to learn its version, but the shell need not be installed here
    write_line(script.source_template % script.source_vars())
