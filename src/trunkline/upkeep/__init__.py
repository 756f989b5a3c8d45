"""Upkeep, the background maintenance: runs the SQL tasks in a loop. Many processes may run it; one acts at a time."""

from trunkline.upkeep.runner import run

__all__ = ["run"]
