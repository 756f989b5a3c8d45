"""One file per noun; `system.py` for the server itself, `api.py`, `pubsub.py` for the routes of other systems."""
