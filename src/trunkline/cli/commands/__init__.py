"""One module per command group of `trunkline`."""
