"""A free port stays free for the one who asked for it."""

from __future__ import annotations

import socket
import sys

import pytest

from trunkline.cli.framework.ports import reserved_port


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the port is only looked for")
def test_a_free_port_is_given_to_nobody_else_and_can_be_listened_on() -> None:
    with reserved_port("127.0.0.1", 0) as port:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass
