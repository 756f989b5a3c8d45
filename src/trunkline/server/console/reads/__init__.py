"""What the pages read from the database: one module per page, the only place that asks."""
