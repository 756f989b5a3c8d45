"""The kernel: tables and functions in schema `trunkline`. README.md beside this file is the map."""
