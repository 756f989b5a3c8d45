"""The core that workers, dispatchers and client consumers share."""
