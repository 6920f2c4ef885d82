"""One attempt at a build, by buildah: the place made for it, the build in it, and its removal.

Whoever builds for real and whoever only tries what this machine can do have the same around them.
"""

import asyncio
import contextlib
import ipaddress
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pierhead.protocol.result import StopProof
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import dockerfile, isolation, programs
from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.cgroup import Cgroup
from pierhead.runner.adapters.commands import Commands, watching
from pierhead.runner.adapters.dockerfile import Translated
from pierhead.runner.adapters.entropy import new_id
from pierhead.runner.adapters.guard import NOTE
from pierhead.runner.adapters.home import Home, is_whole, mounts_below
from pierhead.runner.adapters.isolation import Room
from pierhead.runner.adapters.layout import read_layout
from pierhead.runner.adapters.relay import Relay
from pierhead.runner.adapters.shelter import open_shelter
from pierhead.runner.adapters.standing import Standing, context_changed, layers_changed
from pierhead.runner.domain import programs as rules
from pierhead.runner.domain.bases import bases_of_stages, registries_named
from pierhead.runner.domain.failure import Ending, explain, lost_builder
from pierhead.runner.domain.invocation import (
    LAST_BUILT,
    LOGIN_FILE,
    SECRETS_FOLDER,
    Store,
    build_command,
)
from pierhead.runner.domain.progress import Progress
from pierhead.runner.domain.voice import Voices
from pierhead.runner.ports import (
    Broken,
    BuilderLostError,
    BuildOrder,
    Built,
    KeepGroup,
    LogSink,
)
from pierhead.runner.removal import remove_tree

