"""`pierhead join CODE`: let this machine build.

Everything that can go wrong is tried before the code is used up: the code itself, this machine, who
answers at the address, and what is missing here. Only then the secret is sent, and only to whoever
has the pin that the code names.
"""

import asyncio
import hashlib
import hmac
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pierhead.protocol.cli import builder
from pierhead.protocol.cli.given import formed, whole
from pierhead.protocol.cli.service import Service, start
from pierhead.protocol.cli.speak import OK, REFUSED, USAGE, agreed, fail, size, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.client.trust import Trust, pinned_ca, trusted_ca
from pierhead.protocol.ids import RunnerName
from pierhead.protocol.joincode import NO_PIN, JoinAddress, parse_join_code
from pierhead.protocol.loopback import is_loopback
from pierhead.protocol.runner import Enroll, Enrolled
from pierhead.runner.cli.ceilings import Ceilings, ceilings, machine_of
from pierhead.runner.config import (
    Joined,
    check_state,
    joined_before,
    lock_state,
    machine_secret,
    save_joined,
    state_folder,
    state_id,
    unless_refused,
)

JOIN_SECONDS = 30.0
CODE_BYTES_MAX = 1024
SUBORDINATES = (Path("/etc/subuid"), Path("/etc/subgid"))


def command(
    code: Annotated[
        str | None, typer.Argument(help="What `pierhead add` printed; otherwise read from stdin")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name that `pierhead add` was given", callback=formed(RunnerName)),
    ] = None,
    slots: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", help="Builds at the same time", parser=whole("--slots", 1, 64, 1)
        ),
    ] = 1,
    cpus: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Cores for builds", parser=whole("--cpus", 1, 4096, 8)),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory for builds: 16G")] = None,
    disk: Annotated[str | None, typer.Option(help="Disk for builds and their cache: 60G")] = None,
    user: Annotated[bool, typer.Option("--user", help="For this user only: needs no root")] = False,
    service: Annotated[
        bool, typer.Option("--service/--no-service", help="Go on after this command and a restart")
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would happen")] = False,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Plain HTTP in a network that you trust")
    ] = False,
) -> int:
    """Let this machine build for a control plane."""
    address = _read_code(code)
    state = state_folder()
    machine = machine_of(state)
    allowed = ceilings(machine, cpus=cpus, memory=memory, disk=disk, slots=slots)
    runner = runner_service(state, user=user)
    way = asyncio.run(_way(address, insecure_http))
    _check_machine(state, way, user=user, service=service)
    missing = builder.lacking(rootless=os.geteuid() != 0)
    _tell_plan(way, address, allowed, runner if service else None, missing, state)
    if plan:
        return OK
    if (service or missing) and not yes and not agreed("go on?", otherwise="pierhead join --yes"):
        raise fail(
            "nothing was changed, and the code was not used", "pierhead join --plan", REFUSED
        )
    if missing:
        builder.install(missing)
    with unless_refused(state):
        enrolled = _join(way, address.secret, name, state, insecure_http, allowed)
    tell(f"joined {way.url} as {enrolled.name}; its credential is in {state} (mode 0600)")
    if service:
        tell(f"service   {start(runner)}; it says what it does: {runner.where_it_speaks}")
    else:
        tell("next: pierhead runner start")
    return OK


def runner_service(state: Path, *, user: bool) -> Service:
    """Return the service that a machine which joined runs."""
    return Service(
        name="pierhead-runner",
        description="pierhead runner",
        command=(sys.executable, "-m", "pierhead.runner", "start"),
        folder=state,
        module="pierhead.runner",
        user=user,
    )


def _read_code(said: str | None) -> JoinAddress:
    """Return the code: from the command line, the environment of a container, or what is pasted."""
    text = said or os.environ.get("PIERHEAD_JOIN")
    if text is None:
        if sys.stdin.isatty():
            tell("Paste the code, then press Enter.")
        text = sys.stdin.readline(CODE_BYTES_MAX)
    try:
        return parse_join_code(text)
    except ValueError as error:
        raise fail(f"CODE: {error}", "pierhead add NAME --builds makes one", USAGE) from error


@dataclass(frozen=True, slots=True)
class _Way:
    """How to reach the control plane that a code names; it was checked to be that."""

    url: str
    trust: Trust
    insecure_http: bool

    def client(self) -> RouterClient:
        return RouterClient(self.url, ca=self.trust, insecure_http=self.insecure_http)


