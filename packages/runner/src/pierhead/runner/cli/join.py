"""`pierhead join CODE`: let this machine build."""

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from pierhead.protocol.cli.builder import require_builder
from pierhead.protocol.cli.speak import USAGE, fail, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.proxy import is_loopback
from pierhead.protocol.client.retry import retrying
from pierhead.protocol.client.trust import pinned_ca, trusted_ca
from pierhead.protocol.joincode import NO_PIN, JoinAddress, parse_join_code
from pierhead.protocol.runner import Enroll, Enrolled
from pierhead.runner.config import Joined, save_joined, state_folder

JOIN_SECONDS = 30.0
CODE_BYTES_MAX = 1024


def command(
    code: Annotated[
        str | None, typer.Argument(help="What `pierhead add` printed; otherwise read from stdin")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name that `pierhead add` was given")] = None,
    slots: Annotated[int, typer.Option(help="Builds at the same time", min=1, max=64)] = 1,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Plain HTTP in a network that you trust")
    ] = False,
) -> None:
    """Let this machine build for a control plane."""
    try:
        address = parse_join_code(code or _said())
    except ValueError as error:
        raise fail(str(error), "pierhead add NAME --builds makes one", USAGE) from error
    require_builder()
    way = asyncio.run(_way(address, insecure_http))
    enrolled = asyncio.run(_enroll(way, address.secret, name))
    state, url = state_folder(), way.url
    save_joined(
        state,
        Joined(
            name=enrolled.name,
            url=url,
            credential=enrolled.credential,
            ca=way.ca,
            insecure_http=insecure_http,
            slots=slots,
        ),
    )
    tell(f"joined {url} as {enrolled.name}; its credential is in {state} (mode 0600)")
    tell("next: pierhead runner start")


def _said() -> str:
    """Return the code that is pasted or piped: it is in no command line then."""
    if sys.stdin.isatty():
        tell("Paste the code, then press Enter.")
    return sys.stdin.readline(CODE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class _Way:
    """How to reach the control plane that a code names; it was checked to be that."""

    url: str
    ca: str | None
    insecure_http: bool

    def client(self) -> RouterClient:
        return RouterClient(self.url, ca=self.ca, insecure_http=self.insecure_http)


async def _way(address: JoinAddress, insecure_http: bool) -> _Way:
    """Find out how to reach the control plane. Nothing of the secret is sent.

    Raises:
        IntegrityError: who answers there is not who made the code.
        Unavailable: nobody answers.
    """
    in_the_clear = address.pin == NO_PIN and (is_loopback(address.host) or insecure_http)
    url = f"{'http' if in_the_clear else 'https'}://{address.address}"
    async for attempt in retrying(JOIN_SECONDS):
        with attempt:
            pinned = None if address.pin == NO_PIN else await pinned_ca(url, address.pin)
    way = _Way(url, trusted_ca(None) if pinned is None else pinned, insecure_http)
    async with way.client() as client:
        await client.meta()
    return way


async def _enroll(way: _Way, secret: str, name: str | None) -> Enrolled:
    # The same nonce with each repeat: a lost answer must not burn the code.
    request = Enroll(secret=secret, nonce=os.urandom(16).hex(), name=name)
    async with way.client() as client:
        async for attempt in retrying(JOIN_SECONDS):
            with attempt:
                return await client.enroll(request)
    raise AssertionError("retrying ends by a value or an error")
