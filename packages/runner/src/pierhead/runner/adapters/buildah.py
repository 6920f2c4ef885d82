"""The buildah backend: always there on Debian, needs no daemon.

As root, every build has its own process, mount and network namespace, its own root and its own
cgroup; each step runs in a container of runc inside them. As another user, or where one of these
cannot be had, a build is not isolated, and `probe` says so.

After any kill, buildah leaves a working container with its mount. Each slot has a store of its own,
so that clearing it away cannot touch another build, and within it each project: what one has built
or cached is not there for another.
"""

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import re
import shutil
import sys
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from pierhead.protocol.image import read_image
from pierhead.protocol.plan import Plan
from pierhead.protocol.platform import normalise_platform
from pierhead.protocol.redact import Patterns, Redactor
from pierhead.protocol.result import Failure, StopProof
from pierhead.protocol.runner import Capabilities
from pierhead.protocol.version import RELEASE
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import isolation
from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.cgroup import PIDS_MAX, Cgroup, MemoryWatch
from pierhead.runner.adapters.entropy import new_id
from pierhead.runner.adapters.isolation import Room
from pierhead.runner.adapters.probe import Note, reaches_us, write_context
from pierhead.runner.adapters.process import kill_group, run, start_in
from pierhead.runner.adapters.relay import Relay
from pierhead.runner.adapters.room import DETACH, unmount
from pierhead.runner.adapters.shelter import close_shelter, open_shelter
from pierhead.runner.adapters.workspace import disk_of
from pierhead.runner.domain import probe as probes
from pierhead.runner.domain.bases import registries_named
from pierhead.runner.domain.failure import Disk, Ending, explain, lost_builder
from pierhead.runner.domain.invocation import (
    LAST_BUILT,
    LOGIN_FILE,
    SECRETS_FOLDER,
    Store,
    build_command,
    refusal,
)
from pierhead.runner.domain.probe import Check
from pierhead.runner.domain.progress import Progress
from pierhead.runner.domain.secretenv import with_secret_files
from pierhead.runner.domain.voice import Voices
from pierhead.runner.ports import (
    Broken,
    BuilderLostError,
    BuildOrder,
    Built,
    Group,
    KeepGroup,
    LogSink,
)
from pierhead.runner.removal import remove_tree

_READ_BYTES: Final = 64 * 1024
_MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
_DOCKERFILE_BYTES_MAX: Final = 1024 * 1024
# Over two reads, too: these are the words by which domain/failure.py asks for the disk.
_FULL: Final = re.compile(rb"no space left on device|disk quota exceeded", re.IGNORECASE)
_FULL_BYTES: Final = 32
_SURVIVED: Final = "the memory limit ended a process, and its step went on without it"
_PROBES: Final = 3
_PROBE_SECONDS: Final = 60
# A disk that takes 1 GB a second is stopped from 512 MiB to some 400.
LOOK_SECONDS: Final = 0.1
NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})
_EXPORTER: Final = Path(__file__).parent.parent / "export" / "export.py"
# Compressed layers that are kept beside each store, so that a base image is compressed once.
BLOB_CACHE_BYTES: Final = 2 * 1024**3


