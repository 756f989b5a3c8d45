"""Parts of the Spark workload: session, topics, reads and writes of both sides, and CPU measurement."""
