"""HTTP: the services that are measured, and the load on them."""
