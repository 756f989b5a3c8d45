"""Reads of the pages from the database: one module per page, the only place that asks."""
