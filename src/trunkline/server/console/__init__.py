"""The web console: pages made on the server. See README.md for how to add one."""
