"""The sync twins of `trunkline.runtime`, written by tools/unasync.py."""
