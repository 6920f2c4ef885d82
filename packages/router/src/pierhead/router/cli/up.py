"""`pierhead up`: keep a control plane on this machine.

What was said once is remembered in the data folder, so that `pierhead up` alone means the same
again.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from pierhead.protocol.cli import service
from pierhead.protocol.cli.given import an_address, whole
from pierhead.protocol.cli.lastwords import LastWords, size_of
from pierhead.protocol.cli.place import Place, config_folder, note_local, with_own_token
from pierhead.protocol.cli.service import Service
from pierhead.protocol.cli.speak import (
    OK,
    REFUSED,
    UNAVAILABLE,
    USAGE,
    fail,
    give,
    size,
    tell,
    tell_text,
)
from pierhead.protocol.client.trust import fingerprints
from pierhead.protocol.errors import PierheadError
from pierhead.router.attendance import become_plane, note_url
from pierhead.router.cli.chosen import Chosen, Said, choose
from pierhead.router.cli.kept import service_of
from pierhead.router.cli.reached import a_name, a_network, a_place, an_origin, can_listen_on
from pierhead.router.cli.serve import serve_arguments
from pierhead.router.config import DEFAULT_PORT, data_folder, memory_cap
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.proxies import proxy_lines
from pierhead.router.domain.reach import Reach, proxy_networks, reach
from pierhead.router.usable import holder_of, require_folders

START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 5.0
ONCE_SECONDS: Final = 900.0
CERTIFICATE_SECONDS: Final = 30.0
WEB_PORTS: Final = (80, 443)
_SILENT: Final = LastWords("the control plane did not come up", "")


@dataclass(frozen=True, slots=True)
class _Machine:
    """The folders of this machine's control plane, and what was chosen for it."""

    data: Path
    chosen: Chosen
    reached: Reach

    @property
    def place(self) -> Place:
        """Where the commands of this machine find it."""
        return with_own_token(Place(self.reached.local, None, chosen=True))

    @property
    def service(self) -> Service:
        """What keeps it running."""
        chosen = self.chosen
        command = serve_arguments(
            self.data,
            chosen.host,
            chosen.port,
            public_url=chosen.public_url,
            behind_proxy=chosen.behind_proxy,
            domain=chosen.domain,
            domain_port=chosen.domain_port,
            acme=chosen.acme,
        )
        return service_of(self.data, tuple(command))


def command(
    port: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Port", parser=whole("--port", 1, 65535, DEFAULT_PORT)),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; 127.0.0.1 for this machine only", callback=a_place
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            help="How others reach it, if not by its own address; '' takes it back",
            callback=an_origin,
        ),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            help="Public name that leads here, certified by ACME; '' takes it back", callback=a_name
        ),
    ] = None,
    acme: Annotated[
        str | None,
        typer.Option(help="ACME server, whose terms you agree to by --domain", callback=an_address),
    ] = None,
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="Network of the reverse proxy that has the certificate; '' takes it back",
            callback=a_network,
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would happen")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End it; all data stays")] = False,
) -> int:
    """Keep a control plane on this machine: a service where there is systemd, else a process."""
    import pierhead.router.app  # noqa: F401, PLC0415 - says now what is not installed

    data = data_folder()
    noted = _noted(data)
    said = Said(
        port=port,
        host=host,
        public_url=public_url,
        domain=domain,
        acme=acme,
        behind_proxy=None if behind_proxy is None else tuple(filter(None, behind_proxy)),
    )
    try:
        chosen = choose(noted, said)
    except Refused as error:
        raise fail(str(error), error.hint, USAGE) from error
    if domain and domain != noted.domain:
        chosen = msgspec.structs.replace(chosen, domain_port=_domain_port(domain, chosen.port))
    _require_address(chosen.host)
    machine = _Machine(data, chosen, _reach(chosen))
    if stop:
        return _stop(machine)
    if plan:
        _tell_plan(machine, restarts=_would_restart(machine, noted))
        return OK
    with _one_at_a_time(data), _instead_of_once(data):
        return _keep(machine, _noted(data))


@contextlib.contextmanager
def _one_at_a_time(data: Path) -> Iterator[None]:
    """Wait until nobody else starts a control plane there: the second finds that of the first."""
    require_folders(data, config_folder())
    folder = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextlib.contextmanager
def _instead_of_once(data: Path) -> Iterator[None]:
    """Wait for the end of one that was started for a build alone, and let no other be started."""
    held = become_plane(data)
    if held is None:
        tell("waiting    builds run in a control plane that is there for them alone: it ends with")
        tell("           them, and then this one starts; see: pierhead builds")
        held = _once_over(data)
    try:
        note_url(held, "")
        yield
    finally:
        os.close(held)


