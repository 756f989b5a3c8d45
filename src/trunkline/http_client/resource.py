"""Shared base of the resource managers of an HTTP client, such as `client.topics`."""

from __future__ import annotations

from trunkline.http_client.transport import Transport


class HttpResource:
    """Manages one kind of resource."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
