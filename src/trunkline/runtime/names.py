"""Names of consumers."""

from __future__ import annotations

import os
import socket
from uuid import uuid4


def consumer_name() -> str:
    """Return a new, unique name for a consumer in this process."""
    host = "".join(c if c.isalnum() or c in "-._" else "-" for c in socket.gethostname())[:100]
    return f"{host}-{os.getpid()}-{uuid4().hex[:12]}"
