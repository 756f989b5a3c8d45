"""`python -m trunkline`: the command."""

from trunkline.cli.main import main

if __name__ == "__main__":
    main()
