"""`pierhead add NAME --builds`: make the line that another machine pastes."""

import asyncio
import contextlib
import sys
from typing import Annotated, Final

import typer

from pierhead.protocol.cli.given import AsJson, Url, formed
from pierhead.protocol.cli.place import Place, find_place
from pierhead.protocol.cli.speak import (
    INTERRUPTED,
    OK,
    UNAVAILABLE,
    USAGE,
    fail,
    give,
    give_json,
    size,
    tell,
)
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.ids import RunnerName
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.loopback import is_loopback
from pierhead.protocol.runner import AddRunner, Capabilities, JoinCode
from pierhead.protocol.units import cores

LOOK_SECONDS: Final = 1.0


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the machine: letters, digits, dashes", callback=formed(RunnerName)
        ),
    ],
    builds: Annotated[bool, typer.Option("--builds", help="It may build")] = False,
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="Until it has joined; usual on a terminal"),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
) -> int:
    """Make the line that lets another machine build."""
    if not builds:
        raise fail("say what the machine may do", f"pierhead add {name} --builds", USAGE)
    place = find_place(url)
    code = asyncio.run(_add(name, place))
    if as_json:
        give_json(code)
    else:
        tell_lines(code)
    if not (sys.stdout.isatty() if wait is None else wait):
        return OK
    try:
        tell(f"waiting for {name} ...   (^C leaves the code as it is)")
        joined = asyncio.run(_joined(name, place, code.expires_in_seconds))
    except KeyboardInterrupt:
        tell("the code stays good until its time is over; pierhead status says who has joined")
        return INTERRUPTED
    tell(f"{name} joined: {machine_words(joined)}")
    return OK


def machine_words(facts: Capabilities) -> str:
    """Return what a machine is, for people."""
    said = [
        *facts.platforms,
        cores(facts.cpus),
        size(facts.memory_bytes),
        f"{size(facts.disk_free_bytes)} free" if facts.disk_free_bytes else "",
        facts.backend,
        "" if facts.isolation == "full" else "builds of trusted projects only: nothing isolates",
    ]
    return ", ".join(filter(None, said))


def tell_lines(code: JoinCode) -> None:
    """Say what to do with a code, and whether anybody else can use it."""
    minutes = code.expires_in_seconds // 60
    place = parse_join_code(code.code)
    if is_loopback(place.host):
        only = f"it is kept at {place.address} alone."
        tell(f"note: no other machine reaches the control plane: {only}")
        tell("      pierhead up --host 0.0.0.0 opens it to others, over TLS; then add again")
    tell(f"Paste this on the other machine within {minutes} minutes (works once):")
    tell()
    give(join_line(code))
    tell()
    tell(f"or, where pierhead is installed: pierhead join   (then paste {code.code})")


async def _joined(name: str, place: Place, seconds: int) -> Capabilities:
    """Return what the machine is, once it is at work.

    Raises:
        CommandFailed: the code's time is over.
    """
    try:
        async with asyncio.timeout(seconds), place.client() as client:
            while True:
                with contextlib.suppress(Unavailable):
                    for runner in (await client.capabilities()).runners:
                        if runner.name == name and runner.online and runner.capabilities:
                            return runner.capabilities
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        hint = f"pierhead add {name} --builds makes another code"
        raise fail(f"{name} has not joined, and the code has expired", hint, UNAVAILABLE) from None


def join_line(code: JoinCode) -> str:
    """Return the line that lets a machine join which has only a shell.

    A control plane with its own authority is unknown to curl, so curl is told its key instead: the
    script comes from nobody else.
    """
    place = parse_join_code(code.code)
    usual = place.address.removesuffix(":443")
    if is_loopback(place.host):
        return f"curl -LsSf http://{usual}/join | sh -s -- {code.code}"
    pinned = f" --insecure --pinnedpubkey {code.key_pin}" if code.key_pin else ""
    return f"curl -LsSf{pinned} https://{usual}/join | sh -s -- {code.code}"


async def _add(name: str, place: Place) -> JoinCode:
    async with place.client() as client:
        return await client.add_runner(AddRunner(name=name))
