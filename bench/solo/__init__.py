"""Contestants that run alone in one process of their own, each through its own library."""
