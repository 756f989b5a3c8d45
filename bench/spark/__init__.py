"""What the Spark workload is made of: the session, the topics, both sides' reads and writes, and the CPU they take."""
