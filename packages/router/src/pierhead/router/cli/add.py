"""`pierhead add NAME --builds`: make the line that another machine pastes."""

import asyncio
from typing import Annotated

import typer

from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import USAGE, fail, give, give_json, tell
from pierhead.protocol.runner import AddRunner, JoinCode


def command(
    name: Annotated[str, typer.Argument(help="Name of the machine: letters, digits, dashes")],
    builds: Annotated[bool, typer.Option("--builds", help="It may build")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON")] = False,
    url: Annotated[str | None, typer.Option(help="Control plane")] = None,
) -> None:
    """Make the line that lets another machine build."""
    if not builds:
        raise fail("say what the machine may do", f"pierhead add {name} --builds", USAGE)
    code = asyncio.run(_add(name, url))
    if as_json:
        give_json(code)
        return
    minutes = code.expires_in_seconds // 60
    tell(f"Paste this within {minutes} minutes (works once):")
    tell()
    give(f"pierhead join {code.code}")
    tell()
    tell(
        "In this release only this machine itself can join: other machines need TLS, which is next."
    )


async def _add(name: str, url: str | None) -> JoinCode:
    async with find_place(url).client() as client:
        return await client.add_runner(AddRunner(name=name))
