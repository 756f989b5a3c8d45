"""One file per resource; `system.py` for the server itself, `api.py`, `pubsub.py` for the routes of other systems."""
