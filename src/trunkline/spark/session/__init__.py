"""Spark sessions: opening them, starting them faster, Spark Connect and progress reports."""
