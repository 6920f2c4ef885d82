"""What is said about how a control plane is reached, checked where it is typed."""

import socket

import typer

from pierhead.protocol.cli.given import name_of, readable
from pierhead.protocol.cli.speak import USAGE, fail
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.reach import check_public_url, proxy_networks, public_name


def can_listen_on(host: str) -> None:
    """Go on if this machine can listen on an address; so nothing is stopped for one that is wrong.

    Raises:
        OSError, UnicodeError: it cannot.
    """
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
        probe.bind(found[0][4])


a_place = readable(can_listen_on, "an address of this machine", "0.0.0.0", OSError, UnicodeError)  # noqa: S104
# An empty one takes back what was said before.
a_name = readable(
    lambda name: name and public_name(name), "a name of the DNS", "build.example.com", Refused
)
a_network = readable(
    lambda text: text and proxy_networks((text,)), "a network or an address", "127.0.0.1", Refused
)


def an_origin(parameter: typer.CallbackParam, given: str | None) -> str | None:
    """Let only an address through that names images as well; an empty one takes it back."""
    try:
        if given:
            check_public_url(given)
    except Refused as error:
        raise fail(f"{name_of(parameter)}: {error}", error.hint, USAGE) from error
    return given
