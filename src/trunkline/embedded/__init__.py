"""The embedded Postgres server: its programs, its process and the ownership of its databases."""
