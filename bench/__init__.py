"""Benchmarks of Trunkline and of alternatives on the same Postgres. Run with `python -m bench`."""
