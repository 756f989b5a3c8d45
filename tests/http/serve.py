"""`python -m tests.http.serve`: the command `trunkline serve`."""

from trunkline.cli.commands.serve import command

if __name__ == "__main__":
    command()
