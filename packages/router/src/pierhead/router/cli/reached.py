"""What is said about how a control plane is reached, checked where it is typed."""

import socket

from pierhead.protocol.cli.given import readable
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.reach import proxy_networks, public_name, reach


def can_listen_on(host: str) -> None:
    """Go on if this machine can listen on an address; so nothing is stopped for one that is wrong.

    Raises:
        OSError, UnicodeError: it cannot.
    """
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
        probe.bind(found[0][4])


a_place = readable(can_listen_on, "an address of this machine", "0.0.0.0", OSError, UnicodeError)  # noqa: S104
an_origin = readable(
    lambda url: reach(host="127.0.0.1", port=1, usual_address=None, public_url=url),
    "http(s)://NAME without a path, as a registry is at the root of a host",
    "https://build.example.com",
    Refused,
)
# An empty one takes the name back.
a_name = readable(
    lambda name: name and public_name(name), "a name of the DNS", "build.example.com", Refused
)
a_network = readable(
    lambda text: proxy_networks((text,)), "a network or an address", "127.0.0.1", Refused
)
