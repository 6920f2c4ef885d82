"""`pierhead add NAME --builds`: make the line that another machine pastes."""

import asyncio
from typing import Annotated

import typer

from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import USAGE, fail, give, give_json, tell
from pierhead.protocol.joincode import parse_join_code
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
    tell(f"Paste this on the other machine within {code.expires_in_seconds // 60} minutes:")
    tell()
    give(join_line(code))
    tell()


def join_line(code: JoinCode) -> str:
    """Return the line that lets a machine join which has only a shell.

    A control plane with its own authority is unknown to curl, so curl is told its key instead: the
    script comes from nobody else.
    """
    address = parse_join_code(code.code)
    usual = address.address.removesuffix(":443")
    pinned = f" --insecure --pinnedpubkey {code.key_pin}" if code.key_pin else ""
    return f"curl -LsSf{pinned} https://{usual}/join | sh -s -- {code.code}"


async def _add(name: str, url: str | None) -> JoinCode:
    async with find_place(url).client() as client:
        return await client.add_runner(AddRunner(name=name))