class BuildahBackend:
    """Builds with buildah below one folder."""

    def __init__(
        self,
        state: Path,
        *,
        slots: int,
        memory_bytes: int | None,
        cpus: float | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        self._state = state.absolute()
        # Networks and cgroups are the machine's: two runners on it must not try the same ones.
        self._probe = f"probe-{zlib.crc32(bytes(self._state)):08x}.0"
        self._slots = slots
        # Ceilings of each build.
        self._memory_bytes = memory_bytes
        self._cpus = cpus
        self._disk_bytes = disk_bytes
        self._probing = asyncio.Lock()
        self._lacking: list[str] | None = None
        self._note = Note(self._state)

    async def probe(self) -> Capabilities:
        """Say what this machine can do, by doing it once; no slots where nothing can be built."""
        version = await run("buildah", "--version")
        usable = version.code == 0
        name = " ".join(version.output.split()[:3]).replace(" version", "") if usable else "none"
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits = {} if usable else {"backend": "buildah is not installed"}
        self._lacking = self._lacking or None  # what is said to be amiss is tried again
        if lacking := await self._lacks():
            limits["isolation"] = ", ".join(lacking)[:1000]
            tried = await self._try_plainly() if usable else None
            if tried is not None and tried.remedy:
                usable, limits["backend"] = False, tried.text
        elif isolation.resolvers() is None:
            limits["dns"] = "no name server that a build can reach: the machine names only loopback"
        machine = os.uname()
        return Capabilities(
            platforms=(normalise_platform(machine.sysname, machine.machine),),
            backend=name,
            isolation="none" if lacking else "full",
            networks=("default",) if lacking else ("default", "none"),
            cpus=min(os.cpu_count() or 1, math.ceil(self._cpus or sys.maxsize)),
            disk_free_bytes=shutil.disk_usage(self._state).free,
            memory_bytes=min(memory, self._memory_bytes or memory),
            total_memory_bytes=memory,
            slots=self._slots if usable else 0,
            limits=limits,
            release=RELEASE,
        )

    async def lend(self, order: BuildOrder) -> None:
        """Move the context that the project's last build left to where this one's will be."""
        with contextlib.suppress(FileNotFoundError):
            (self._home(order) / "context").rename(order.context)

    async def build(self, order: BuildOrder, log: LogSink, keep: KeepGroup) -> Built | Broken:
        """Build in the order's slot, and export the image as an OCI layout."""
        progress = Progress()
        refused = refusal(order.plan) or _dockerfile_problem(order)
        translated = refused or _translated(order)
        if isinstance(translated, Failure):
            return Broken(failure=translated, cache=progress.cache(), peak_memory_bytes=None)
        isolated = not await self._lacks()
        if order.secrets and not isolated:
            unsafe = Failure(cause="secret", message="this runner cannot keep secrets safe")
            return Broken(failure=unsafe, cache=progress.cache(), peak_memory_bytes=None)
        cgroup = (await self._open(order))[0] if isolated else None
        try:
            found = await self._build(order, cgroup, translated, progress, log, keep)
        except BuilderLostError:
            self._note.forget()
            raise
        if isinstance(found, Broken) and found.failure.cause == "runner":
            self._note.forget()
        return found

    async def _build(
        self,
        order: BuildOrder,
        cgroup: Cgroup | None,
        translated: str | None,
        progress: Progress,
        log: LogSink,
        keep: KeepGroup,
    ) -> Built | Broken:
        """Build in a cgroup and network that are there; without one, not isolated."""
        word = new_id()
        store, layout = _store(self._home(order)), order.work / "layout"
        if order.secrets:
            open_shelter(store)
        with _watching(cgroup) as watch:
            async with self._relay(order, cgroup, log) as relay:
                hidden = _hidden(order, relay, isolated=cgroup is not None)
                command = build_command(
                    store,
                    order.plan,
                    str(order.context),
                    cgroup=cgroup.of_steps if cgroup else None,
                    dockerfile=translated,
                    login=_login(order, relay, isolated=cgroup is not None),
                )
                place = self._place(order, cgroup, word, relay)
                voices = Voices(word.encode())
                job = _Job(order, cgroup, watch, progress, log, keep, voices, hidden)
                ending = await job.run([*place, *command], hidden)
            if relay is not None:
                ending = replace(ending, base_refusal=relay.refusal)
            if ending.code == 0:
                ending = await job.run(self._export_command(order, store, layout))
        peak = cgroup.peak_memory() if cgroup else None
        if ending.code != 0 and not _has_ground(order, store):
            # Whatever buildah makes of that: it is no fault of the build.
            raise BuilderLostError("the runner's folder was removed under the build")
        if ending.code != 0:
            known = replace(ending, peak_bytes=peak, dockerfile=_dockerfile(order))
            known = replace(known, dockerfile_name=_called(order), context=str(order.context))
            if cgroup is not None:
                known = replace(known, witness=isolation.witness_of(_notes(order)))
            if lost_builder(known):
                raise BuilderLostError(f"buildah ended with code {ending.code} without a word")
            failure = explain(known)
            return Broken(failure=failure, cache=progress.cache(), peak_memory_bytes=peak)
        read = await asyncio.to_thread(_read_layout, order, progress, peak)
        if isinstance(read, Built):
            notes = [_SURVIVED] if ending.out_of_memory else []
            notes += relay.notes if relay is not None else []
            return replace(read, warnings=_texts(notes))
        return read

    @contextlib.asynccontextmanager
    async def _relay(
        self, order: BuildOrder, cgroup: Cgroup | None, log: LogSink
    ) -> AsyncIterator[Relay | None]:
        """Let buildah find its base images where the order says; none: where their names say."""
        if order.bases is None:
            yield None
            return
        hosts = registries_named(_dockerfile(order), order.plan.build_args)
        namespace = networks.network_of(order.name).path if cgroup else None
        async with Relay(order.bases, hosts, log).listening(namespace) as relay:
            yield relay

    def _place(
        self, order: BuildOrder, cgroup: Cgroup | None, word: str, relay: Relay | None
    ) -> list[str]:
        """Return what stands before buildah."""
        if cgroup is not None:
            return self._enter(order, cgroup, word, relay)
        if relay is None:
            return isolation.own_processes()
        return isolation.own_processes(isolation.registries_file(order.work, relay.conf))

    def _export_command(self, order: BuildOrder, store: Store, layout: Path) -> list[str]:
        """Return the call that writes the image as an OCI layout: only then it has a digest."""
        # A store of an ordinary user belongs to many users; only they can read all of it.
        place = [] if os.geteuid() == 0 else ["buildah", "unshare"]
        python = [sys.executable, "-I", "-S", str(_EXPORTER)]
        blobs = self._home(order) / "blobs"
        what = [store.root, LAST_BUILT, str(layout), str(blobs), str(BLOB_CACHE_BYTES)]
        return [*place, *python, *what]

    async def stop(self, order: BuildOrder) -> StopProof:
        """Kill, clear away, look again."""
        began = asyncio.get_running_loop().time()
        cgroup = cgroups.cgroup_of(order.name)
        network = networks.network_of(order.name)
        home = self._home(order)
        await self._clear(order.name, home)
        await asyncio.to_thread(_keep_context, order.context, home / "context")
        await asyncio.to_thread(remove_tree, order.work)
        await self._keep_ceiling(home)
        took = asyncio.get_running_loop().time() - began
        return StopProof(
            processes=_texts(map(str, cgroup.processes())),
            mounts=_texts(_mounts_below(home)),
            containers=await _containers(home),
            cgroups=_texts(cgroup.leftovers()),
            directories=_texts(
                [
                    *([str(order.work)] if order.work.exists() else []),
                    *map(str, _temporaries(home)),
                    *(await networks.leftovers(network)),
                ]
            ),
            took_ms=int(took * 1000),
        )

    async def sweep(self) -> StopProof:
        """Clear away what earlier lives of this runner left; it holds the state folder's lock."""
        marked = self._state / "attempts"
        marked.mkdir(parents=True, exist_ok=True)
        left: list[str] = []
        for mark in sorted(marked.iterdir()):
            home = self._state / mark.read_text()
            if home.is_dir() and home.is_relative_to(self._state):
                await self._clear(mark.name, home)
                left += cgroups.cgroup_of(mark.name).leftovers()
            else:
                mark.unlink(missing_ok=True)
        return StopProof(mounts=_texts(_mounts_below(self._state)), cgroups=_texts(left))

    async def examine(self) -> list[Check]:
        """Try all that builds are promised, now, and say how each went."""
        missing = isolation.missing_programs()
        if missing:
            return [await self._try_plainly()]
        return await self._try_isolation()

    async def _lacks(self) -> list[str]:
        """Return what keeps builds from being isolated; tried once."""
        async with self._probing:
            if self._lacking is None:
                self._lacking = isolation.missing_programs()
                if not self._lacking and not await self._note.is_good():
                    self._lacking = await self._try_repeatedly()
            return self._lacking

    async def _try_repeatedly(self) -> list[str]:
        """A fault that passes must not cost the isolation of all builds to come."""
        lacking: list[str] = []
        for attempt in range(_PROBES):
            await asyncio.sleep(attempt)
            lacking = probes.lacks(await self._try_isolation())
            if not lacking:
                await self._note.write()
                break
        return lacking

    async def _try_isolation(self) -> list[Check]:
        """Let a tiny build look around, with everything that stands around a build."""
        if not cgroups.available():
            return [probes.failed("there are no cgroups with memory, pids and cpu")]
        order, output = await self._tiny(), bytearray()
        try:
            cgroup, gateway = await self._open(order)
            network, progress = networks.network_of(order.name), Progress()
            link = await networks.number_of(network)
            ended, reached = await asyncio.gather(
                self._build(order, cgroup, None, progress, output.extend, _nobody),
                reaches_us(network, gateway),
            )
            around = probes.Around(
                link=link,
                reached=reached,
                memory_bytes=cgroup.memory_limit(),
                processes=cgroup.processes_limit(),
                processes_wanted=PIDS_MAX,
                steps_peak_bytes=cgroup.peak_memory_of_steps(),
            )
        except (OSError, RuntimeError, BuilderLostError) as error:
            return [probes.failed(f"{error} {output.decode('utf-8', 'replace')}")]
        finally:
            await self._clear_tiny(order)
        said = output.decode("utf-8", "replace")
        if isinstance(ended, Broken):
            return [probes.failed(_words(ended))]
        return [probes.built(said), *probes.isolated(said, around)]

    async def _try_plainly(self) -> Check:
        """Let the same build run on a machine that does not isolate."""
        order, output = await self._tiny(), bytearray()
        try:
            ended = await self._build(order, None, None, Progress(), output.extend, _nobody)
        except (OSError, RuntimeError, BuilderLostError) as error:
            return probes.failed(f"{error} {output.decode('utf-8', 'replace')}")
        finally:
            await self._clear_tiny(order)
        if isinstance(ended, Broken):
            return probes.failed(_words(ended))
        return probes.built(output.decode("utf-8", "replace"))

    async def _tiny(self) -> BuildOrder:
        """Return the order of the tiny build, with its context."""
        work = self._state / "probe"
        await write_context(work / "context")
        return BuildOrder(
            name=self._probe,
            slot=0,
            project=self._probe,
            context=work / "context",
            work=work,
            plan=Plan(timeout_seconds=_PROBE_SECONDS),
            memory_bytes=probes.MEMORY_BYTES,
        )

    async def _clear_tiny(self, order: BuildOrder) -> None:
        home = self._home(order)
        await self._clear(order.name, home)
        for folder in (home, order.work):
            await asyncio.to_thread(remove_tree, folder)

    async def _open(self, order: BuildOrder) -> tuple[Cgroup, ipaddress.IPv4Address]:
        """Note the attempt on disk before anything is made for it; make cgroup and network.

        Return the cgroup, and this machine's address in the network.
        """
        marked = self._state / "attempts"
        marked.mkdir(parents=True, exist_ok=True)
        (marked / order.name).write_text(str(self._home(order).relative_to(self._state)))
        memory = order.memory_bytes or self._memory_bytes
        cgroup = cgroups.open_cgroup(
            order.name, memory_bytes=memory, cpu_weight=order.cpu_weight, cpus=self._cpus
        )
        gateway = await networks.open_network(networks.network_of(order.name))
        return cgroup, gateway

    def _enter(
        self, order: BuildOrder, cgroup: Cgroup, word: str, relay: Relay | None = None
    ) -> list[str]:
        home = self._home(order)
        room = Room(
            folder=home / "room",
            temporary=home / "tmp",
            store=_store(home),
            work=order.work,
            context=order.context,
            notes=_notes(order),
            word=word,
            secrets=bool(order.secrets) or relay is not None,
            registries=relay.conf if relay is not None else "",
        )
        for folder in (room.folder, room.temporary, room.notes):
            folder.mkdir(parents=True, exist_ok=True)
        return isolation.enter(networks.network_of(order.name).path, room, cgroup)

    async def _clear(self, name: str, home: Path) -> None:
        """Kill and remove everything of an attempt but its work folder, and forget it."""
        await _empty(cgroups.cgroup_of(name))
        await _clear_store(_store(home))
        if shutil.which("ip") and os.geteuid() == 0:
            await networks.close_network(networks.network_of(name))
        for folder in _temporaries(home):
            await asyncio.to_thread(remove_tree, folder)
        if not cgroups.cgroup_of(name).leftovers():  # or the next life tries again
            (self._state / "attempts" / name).unlink(missing_ok=True)

    def _home(self, order: BuildOrder) -> Path:
        """Return where everything lies that outlives a build: never shared by two projects."""
        # A project's name has slashes, but no plus and no tilde: no two of them share a folder.
        trust = "~previews" if order.preview else ""
        return self._state / f"slot-{order.slot}" / (order.project.replace("/", "+") + trust)

    async def _keep_ceiling(self, home: Path) -> None:
        """Empty the caches of a slot that has outgrown its share of the disk: others' first."""
        slot, store = home.parent, _store(home)
        if self._disk_bytes is None:
            return
        for folder in sorted(slot.iterdir(), key=lambda folder: folder.stat().st_mtime):
            if await _used_bytes(slot) <= self._disk_bytes:
                return
            if folder != home:
                await asyncio.to_thread(remove_tree, folder)
        if await _used_bytes(slot) <= self._disk_bytes:
            return
        await run(*store.buildah("rmi", "-a", "-f"), seconds=60)
        for rest in (home / "tmp", home / "context"):
            await asyncio.to_thread(remove_tree, rest)


def _keep_context(context: Path, kept: Path) -> None:
    """Keep a context for the next build, which compares it; unless the disk has no room for it."""
    if not context.is_dir():
        return  # it ended before its context came: what is kept is still the last one
    remove_tree(kept)
    if not disk_of(kept.parent).is_low:
        with contextlib.suppress(OSError):  # whatever went wrong, the next one comes whole
            context.rename(kept)


def _notes(order: BuildOrder) -> Path:
    """Return where those who stand between buildah and a step write, and no step sees anything."""
    return order.work / "notes"


def _has_ground(order: BuildOrder, store: Store) -> bool:
    """Say whether what a build stands on is still there."""
    return order.context.is_dir() and Path(store.root).is_dir()


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


def _store(home: Path) -> Store:
    store = Store.below(str(home))
    for place in (store.root, store.run, store.runtime):
        Path(place).mkdir(parents=True, exist_ok=True)
    Path(store.ignore).touch()
    return store


async def _clear_store(store: Store) -> None:
    """Remove working containers with their mounts; images, which are the cache, stay."""
    if _has_content(store):
        await run(*store.buildah("rm", "-a"), seconds=60)
    for container in _children(Path(store.runtime)):
        await run("runc", "--root", store.runtime, "delete", "-f", container)
    await asyncio.to_thread(close_shelter, store)
    await asyncio.to_thread(_release_mounts, Path(store.root))


async def _containers(home: Path) -> tuple[str, ...]:
    store = _store(home)
    if not _has_content(store):
        return ()
    listed = await run(*store.buildah("containers", "-q"))
    return _texts(listed.output.split() if listed.code == 0 else [listed.output.strip()])


def _temporaries(home: Path) -> list[Path]:
    """Return buildah's temporary folders; what `RUN --mount=type=cache` keeps is not one."""
    found = (home / "tmp").glob("buildah*")
    return sorted(path for path in found if not path.name.startswith("buildah-cache"))


@contextlib.contextmanager
def _watching(cgroup: Cgroup | None) -> Iterator[MemoryWatch | None]:
    watch = MemoryWatch(cgroup) if cgroup else None
    try:
        yield watch
    finally:
        if watch is not None:
            watch.close()


class _Job:
    """The processes of one build, one after the other."""

    def __init__(
        self,
        order: BuildOrder,
        cgroup: Cgroup | None,
        watch: MemoryWatch | None,
        progress: Progress,
        log: LogSink,
        keep: KeepGroup,
        voices: Voices,
        hidden: Mapping[str, bytes],
    ) -> None:
        self._order = order
        self._voices = voices
        self._cgroup = cgroup
        self._watch = watch
        self._progress = progress
        self._log = log
        self._keep = keep
        self._disk: Disk | None = None
        self._floor: int | None = None
        self._crowded = False
        self._patterns = Patterns(hidden.values())
        self._until = asyncio.get_running_loop().time() + order.plan.timeout_seconds

    async def run(self, command: list[str], secrets: Mapping[str, bytes] = NOTHING) -> Ending:
        """Run a command to its end, or kill its group when the time or the task is over."""
        entrances = self._cgroup.entrances if self._cgroup else ()
        process = await start_in(entrances, command, has_input=bool(secrets))
        folders = self._cgroup.places if self._cgroup else ()
        group = Group(name=self._order.name, pid=process.pid, cgroups=tuple(map(str, folders)))
        self._keep(group)
        watching = asyncio.create_task(self._look(process.pid))
        timed_out = None
        try:
            async with asyncio.timeout_at(self._until):
                await asyncio.gather(_give(process, secrets), self._read(process))
                await process.wait()
        except TimeoutError:
            timed_out = self._order.plan.timeout_seconds
        finally:
            watching.cancel()
            if process.returncode is None:
                kill_group(process.pid)
                await asyncio.shield(process.wait())
        assert process.returncode is not None
        self._progress.finish()
        return Ending(
            code=process.returncode,
            progress=self._progress,
            out_of_memory=self._watch is not None and self._watch.stopped_something(),
            memory_bytes=self._order.memory_bytes,
            timed_out_seconds=timed_out,
            disk=self._disk,
            disk_floor_bytes=self._floor,
            processes_max=PIDS_MAX if self._was_crowded() else None,
        )

    def _was_crowded(self) -> bool:
        if self._cgroup is not None and self._cgroup.is_crowded():
            self._crowded = True
        return self._crowded

    async def _look(self, pid: int) -> None:
        """Stop the command before it has the whole disk: the router's database may be on it."""
        while True:
            try:
                disk = disk_of(self._order.work)
            except FileNotFoundError:
                kill_group(pid)  # somebody removed the folder: nothing can come of it
                return
            if disk.is_low:
                self._disk, self._floor = disk, disk.kept_bytes
                kill_group(pid)
                return
            self._was_crowded()
            await asyncio.sleep(LOOK_SECONDS)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        redactor, before = Redactor(self._patterns), b""
        while data := await process.stdout.read(_READ_BYTES):
            self._take(redactor.feed(self._voices.feed(data)))
            if _FULL.search(before + data) and self._floor is None:
                # Looked at now: what filled the disk is removed as soon as the step has failed.
                self._disk = disk_of(self._order.work)
            before = data[-_FULL_BYTES:]
        self._take(redactor.feed(self._voices.finish()))
        self._take(redactor.finish())

    def _take(self, data: bytes) -> None:
        self._progress.feed(data)
        self._log(data)


async def _give(process: asyncio.subprocess.Process, secrets: Mapping[str, bytes]) -> None:
    """Write secrets to the command's input: never to its command line or environment."""
    if process.stdin is None:
        return
    with contextlib.suppress(ConnectionError):  # it ended before it read; its output says why
        process.stdin.write(msgspec.json.encode(secrets))
        await process.stdin.drain()
    process.stdin.close()


def _nobody(_: Group) -> None:
    """A tiny build has no lease: its time is all that ends it."""


def _words(broken: Broken) -> str:
    failure = broken.failure
    said = [failure.message, failure.detail or "", *failure.extract[-3:]]
    return "; ".join(filter(None, said))


def _dockerfile_problem(order: BuildOrder) -> Failure | None:
    """Say why the plan cannot be followed, before anything is started."""
    name = order.plan.dockerfile
    root = order.context.resolve()
    try:
        file = (root / name).resolve(strict=True)
    except (OSError, RuntimeError):  # of links that go round: RuntimeError before Python 3.13
        if os.path.islink(root / name):
            message = f"{name} is a link that leads to no file of the context"
            return Failure(cause="dockerfile", message=message)
        hint = "name it: pierhead build -f PATH"
        return Failure(cause="dockerfile", message=f"there is no {name} in the context", hint=hint)
    if not file.is_relative_to(root) or not file.is_file():
        return Failure(cause="dockerfile", message=f"{name} is not a file of the context")
    return None


def _called(order: BuildOrder) -> str:
    """Return what people call the Dockerfile."""
    return order.plan.dockerfile_named or order.plan.dockerfile


def _dockerfile(order: BuildOrder) -> str:
    """Return its text; it was there when the build began."""
    try:
        with (order.context / order.plan.dockerfile).open("rb") as file:
            return file.read(_DOCKERFILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def _translated(order: BuildOrder) -> str | Failure | None:
    """Write a Dockerfile that buildah understands; none: the context's own is one."""
    text = _dockerfile(order)
    try:
        said = with_secret_files(text)
    except ValueError as error:
        name = _called(order)
        hint = "write the command without brackets, or read the secret from its file"
        return Failure(cause="dockerfile", message=f"{name}, {error}", hint=hint)
    if said == text:
        return None
    file = order.work / "Dockerfile"
    file.write_text(said)
    return str(file)


def _read_layout(order: BuildOrder, progress: Progress, peak: int | None) -> Built | Broken:
    layout = order.work / "layout"
    try:
        index = _small(layout / "index.json")
        digest = _first_digest(index)
        manifest = _small(_blob(layout, digest))
        image = read_image(manifest, _small(_blob(layout, _config_digest(manifest))))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        failure = Failure(cause="runner", message=f"the exported image is broken: {error}"[:1000])
        return Broken(failure=failure, cache=progress.cache(), peak_memory_bytes=peak)
    found, wanted = image.platform.platform, order.plan.platform
    machine = os.uname()
    own = normalise_platform(machine.sysname, machine.machine)
    if found != (wanted or own):
        # buildah takes a base of any architecture and does not say so.
        message = f"the base image is for {found}, not for {wanted or own}"
        failure = Failure(cause="platform", message=message)
        return Broken(failure=failure, cache=progress.cache(), peak_memory_bytes=peak)
    return Built(layout=layout, image=image, cache=progress.cache(), peak_memory_bytes=peak)


def _small(file: Path) -> bytes:
    if file.stat().st_size > _MANIFEST_BYTES_MAX:
        raise ValueError(f"{file.name} is too large for a document")
    return file.read_bytes()


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/", 1)


def _first_digest(index: bytes) -> str:
    return str(json.loads(index)["manifests"][0]["digest"])


def _config_digest(manifest: bytes) -> str:
    return str(json.loads(manifest)["config"]["digest"])


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


async def _used_bytes(folder: Path) -> int:
    """Return how much of the disk a folder takes, holes not counted; however deep it is."""
    counted = await run("du", "--summarize", "--block-size=1", "--", str(folder), seconds=600)
    size = counted.output.splitlines()[-1].split()[0] if counted.output.strip() else ""
    return int(size) if size.isdigit() else 0


def _has_content(store: Store) -> bool:
    return Path(store.root, "overlay").exists()


def _release_mounts(folder: Path) -> None:
    """Detach what is mounted below a folder, the innermost first.

    While buildah works, its store is mounted onto itself. When it gives up in between (its disk is
    full, say), the mount stays. What cannot be released is told by the next look.
    """
    for point in reversed(_mounts_below(folder)):
        with contextlib.suppress(OSError):
            unmount(point, DETACH)


def _mounts_below(folder: Path) -> list[str]:
    """Return the mount points below a folder, as this process sees them, outermost first."""
    below = f"{folder}/"
    with open("/proc/self/mounts", "rb") as mounts:
        points = [_unescape(line.split(b" ")[1]) for line in mounts]
    return [point for point in points if point.startswith(below)]


def _unescape(point: bytes) -> str:
    """Undo the octal form that getmntent(3) describes, which blanks and backslashes have."""
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), point)
    return os.fsdecode(plain)


def _children(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir()) if folder.is_dir() else []


def _texts(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(text[:1000] for text in found)[:64]
