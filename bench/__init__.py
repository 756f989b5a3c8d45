"""Benchmarks: ours next to other ways to do the same on the same Postgres. Run with `python -m bench`."""