def _once_over(data: Path) -> int:
    until = time.monotonic() + ONCE_SECONDS  # noqa: TID251 - somebody waits in real time
    while (held := become_plane(data)) is None:
        if time.monotonic() > until:  # noqa: TID251
            text = f"builds still run in the control plane that is there for them alone, on {data}"
            raise fail(text, "pierhead up, when they have ended: pierhead builds", UNAVAILABLE)
        time.sleep(0.2)
    return held


def _keep(machine: _Machine, noted: Chosen) -> int:
    """Have it run as was chosen; `noted`: how it was started the last time."""
    ours = service.is_there(machine.service)
    answers = asyncio.run(_answers(machine.place))
    told = asyncio.run(_told_registry(machine.place)) if answers else None
    if answers and not ours:
        _require_the_same(machine, told)
    if answers and (machine.chosen == noted or not ours) and not _is_elsewhere(machine, told):
        _tell_all(machine, f"a control plane runs at {machine.place.url} already")
        return OK
    if ours:
        service.stop(machine.service)  # what was said now is not what it was started with
    _note(machine.data, machine.chosen)
    since = size_of(machine.service.log)
    how = service.start(machine.service)
    if not _comes_up(machine):
        said = machine.service.last_words(since) or _SILENT
        hint = said.hint or machine.service.where_it_speaks
        _go_back(machine, noted, restart=ours)
        raise fail(said.error, hint, UNAVAILABLE)
    if _is_elsewhere(machine, told):
        tell(f"note       until now it was {told}: runners, logins and image names of then say so")
    own = machine.reached.own_tls and not machine.chosen.domain
    note_local(machine.place.url, machine.reached.url if own else None)
    _tell_all(machine, how)
    return OK


def _is_elsewhere(machine: _Machine, told: str | None) -> bool:
    """Say whether what runs is reached otherwise than is chosen; `told`: by what it says it is."""
    return told is not None and told != machine.reached.registry


def _require_the_same(machine: _Machine, told: str | None) -> None:
    """Raise `CommandFailed` unless what runs, and was started by others, is what is wanted."""
    if told is None:
        hint = f"end it where it was started, or take another: --port {machine.chosen.port + 1}"
        text = f"{machine.place.url} is another control plane's, with a folder of its own"
        raise fail(text, hint, UNAVAILABLE)
    if _is_elsewhere(machine, told):
        text = (
            f"the control plane that runs on {machine.data} is reached by {told}, "
            f"not by {machine.reached.registry}, and `pierhead up` did not start it"
        )
        pid = holder_of(machine.data)
        kill = f", or: kill {pid}" if pid is not None else ""
        raise fail(text, f"end it where it was started{kill}; then pierhead up again", REFUSED)


def _require_address(host: str) -> None:
    """Raise `CommandFailed` for an address that was right once: it was noted, not said now."""
    try:
        can_listen_on(host)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or "it is no name"
        hint = "pierhead up --host 0.0.0.0, or another address of this machine"
        raise fail(f"cannot listen on {host[:80]}: {said}", hint, USAGE) from error


def _go_back(machine: _Machine, noted: Chosen, *, restart: bool) -> None:
    """Leave everything as it was before a start that failed."""
    service.stop(machine.service)
    _note(machine.data, noted)
    if restart:
        service.start(_Machine(machine.data, noted, _reach(noted)).service)
        tell("note       it runs again as before")


def _reach(chosen: Chosen) -> Reach:
    from pierhead.server.addresses import usual_address  # noqa: PLC0415 - of the server extra

    try:
        return reach(
            host=chosen.host,
            port=chosen.port,
            usual_address=usual_address(),
            public_url=chosen.told_url,
            behind_proxy=bool(proxy_networks(chosen.behind_proxy)),
        )
    except Refused as error:
        raise fail(str(error), error.hint, USAGE) from error


def _domain_port(domain: str, own_port: int) -> int:
    """Return where a public name can be answered: 443, or else its own port, proven on 80.

    Raises:
        CommandFailed: both are taken; what to tell the proxy that has them was said.
    """
    from pierhead.server.neighbours import listener_of, proxies_running  # noqa: PLC0415

    taken = {port: name for port in (443, 80) if (name := listener_of(port))}
    if len(taken) < 2:
        return 0 if 443 in taken else 443
    for proxy in proxies_running():
        tell_text(proxy_lines(proxy, domain, own_port))
        tell()
    hint = f"pierhead up --behind-proxy 127.0.0.1 --public-url https://{domain}"
    raise fail(f"80 and 443 are used by {taken[80]} and {taken[443]}", hint, REFUSED)


