"""Upkeep as a process: runs the SQL tasks in a loop. Any number of processes may run it; one acts at a time."""

from trunkline.upkeep.runner import run

__all__ = ["run"]