_AS_IT_IS: Final = Translated()
_SURVIVED: Final = "the memory limit ended a process, and its step went on without it"
_EXPORTER: Final = Path(__file__).parent.parent / "export" / "export.py"
# Compressed layers that are kept beside each store, so that a base image is compressed once.
BLOB_CACHE_BYTES: Final = 2 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What each build may have."""

    memory_bytes: int | None = None
    cpus: float | None = None
    disk_bytes: int | None = None  # with what its slot keeps


@dataclass(frozen=True, slots=True)
class Attempts:
    """All attempts below one folder."""

    state: Path
    ceilings: Ceilings

    async def open(self, order: BuildOrder) -> tuple[Cgroup, ipaddress.IPv4Address]:
        """Note the attempt on disk before anything is made for it; make cgroup and network.

        Return the cgroup, and this machine's address in the network.
        """
        self._marks.mkdir(parents=True, exist_ok=True)
        mark = self.home(order).folder.relative_to(self.state)
        (self._marks / order.name).write_text(str(mark))
        cgroup = cgroups.open_cgroup(
            order.name,
            memory_bytes=order.memory_bytes or self.ceilings.memory_bytes,
            cpu_weight=order.cpu_weight,
            cpus=self.ceilings.cpus,
        )
        gateway = await networks.open_network(networks.network_of(order.name))
        return cgroup, gateway

    async def build(
        self,
        order: BuildOrder,
        cgroup: Cgroup | None,
        log: LogSink,
        keep: KeepGroup,
        *,
        translated: Translated = _AS_IT_IS,
    ) -> Built | Broken:
        """Build in a cgroup and network that are there; without one, not isolated.

        `translated` stands for the context's own Dockerfile and ignore file.

        Raises:
            BuilderLostError: nothing is said about the build.
        """
        word, progress = new_id(), Progress()
        home = self.home(order)
        store, layout = home.open_store(), order.work / "layout"
        if order.secrets:
            open_shelter(store)
        with watching(cgroup) as watch:
            async with _relay(order, cgroup, log) as relay:
                hidden = _hidden(order, relay, isolated=cgroup is not None)
                command = build_command(
                    store,
                    order.plan,
                    str(order.context),
                    cgroup=cgroup.of_steps if cgroup else None,
                    dockerfile=translated.dockerfile,
                    ignore=translated.ignore,
                    login=_login(order, relay, isolated=cgroup is not None),
                )
                place = _place(order, home, cgroup, word, relay)
                standing = Standing.on(_folders(order, home, store))
                bases = bases_of_stages(dockerfile.text_of(order), order.plan.build_args)
                voices = Voices(word.encode(), bases)
                commands = Commands(order, cgroup, watch, progress, log, keep, voices, hidden)
                ending = await commands.run([*place, *command], hidden)
            if relay is not None:
                ending = replace(ending, base_refusal=relay.refusal)
            if ending.code == 0:
                ending = await commands.run(_export_command(home, store, layout))
        peak = cgroup.peak_memory() if cgroup else None
        if ending.code != 0:
            ground = _Ground(order, store, standing)
            return await _broken(ground, ending, isolated=cgroup is not None, peak=peak)
        read = await asyncio.to_thread(
            read_layout, layout, order.plan.platform, progress.cache(), peak
        )
        if isinstance(read, Broken):
            return read
        notes = [_SURVIVED] if ending.out_of_memory else []
        notes += relay.notes if relay is not None else []
        return replace(read, warnings=bounded(notes))

    async def stop(self, order: BuildOrder) -> StopProof:
        """Kill, clear away, look again."""
        began = asyncio.get_running_loop().time()
        cgroup, network = cgroups.cgroup_of(order.name), networks.network_of(order.name)
        home = self.home(order)
        await self.clear(order.name, home)
        await asyncio.to_thread(home.keep, order.context)
        await asyncio.to_thread(remove_tree, order.work)
        if self.ceilings.disk_bytes is not None:
            await home.keep_slot_below(self.ceilings.disk_bytes)
        took = asyncio.get_running_loop().time() - began
        left = [*([order.work] if order.work.exists() else []), *home.temporaries()]
        containers = await home.containers()  # before the mounts, of which it may make one
        return StopProof(
            processes=bounded(map(str, cgroup.processes())),
            mounts=bounded(mounts_below(home.folder)),
            containers=bounded(containers),
            cgroups=bounded(cgroup.leftovers()),
            directories=bounded([*map(str, left), *(await networks.leftovers(network))]),
            took_ms=int(took * 1000),
        )

    async def sweep(self) -> StopProof:
        """Clear away what earlier lives of this runner left; it holds the state folder's lock."""
        self._marks.mkdir(parents=True, exist_ok=True)
        left: list[str] = []
        for mark in sorted(self._marks.iterdir()):
            folder = self.state / mark.read_text()
            if folder.is_dir() and folder.is_relative_to(self.state):
                await self.clear(mark.name, Home(folder))
                left += cgroups.cgroup_of(mark.name).leftovers()
            else:
                mark.unlink(missing_ok=True)
        return StopProof(mounts=bounded(mounts_below(self.state)), cgroups=bounded(left))

    async def clear(self, name: str, home: Home) -> None:
        """Kill and remove everything of an attempt but its work folder, and forget it."""
        await _empty(cgroups.cgroup_of(name))
        await home.clear()
        if shutil.which("ip") and os.geteuid() == 0:
            await networks.close_network(networks.network_of(name))
        for folder in home.temporaries():
            await asyncio.to_thread(remove_tree, folder)
        if not cgroups.cgroup_of(name).leftovers():  # or the next life tries again
            (self._marks / name).unlink(missing_ok=True)

    def home(self, order: BuildOrder) -> Home:
        """Return where everything lies that outlives a build."""
        # A project's name has slashes, but no plus and no tilde: no two of them share a folder.
        trust = "~previews" if order.preview else ""
        name = order.project.replace("/", "+") + trust
        return Home(self.state / f"slot-{order.slot}" / name)

    @property
    def _marks(self) -> Path:
        return self.state / "attempts"


@dataclass(frozen=True, slots=True)
class _Ground:
    """What an attempt stands on."""

    order: BuildOrder
    store: Store
    standing: Standing

    def is_there(self, *, begun: bool) -> bool:
        """Say whether it is all there; `begun`: a step was."""
        return self.standing.holds() and is_whole(self.store, begun=begun)

    def was_changed(self, exit_code: int | None) -> bool:
        """Say whether something of it was taken away while a step ran; none: its code.

        What fails by itself, and no step's command, may have come after a new layer.
        """
        notes = _notes(self.order)
        if context_changed(self.order.context, notes / isolation.BEGAN):
            return True
        return exit_code is not None and layers_changed(self.store, notes / NOTE)