def _certificate(machine: _Machine) -> str:
    """Return how it went with the certificate of the public name, a moment after the start."""
    path = machine.data / "tls" / "domain.txt"
    until = time.monotonic() + CERTIFICATE_SECONDS  # noqa: TID251 - somebody waits in real time
    while not path.exists() and time.monotonic() < until:  # noqa: TID251
        time.sleep(0.2)
    return path.read_text().strip() if path.exists() else "asked for, not there yet"


def _would_restart(machine: _Machine, noted: Chosen) -> bool:
    if not service.is_there(machine.service):
        return False
    return machine.chosen != noted or _is_elsewhere(
        machine, asyncio.run(_told_registry(machine.place))
    )


def _tell_plan(machine: _Machine, *, restarts: bool) -> None:
    _tell_place(machine)
    if restarts:
        tell("restart    the one that runs would be stopped, and started with this")
    found = machine.service
    tell(f"service    would be {found.kind}")
    if service.has_systemd():
        tell()
        tell_text(service.unit_text(found))


def _tell_all(machine: _Machine, how: str) -> None:
    _tell_place(machine)
    if machine.chosen.domain:
        tell(f"certificate  {_certificate(machine)}")
    tell(f"service    {how}; end it: pierhead up --stop")
    config = config_folder()
    tell(f"You are the owner. Token: {config / 'token'} (mode 0600)")
    _tell_registry(machine, config)
    tell("next: pierhead add NAME --builds      let another machine build")
    give(machine.reached.url)


def _tell_registry(machine: _Machine, config: Path) -> None:
    reached = machine.reached
    if not reached.names_images:
        tell(f"registry   docker, skopeo and FROM take no name that begins with {reached.registry}")
        tell(f"           a name that leads here: pierhead up --public-url {_by_name(reached)}")
        return
    tell(f"registry   docker --config {config / 'docker'} pull {reached.registry}/...")
    if reached.own_tls and not machine.chosen.domain:
        folder = f"/etc/docker/certs.d/{reached.registry}"
        tell(f"           after: mkdir -p {folder} && cp {config / 'ca.crt'} {folder}/")


def _by_name(reached: Reach) -> str:
    scheme, port = reached.url.partition("://")[0], reached.url.rpartition(":")[2]
    return f"{scheme}://NAME:{port}"


def _tell_place(machine: _Machine) -> None:
    folder = machine.data
    while not folder.exists():
        folder = folder.parent
    status, reached = os.statvfs(folder), machine.reached
    tell(f"data       {machine.data}   {size(status.f_bavail * status.f_frsize)} free")
    tell(f"address    {reached.url}   ({_kind(machine)})")
    authority = config_folder() / "ca.crt"
    if reached.own_tls and not machine.chosen.domain and authority.exists():
        tell(f"pin        {fingerprints(authority.read_text())[0]}")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = f"{size(memory_cap())} of {size(total)} memory"
    tell(f"builder    here, at most 1 build at a time, {allowed}, lowest CPU priority")
    tell_text(f"ports      {_ports(machine)}")


def _kind(machine: _Machine) -> str:
    if machine.chosen.domain:
        return "its certificate comes by ACME"
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
    elsewhere, here = asyncio.run(_at_work(machine.place))
    if not service.stop(machine.service):
        if (pid := holder_of(machine.data)) is not None:
            text = f"`pierhead up` did not start what runs on {machine.data}, process {pid}"
            raise fail(text, f"end it where it was started, or: kill {pid}", REFUSED)
        text = f"no control plane was started by `pierhead up` on {machine.data}"
        raise fail(text, "pierhead status says what answers, and where", REFUSED)
    tell("stopped; all data stays")
    if elsewhere:
        again = "if there is a control plane again within ten minutes: pierhead up"
        tell(f"builds on other machines go on {again} ({', '.join(elsewhere)})")
    if here:
        tell(f"builds on this machine begin again then ({', '.join(here)})")
    return OK


async def _at_work(place: Place) -> tuple[list[str], list[str]]:
    """Return the builds that run on other machines, and on this one, as far as can be found out."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS), place.client() as client:
            runners = (await client.capabilities()).runners
    except (PierheadError, TimeoutError):
        return [], []
    elsewhere = [build for runner in runners if not runner.here for build in runner.builds]
    return elsewhere, [build for runner in runners if runner.here for build in runner.builds]


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


async def _told_registry(place: Place) -> str | None:
    """Return the host of references that a control plane names to its owner.

    None: whoever owns this machine's folder is not the owner there, so somebody else began it.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS), place.client() as client:
            return (await client.capabilities()).registry
    except (PierheadError, TimeoutError):
        return None


async def _answers(place: Place) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS), place.client() as client:
            await client.meta()
    except (PierheadError, TimeoutError):
        return False
    return True
