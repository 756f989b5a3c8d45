"""The sync twins of `trunkline.client`, written by tools/unasync.py."""
