"""The contestants: for each the tables, the statements, and the steps that a connection repeats."""
