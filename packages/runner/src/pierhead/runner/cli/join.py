"""`pierhead join CODE`: let this machine build."""

import asyncio
import os
from typing import Annotated

import typer

from pierhead.protocol.cli.builder import require_builder
from pierhead.protocol.cli.speak import USAGE, fail, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.http import is_loopback
from pierhead.protocol.client.retry import retrying
from pierhead.protocol.joincode import NO_PIN, JoinAddress, parse_join_code
from pierhead.protocol.runner import Enroll, Enrolled
from pierhead.runner.config import Joined, save_joined, state_folder

JOIN_SECONDS = 30.0


def command(
    code: Annotated[str, typer.Argument(help="What `pierhead add` printed")],
    name: Annotated[str | None, typer.Option(help="Name that `pierhead add` was given")] = None,
    slots: Annotated[int, typer.Option(help="Builds at the same time", min=1, max=64)] = 1,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Plain HTTP in a network that you trust")
    ] = False,
) -> None:
    """Let this machine build for a control plane."""
    try:
        address = parse_join_code(code)
    except ValueError as error:
        raise fail(str(error), "pierhead add NAME --builds makes one", USAGE) from error
    _require_safe(address, insecure_http)
    require_builder()
    url = f"http://{address.address}"
    enrolled = asyncio.run(_enroll(url, address.secret, name, insecure_http))
    state = state_folder()
    save_joined(
        state,
        Joined(
            name=enrolled.name,
            url=url,
            credential=enrolled.credential,
            insecure_http=insecure_http,
            slots=slots,
        ),
    )
    tell(f"joined {url} as {enrolled.name}; its credential is in {state} (mode 0600)")
    tell("next: pierhead runner start")


async def _enroll(url: str, secret: str, name: str | None, insecure_http: bool) -> Enrolled:
    # The same nonce with each repeat: a lost answer must not burn the code.
    request = Enroll(secret=secret, nonce=os.urandom(16).hex(), name=name)
    async with RouterClient(url, insecure_http=insecure_http) as client:
        async for attempt in retrying(JOIN_SECONDS):
            with attempt:
                return await client.enroll(request)
    raise AssertionError("retrying ends by a value or an error")


def _require_safe(address: JoinAddress, insecure_http: bool) -> None:
    host = address.address.rpartition(":")[0].strip("[]")
    if address.pin == NO_PIN and not is_loopback(host) and not insecure_http:
        hint = "wait for TLS, or add --insecure-http in a network that you trust"
        text = f"joining {host} would send the secret over plain HTTP"
        raise fail(text, hint, USAGE)
