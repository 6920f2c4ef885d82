"""`pierhead up`: keep a control plane on this machine.

What was said once is remembered in the data folder, so that `pierhead up` alone means the same
again.
"""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from pierhead.protocol.cli import service
from pierhead.protocol.cli.place import Place, config_folder, note_local
from pierhead.protocol.cli.service import Service
from pierhead.protocol.cli.speak import OK, REFUSED, UNAVAILABLE, USAGE, fail, give, size, tell
from pierhead.protocol.client.trust import fingerprint
from pierhead.protocol.errors import PierheadError
from pierhead.router.cli.serve import serve_arguments
from pierhead.router.config import DEFAULT_PORT, data_folder, memory_cap
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.proxies import proxy_lines
from pierhead.router.domain.reach import Reach, reach

START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 5.0
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - over TLS
WEB_PORTS: Final = (80, 443)


class Chosen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said to `pierhead up`."""

    port: int = DEFAULT_PORT
    host: str = ALL_ADDRESSES
    public_url: str | None = None
    behind_proxy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Machine:
    """The folders of this machine's control plane, and what was chosen for it."""

    data: Path
    chosen: Chosen
    reached: Reach

    @property
    def place(self) -> Place:
        """Where the commands of this machine find it."""
        return Place(self.reached.local, None, chosen=True)

    @property
    def service(self) -> Service:
        """What keeps it running."""
        chosen = self.chosen
        command = serve_arguments(self.data, chosen.host, chosen.port)
        command += ["--public-url", chosen.public_url] if chosen.public_url else []
        for network in chosen.behind_proxy:
            command += ["--behind-proxy", network]
        return Service(
            name="pierhead",
            description="pierhead control plane",
            command=tuple(command),
            folder=self.data,
            module="pierhead.router",
            user=os.geteuid() != 0,
        )


def command(
    port: Annotated[int | None, typer.Option(help="Port", min=1, max=65535)] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; 127.0.0.1 for this machine only")
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(help="How others reach it, if not by its own address")
    ] = None,
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(help="A reverse proxy has the certificate; the network that it comes from"),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would happen")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End it; all data stays")] = False,
) -> int:
    """Keep a control plane on this machine: a service where there is systemd, else a process."""
    import pierhead.router.app  # noqa: F401, PLC0415 - says now what is not installed

    data, said = data_folder(), locals()
    noted = _noted(data)
    named = {key: said[key] for key in ("port", "host", "public_url") if said[key] is not None}
    if behind_proxy:
        named |= {"behind_proxy": tuple(behind_proxy), "host": host or "127.0.0.1"}
    chosen = msgspec.structs.replace(noted, **named)
    machine = _Machine(data, chosen, _reach(chosen))
    if stop:
        return _stop(machine)
    if plan:
        _tell_plan(machine)
        return OK
    ours = service.is_there(machine.service)
    if asyncio.run(_answers(machine.place)) and (chosen == noted or not ours):
        _tell_all(machine, f"a control plane runs at {machine.place.url} already")
        return OK
    if ours:
        service.stop(machine.service)  # what was said now is not what it was started with
    _note(data, chosen)
    how = service.start(machine.service)
    if not _comes_up(machine):
        hint = machine.service.where_it_speaks
        raise fail("the control plane did not come up", hint, UNAVAILABLE)
    note_local(machine.place.url)
    _tell_all(machine, how)
    return OK


def _reach(chosen: Chosen) -> Reach:
    from pierhead.server.addresses import usual_address  # noqa: PLC0415 - of the server extra

    try:
        return reach(
            host=chosen.host,
            port=chosen.port,
            usual_address=usual_address(),
            public_url=chosen.public_url,
            behind_proxy=bool(chosen.behind_proxy),
        )
    except Refused as error:
        raise fail(str(error), error.hint, USAGE) from error


def _tell_plan(machine: _Machine) -> None:
    _tell_place(machine)
    found = machine.service
    tell(f"service    would be {found.kind}")
    if service.has_systemd():
        tell()
        tell(service.unit_text(found))


def _tell_all(machine: _Machine, how: str) -> None:
    _tell_place(machine)
    tell(f"service    {how}; end it: pierhead up --stop")
    config = config_folder()
    tell(f"You are the owner. Token: {config / 'token'} (mode 0600)")
    tell(f"registry   docker --config {config / 'docker'} pull {machine.reached.registry}/...")
    if machine.reached.own_tls:
        folder = f"/etc/docker/certs.d/{machine.reached.registry}"
        tell(f"           after: mkdir -p {folder} && cp {config / 'ca.crt'} {folder}/")
    tell("next: pierhead add NAME --builds      let another machine build")
    give(machine.reached.url)


def _tell_place(machine: _Machine) -> None:
    folder = machine.data
    while not folder.exists():
        folder = folder.parent
    status, reached = os.statvfs(folder), machine.reached
    tell(f"data       {machine.data}   {size(status.f_bavail * status.f_frsize)} free")
    tell(f"address    {reached.url}   ({_kind(machine)})")
    authority = config_folder() / "ca.crt"
    if reached.own_tls and authority.exists():
        tell(f"pin        {fingerprint(authority.read_text())}")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = f"{size(memory_cap())} of {size(total)} memory"
    tell(f"builder    here, at most 1 build at a time, {allowed}, lowest CPU priority")
    tell(f"ports      {_ports(machine)}")


def _kind(machine: _Machine) -> str:
    if machine.chosen.behind_proxy:
        return "the certificate is the proxy's"
    if machine.reached.own_tls:
        return "its own certificate authority, pinned in every join code"
    return "this machine only"


def _ports(machine: _Machine) -> str:
    from pierhead.server.neighbours import listener_of, proxies_running  # noqa: PLC0415

    taken = {port: name for port in WEB_PORTS if (name := listener_of(port))}
    words = [f"{port} is used by {name}" for port, name in taken.items()]
    found = f"{' and '.join(words)}: left alone" if words else "80 and 443 are free, and stay so"
    if not machine.chosen.behind_proxy:
        return found
    lines = [
        proxy_lines(proxy, machine.reached.name, machine.chosen.port)
        for proxy in proxies_running() or ("",)
    ]
    return "\n\n".join([found, *lines])


def _stop(machine: _Machine) -> int:
    if not service.stop(machine.service):
        text = f"no control plane was started by `pierhead up` on {machine.data}"
        raise fail(text, None, REFUSED)
    tell("stopped; all data stays")
    return OK


def _noted(data: Path) -> Chosen:
    try:
        return msgspec.json.decode((data / "up.json").read_bytes(), type=Chosen)
    except (OSError, msgspec.MsgspecError):
        return Chosen()


def _note(data: Path, chosen: Chosen) -> None:
    data.mkdir(parents=True, exist_ok=True, mode=0o750)
    (data / "up.json").write_bytes(msgspec.json.encode(chosen))


def _comes_up(machine: _Machine) -> bool:
    until = time.monotonic() + START_SECONDS  # noqa: TID251 - somebody waits in real time
    while time.monotonic() < until:  # noqa: TID251
        if asyncio.run(_answers(machine.place)):
            return True
        if not service.has_systemd() and service.running(machine.service) is None:
            return False
        time.sleep(0.2)
    return False


async def _answers(place: Place) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS), place.client() as client:
            await client.meta()
    except (PierheadError, TimeoutError):
        return False
    return True
