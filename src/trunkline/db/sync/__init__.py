"""The sync twins of `trunkline.db`, written by tools/unasync.py."""
