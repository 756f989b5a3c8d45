"""HTTP: the measured services and their load generators."""
