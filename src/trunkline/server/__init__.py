"""The HTTP service: the native API, and the documented routes of three other systems, on one core."""
