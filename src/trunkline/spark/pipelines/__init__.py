"""The pipelines, each a function and a verb of `trunkline pipeline`."""
