"""Trunkline: one Postgres log, every way to consume it."""

__version__ = "0.1.0"