async def _way(address: JoinAddress, insecure_http: bool) -> _Way:
    """Find out how to reach the control plane. Nothing of the secret is sent.

    Raises:
        IntegrityError: who answers there is not who made the code.
        Unavailable: nobody answers.
    """
    in_the_clear = address.pin == NO_PIN and (is_loopback(address.host) or insecure_http)
    url = f"{'http' if in_the_clear else 'https'}://{address.address}"
    pinned = None
    if address.pin != NO_PIN:
        pinned = await patiently(lambda: pinned_ca(url, address.pin), JOIN_SECONDS)
    # What is learned while joining is noted with all else, at its end.
    trust = Trust(trusted_ca(None)) if pinned is None else Trust(pinned, lambda _: None)
    way = _Way(url, trust, insecure_http)
    async with way.client() as client:
        await client.meta()
    return way


def _check_machine(state: Path, way: _Way, *, user: bool, service: bool) -> None:
    """Go on if this machine may join.

    Raises:
        CommandFailed: it may not; the code was not used.
    """
    root = os.geteuid() == 0
    if user and root:
        raise fail("--user is for joining without root", "leave out --user", USAGE)
    if service and not root and not user:
        text = "a service of the whole machine needs root"
        raise fail(text, "sudo pierhead join, or pierhead join --user", REFUSED)
    if not root and not _has_subordinates():
        own = os.environ.get("USER", "$USER")
        line = f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {own}"
        raise fail(f"{own} has no subordinate users, which building without root needs", line)
    missing = builder.lacking(rootless=not root)
    if missing and not builder.can_install():
        text = f"this machine lacks {', '.join(missing)}; the code was not used"
        raise fail(text, builder.install_line(" ".join(missing)), REFUSED)
    before = joined_before(state)
    if before is not None and before.url != way.url:
        text = f"this machine has joined {before.url} as {before.name}"
        hint = f"leave that: rm {state / 'runner.json'}, or use PIERHEAD_RUNNER_STATE=DIR"
        raise fail(text, hint, REFUSED)
    check_state(state)


def _has_subordinates() -> bool:
    names = {os.environ.get("USER", ""), str(os.geteuid())} - {""}
    files = [file.read_text().splitlines() for file in SUBORDINATES if file.exists()]
    return len(files) == len(SUBORDINATES) and all(
        any(line.partition(":")[0] in names for line in lines) for lines in files
    )


def _tell_plan(
    way: _Way,
    address: JoinAddress,
    allowed: Ceilings,
    service: Service | None,
    missing: tuple[str, ...],
    state: Path,
) -> None:
    known = f"its certificate authority is {address.pin[:16]}..., as in the code"
    usual = "verified as this system verifies" if way.url.startswith("https:") else "plain HTTP"
    tell(f"joins      {way.url}   ({usual if address.pin == NO_PIN else known})")
    tell(f"may use    {allowed.words}")
    folder = state
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    tell(f"keeps      {state}   ({size(status.f_bavail * status.f_frsize)} free)")
    if missing:
        tell(f"installs   {' '.join(missing)}   ({builder.install_line('...')})")
    if service is not None:
        tell(f"starts     {service.name}: {service.kind}")


def _join(
    way: _Way,
    secret: str,
    name: str | None,
    state: Path,
    insecure_http: bool,
    allowed: Ceilings,
) -> Enrolled:
    holder = lock_state(state)
    try:
        # The same machine asks with the same nonce, however often: a lost answer burns no code.
        own = hmac.digest(machine_secret(state), secret.encode(), hashlib.sha256).hex()
        request = Enroll(secret=secret, nonce=own, name=name, state_id=state_id(holder))
        enrolled = asyncio.run(_enroll(way, request))
        joined = Joined(
            name=enrolled.name,
            url=way.url,
            credential=enrolled.credential,
            ca=way.trust.ca,
            insecure_http=insecure_http,
            slots=allowed.slots,
            cpus=allowed.cpus,
            memory_bytes=allowed.memory_bytes,
            disk_bytes=allowed.disk_bytes,
        )
        save_joined(state, joined)
    finally:
        os.close(holder)
    return enrolled


async def _enroll(way: _Way, request: Enroll) -> Enrolled:
    async with way.client() as client:
        return await patiently(lambda: client.enroll(request), JOIN_SECONDS)
