"""The contestants: tables, statements, and the steps that a connection repeats."""
