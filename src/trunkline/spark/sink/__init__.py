"""The sink: stages rows in the database and publishes those of a finished batch."""
