"""The source: plans a query, and reads its ranges from the log and from the archive."""
