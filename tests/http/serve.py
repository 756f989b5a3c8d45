"""`python -m tests.http.serve`: the command `trunkline serve`."""

from trunkline.cli.serve import command

if __name__ == "__main__":
    command()
