"""What every accepted connection has, whichever way it goes on from there."""

import socket

from pierhead.server.serve import listen


def test_a_connection_does_not_wait_to_fill_a_packet() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
