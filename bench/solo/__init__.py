"""Contestants that run in a separate process, each through its own library."""
