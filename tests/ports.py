"""Ports for servers that the tests start by a number, and start again."""

import random
import socket
from typing import Final

# Below those that the kernel gives to whoever asks for any (ip(7), ip_local_port_range): several
# sessions of tests run at once, and each connection of one could take what another will listen on.
_PORTS: Final = range(15_000, 32_000)


def free_port() -> int:
    """Return a port that nobody listens on, and that nobody is given by chance."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
                continue
        return port
