"""The `trunkline` command, one file per subcommand."""