async def _broken(ground: _Ground, ending: Ending, *, isolated: bool, peak: int | None) -> Broken:
    """Say why buildah failed.

    Raises:
        BuilderLostError: that is no fault of the build.
    """
    gone = rules.missing(programs.seen(), programs.wanted() if isolated else ("buildah",))
    if gone:
        raise BuilderLostError(gone[0])
    if not ground.is_there(begun=ending.progress.steps > 1):
        raise BuilderLostError("the runner's folder was removed under the build")
    order = ground.order
    known = replace(
        ending,
        peak_bytes=peak,
        dockerfile=dockerfile.text_of(order),
        dockerfile_name=dockerfile.name_of(order),
        context=str(order.context),
        witness=isolation.witness_of(_notes(order)) if isolated else None,
    )
    if (lost := lost_builder(known)) is not None:
        raise BuilderLostError(lost)
    failure = explain(known)
    blamed = isolated and failure.fault == "build"
    if blamed and await asyncio.to_thread(ground.was_changed, failure.exit_code):
        raise BuilderLostError("files of the runner were removed under the build")
    return Broken(failure=failure, cache=ending.progress.cache(), peak_memory_bytes=peak)


def _folders(order: BuildOrder, home: Home, store: Store) -> list[Path]:
    return [order.work, order.context, _notes(order), home.folder, home.temporary, Path(store.root)]


@contextlib.asynccontextmanager
async def _relay(
    order: BuildOrder, cgroup: Cgroup | None, log: LogSink
) -> AsyncIterator[Relay | None]:
    """Let buildah find its base images where the order says; none: where their names say."""
    if order.bases is None:
        yield None
        return
    hosts = registries_named(dockerfile.text_of(order), order.plan.build_args)
    namespace = networks.network_of(order.name).path if cgroup else None
    async with Relay(order.bases, hosts, log).listening(namespace) as relay:
        yield relay


def _place(
    order: BuildOrder, home: Home, cgroup: Cgroup | None, word: str, relay: Relay | None
) -> list[str]:
    """Return what stands before buildah."""
    if cgroup is not None:
        return _enter(order, home, cgroup, word, relay)
    if relay is None:
        return isolation.own_processes()
    return isolation.own_processes(isolation.registries_file(order.work, relay.conf))


def _enter(
    order: BuildOrder, home: Home, cgroup: Cgroup, word: str, relay: Relay | None
) -> list[str]:
    room = Room(
        folder=home.folder / "room",
        temporary=home.temporary,
        store=home.store,
        work=order.work,
        context=order.context,
        notes=_notes(order),
        word=word,
        secrets=bool(order.secrets) or relay is not None,
        registries=relay.conf if relay is not None else "",
    )
    for folder in (room.folder, room.temporary, room.notes):
        folder.mkdir(parents=True, exist_ok=True)
    (room.notes / isolation.BEGAN).touch()
    return isolation.enter(networks.network_of(order.name).path, room, cgroup)


def _export_command(home: Home, store: Store, layout: Path) -> list[str]:
    """Return the call that writes the image as an OCI layout: only then it has a digest."""
    # A store of an ordinary user belongs to many users; only they can read all of it.
    place = [] if os.geteuid() == 0 else ["buildah", "unshare"]
    python = [sys.executable, "-I", "-S", str(_EXPORTER)]
    what = [store.root, LAST_BUILT, str(layout), str(home.blobs), str(BLOB_CACHE_BYTES)]
    return [*place, *python, *what]


def _notes(order: BuildOrder) -> Path:
    """Return where those who stand between buildah and a step write, and no step sees anything."""
    return order.work / "notes"


def _hidden(order: BuildOrder, relay: Relay | None, *, isolated: bool) -> dict[str, bytes]:
    """Return what only buildah sees, and nobody in the log."""
    login = {LOGIN_FILE: relay.login} if relay is not None and isolated else {}
    return {**order.secrets, **login}


def _login(order: BuildOrder, relay: Relay | None, *, isolated: bool) -> str | None:
    """Return where buildah finds what lets it in to the relay."""
    if relay is None:
        return None
    if isolated:
        return f"{SECRETS_FOLDER}/{LOGIN_FILE}"
    file = order.work / LOGIN_FILE
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(relay.login)
    return str(file)


async def _empty(cgroup: Cgroup) -> None:
    """Kill everything in a cgroup, and remove it."""
    for _ in range(50):
        alive = cgroup.processes()
        if not alive:
            break
        await asyncio.to_thread(cgroup.thaw)
        for pid in alive:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        await asyncio.sleep(0.02)
    await cgroup.remove()


def bounded(found: Iterable[str]) -> tuple[str, ...]:
    """Return texts that a document may have: few enough, and short enough."""
    return tuple(text[:1000] for text in found)[:64]
