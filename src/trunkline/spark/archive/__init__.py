"""The archive of a topic: Parquet files outside the database."""
