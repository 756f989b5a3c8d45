"""The pipelines. Each is a function and a command of `trunkline pipeline`."""
