"""APIs of other systems, one module each.

Each API is served below `/compat/NAME`, and at the root of a port of its own if the server has one for it.
"""
