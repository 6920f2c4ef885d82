"""`pierhead login`: remember a control plane."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from pierhead.protocol.cli.place import Place, note_place
from pierhead.protocol.cli.speak import USAGE, fail, tell

TOKEN_BYTES_MAX = 512


def command(
    url: Annotated[str, typer.Argument(help="Address of the control plane")],
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; otherwise it is read from stdin")
    ] = None,
) -> None:
    """Remember a control plane and the token for it."""
    if token_file is None and sys.stdin.isatty():
        tell("Paste the token, then press Enter.")
    text = token_file.read_text() if token_file else sys.stdin.readline(TOKEN_BYTES_MAX)
    token = text.strip()
    if not token:
        raise fail("no token was given", "pierhead login URL --token-file FILE", USAGE)
    asyncio.run(_try(Place(url, token, chosen=True)))
    note_place(url, token)
    tell(f"{url} is where builds go from now on")


async def _try(place: Place) -> None:
    async with place.client() as client:
        await client.meta()
        await client.projects()
