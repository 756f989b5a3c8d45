"""The database side of Python: pool, codec, typed calls, embedded server."""
