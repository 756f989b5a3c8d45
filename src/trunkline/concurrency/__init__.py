"""Primitives of the event loop and of threads, under the same names; they know nothing of databases."""
