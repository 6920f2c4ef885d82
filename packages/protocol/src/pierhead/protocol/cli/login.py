"""`pierhead login`: remember a control plane.

One with a certificate that the system trusts needs nothing more. One with its own authority is
known by its pin: given, or shown and asked about. Until it is known, no token is sent.
"""

import asyncio
import os
import sys
from typing import Annotated

import typer

from pierhead.protocol.cli.given import an_address, readable, text_file
from pierhead.protocol.cli.place import note_place
from pierhead.protocol.cli.speak import REFUSED, USAGE, fail, tell
from pierhead.protocol.client.address import INSECURE_HTTP, check_url
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.failure import distrusted
from pierhead.protocol.client.trust import (
    Trust,
    certificates,
    fetch_ca,
    fingerprint,
    pinned_ca,
    read_pin,
    trusted_ca,
)
from pierhead.protocol.errors import Invalid, PierheadError

TOKEN_BYTES_MAX = 512


def command(
    url: Annotated[str, typer.Argument(help="Address of the control plane", callback=an_address)],
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File with the token; otherwise it is read from stdin",
            parser=text_file("--token-file"),
        ),
    ] = None,
    pin: Annotated[
        str | None,
        typer.Option(
            help="Fingerprint of its certificate authority: pierhead up",
            callback=readable(
                read_pin, "64 digits of hexadecimal, as pierhead up prints it", "PIN", Invalid
            ),
        ),
    ] = None,
) -> None:
    """Remember a control plane and the token for it."""
    # The same leave for plain HTTP that every other command obeys.
    url = check_url(url, insecure_http=os.environ.get(INSECURE_HTTP) == "1")
    ca = asyncio.run(_known_ca(url, read_pin(pin) if pin else None))
    if token_file is None and sys.stdin.isatty():
        tell("Paste the token, then press Enter.")
    text = sys.stdin.readline(TOKEN_BYTES_MAX) if token_file is None else token_file
    token = text.strip()
    if not token:
        raise fail("no token was given", "pierhead login URL --token-file FILE", USAGE)
    note_place(url, token, asyncio.run(_try(url, token, ca)))
    tell(f"{url} is where builds go from now on")


async def _known_ca(url: str, pin: str | None) -> str | None:
    """Return the authority of the control plane; none: the system's will do."""
    if pin:
        return await pinned_ca(url, pin)
    noted = trusted_ca(None)
    if noted is not None or not url.startswith("https:") or await _is_trusted(url):
        return noted
    shown = certificates(await fetch_ca(url))[0]  # others, if any, are learned by it
    seen = fingerprint(shown)
    if not sys.stdin.isatty():
        text = f"nobody this machine trusts vouches for {url}"
        hint = f"compare with what pierhead up prints there, then add --pin {seen}"
        raise fail(text, hint, REFUSED)
    tell(f"{url} has its own certificate authority:")
    tell(f"  {seen}")
    if not typer.confirm("Does pierhead up print the same pin there?", err=True):
        raise fail("nothing was sent", "ask whoever runs it for the pin, then add --pin", REFUSED)
    return shown


async def _is_trusted(url: str) -> bool:
    async with RouterClient(url) as anybody:
        try:
            await anybody.meta()
        except PierheadError as error:
            if not distrusted(error):
                raise
            return False
    return True


async def _try(url: str, token: str, ca: str | None) -> str | None:
    """Return by which authorities the control plane is believed, once the token is."""
    trust, insecure = Trust(ca, lambda _: None), os.environ.get(INSECURE_HTTP) == "1"
    async with RouterClient(url, token=token, ca=trust, insecure_http=insecure) as client:
        await client.meta()
        await client.projects()
    return trust.ca
