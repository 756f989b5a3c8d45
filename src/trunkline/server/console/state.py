"""The console of a worker: what its pages share."""

from __future__ import annotations

from urllib.parse import urlsplit

from trunkline import Client
from trunkline.server.auth import Auth
from trunkline.server.config import Config
from trunkline.server.console import changes
from trunkline.server.console.live import Live
from trunkline.server.console.pages import Pages
from trunkline.server.console.reading import Reads
from trunkline.server.console.routes import PATHS
from trunkline.server.console.sessions import Sessions, cookie_name


class Console:
    """Created with the worker; does nothing until a page is asked for."""

    def __init__(self, config: Config, mq: Client, access: Auth) -> None:
        public = urlsplit(config.console_url or "")
        self.prefix = public.path.rstrip("/")
        self.host = public.netloc or None
        self.secure = public.scheme == "https" or config.tls
        self.reads = Reads(mq)
        self.live = Live(self.reads, changes.SOURCES)
        self.pages = Pages(f"{self.prefix}/console", PATHS)
        self.sessions = Sessions(mq, cookie_name(self.secure))
        access.session_of = self.sessions.credential

    def close(self) -> None:
        self.live.close()
