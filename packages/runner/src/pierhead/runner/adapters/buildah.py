"""The buildah backend: always there on Debian, needs no daemon.

As root, every build has its own process, mount and network namespace and its own cgroup; each step
runs in a container of runc inside them. `unshare --kill-child` makes the end certain: when its
process is killed, the kernel kills everything in the process namespace, whatever it ignores and
whichever session it went to. As another user, or without runc, ip or iptables, a build is not
isolated, and `probe` says so.

After any kill, buildah leaves a working container with its mount. Each slot has a store of its own,
so that clearing it away cannot touch another build.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pierhead.protocol.platform import normalise_platform
from pierhead.protocol.result import Failure, StopProof
from pierhead.protocol.runner import Capabilities
from pierhead.protocol.version import RELEASE
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.cgroup import Cgroup
from pierhead.runner.adapters.process import kill_group, run, start_in
from pierhead.runner.domain.failure import Ending, explain
from pierhead.runner.domain.image import read_image
from pierhead.runner.domain.invocation import Store, build_command, export_command
from pierhead.runner.domain.progress import Progress
from pierhead.runner.ports import Broken, BuildOrder, Built, Group, KeepGroup, LogSink

_READ_BYTES: Final = 64 * 1024
_NEEDED_FOR_ISOLATION: Final = ("runc", "ip", "iptables", "nsenter", "unshare")
_MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024


class BuildahBackend:
    """Builds with buildah below one folder."""

    def __init__(self, state: Path, *, slots: int, memory_bytes: int | None) -> None:
        self._state = state
        self._slots = slots
        self._memory_bytes = memory_bytes
        self._ignore = state / "empty-ignore-file"
        self._isolated = _can_isolate()

    async def probe(self) -> Capabilities:
        """Say what this machine can do; no slots without buildah."""
        version = await run("buildah", "--version")
        usable = version.code == 0
        name = " ".join(version.output.split()[:3]).replace(" version", "") if usable else "none"
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits = {} if usable else {"backend": "buildah is not installed"}
        if not self._isolated:
            limits["isolation"] = ", ".join(missing_for_isolation())[:1000]
        machine = os.uname()
        return Capabilities(
            platforms=(normalise_platform(machine.sysname, machine.machine),),
            backend=name,
            isolation="full" if self._isolated else "none",
            networks=("default", "none") if self._isolated else ("default",),
            cpus=os.cpu_count() or 1,
            memory_bytes=min(memory, self._memory_bytes or memory),
            slots=self._slots if usable else 0,
            limits=limits,
            release=RELEASE,
        )

    async def build(self, order: BuildOrder, log: LogSink, keep: KeepGroup) -> Built | Broken:
        """Build in the order's slot, and export the image as an OCI layout."""
        progress = Progress()
        refused = _dockerfile_problem(order)
        if refused is not None:
            return Broken(failure=refused, cache=progress.cache(), peak_memory_bytes=None)
        self._ignore.touch()
        cgroup = self._open_cgroup(order)
        store, layout = self._store(order.slot), order.work / "layout"
        network = None
        if self._isolated:
            connected = order.plan.network == "default"
            network = networks.network_for(order.name, connected=connected)
            await networks.open_network(network)
        parent = cgroup.parent if cgroup else None
        command = build_command(
            store, order.plan, order.context, cgroup=parent, ignore=self._ignore
        )
        enter = ["nsenter", f"--net={network.path}"] if network else []
        job = _Job(order, cgroup, progress, log, keep)
        ending = await job.run([*enter, *_own_processes(), *command])
        if ending.code == 0:
            ending = await job.run([*_own_processes(), *export_command(store, layout)])
        peak = cgroup.peak_memory() if cgroup else None
        if ending.code != 0:
            return Broken(failure=explain(ending), cache=progress.cache(), peak_memory_bytes=peak)
        return await asyncio.to_thread(_read_layout, order, progress, peak)

    async def stop(self, order: BuildOrder) -> StopProof:
        """Kill, clear away, look again."""
        began = asyncio.get_running_loop().time()
        cgroup = cgroups.cgroup_of(order.name)
        await _empty(cgroup)
        await self._clear_store(order.slot)
        network = networks.network_for(order.name, connected=order.plan.network == "default")
        if self._isolated:
            await networks.close_network(network)
        await asyncio.to_thread(shutil.rmtree, order.work, ignore_errors=True)
        (self._state / "attempts" / order.name).unlink(missing_ok=True)
        took = asyncio.get_running_loop().time() - began
        return StopProof(
            processes=_texts(map(str, cgroup.processes())),
            mounts=_texts(_mounts_below(self._slot(order.slot))),
            containers=await self._containers(order.slot),
            cgroups=_texts(cgroup.leftovers()),
            directories=_texts(
                [*([str(order.work)] if order.work.exists() else []), *networks.leftovers(network)]
            ),
            took_ms=int(took * 1000),
        )

    async def sweep(self) -> StopProof:
        """Clear away what earlier lives of this runner left; it holds the state folder's lock."""
        marked = self._state / "attempts"
        marked.mkdir(parents=True, exist_ok=True)
        for mark in sorted(marked.iterdir()):
            slot, connected = mark.read_text().split()
            await _empty(cgroups.cgroup_of(mark.name))
            if self._isolated:
                network = networks.network_for(mark.name, connected=connected == "1")
                await networks.close_network(network)
            await self._clear_store(int(slot))
            mark.unlink()
        return StopProof(mounts=_texts(_mounts_below(self._state)))

    def _open_cgroup(self, order: BuildOrder) -> Cgroup | None:
        """Note the attempt on disk before anything is made for it, then make its cgroup."""
        if not self._isolated:
            return None
        connected = int(order.plan.network == "default")
        marked = self._state / "attempts"
        marked.mkdir(parents=True, exist_ok=True)
        (marked / order.name).write_text(f"{order.slot} {connected}")
        memory = order.memory_bytes or self._memory_bytes
        return cgroups.open_cgroup(order.name, memory_bytes=memory, cpu_weight=order.cpu_weight)

    async def _clear_store(self, slot: int) -> None:
        """Remove working containers with their mounts; images, which are the cache, stay."""
        store = self._store(slot)
        if store.root.exists():
            await run(*store.buildah("rm", "-a"), seconds=60)
        for container in _children(store.runtime):
            await run("runc", "--root", str(store.runtime), "delete", "-f", container)

    async def _containers(self, slot: int) -> tuple[str, ...]:
        store = self._store(slot)
        if not store.root.exists():
            return ()
        listed = await run(*store.buildah("containers", "-q"))
        return _texts(listed.output.split() if listed.code == 0 else [listed.output.strip()])

    def _slot(self, slot: int) -> Path:
        return self._state / f"slot-{slot}"

    def _store(self, slot: int) -> Store:
        store = Store.below(self._slot(slot))
        for folder in (store.root, store.run, store.runtime):
            folder.mkdir(parents=True, exist_ok=True)
        return store


class _Job:
    """The processes of one build, one after the other."""

    def __init__(
        self,
        order: BuildOrder,
        cgroup: Cgroup | None,
        progress: Progress,
        log: LogSink,
        keep: KeepGroup,
    ) -> None:
        self._order = order
        self._cgroup = cgroup
        self._progress = progress
        self._log = log
        self._keep = keep
        self._until = asyncio.get_running_loop().time() + order.plan.timeout_seconds

    async def run(self, command: list[str]) -> Ending:
        """Run a command to its end, or kill its group when the time or the task is over."""
        entrances = self._cgroup.entrances if self._cgroup else ()
        process = await start_in(entrances, command)
        folders = self._cgroup.folders if self._cgroup else ()
        group = Group(name=self._order.name, pid=process.pid, cgroups=tuple(map(str, folders)))
        self._keep(group)
        timed_out = None
        try:
            async with asyncio.timeout_at(self._until):
                await self._read(process)
                await process.wait()
        except TimeoutError:
            timed_out = self._order.plan.timeout_seconds
        finally:
            if process.returncode is None:
                kill_group(process.pid)
                await asyncio.shield(process.wait())
        assert process.returncode is not None
        self._progress.finish()
        return Ending(
            code=process.returncode,
            progress=self._progress,
            out_of_memory=self._cgroup is not None and self._cgroup.ran_out_of_memory(),
            memory_bytes=self._order.memory_bytes,
            timed_out_seconds=timed_out,
        )

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(_READ_BYTES):
            self._progress.feed(data)
            self._log(data)


def missing_for_isolation() -> list[str]:
    """Return what keeps builds from being isolated, each as a short sentence."""
    missing = [f"{name} is not installed" for name in _NEEDED_FOR_ISOLATION if not _found(name)]
    if os.geteuid() != 0:
        missing.append("not root")
    elif not cgroups.available():
        missing.append("no cgroups with memory, pids and cpu")
    return missing


def _can_isolate() -> bool:
    return not missing_for_isolation()


def _found(program: str) -> bool:
    return shutil.which(program, path="/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin") is not None


def _own_processes() -> list[str]:
    """Return what puts a command into a process namespace that dies as one."""
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() == 0:
        return own
    return ["buildah", "unshare", *own]


def _dockerfile_problem(order: BuildOrder) -> Failure | None:
    """Say why the plan cannot be followed, before anything is started."""
    name = order.plan.dockerfile
    root = order.context.resolve()
    try:
        file = (root / name).resolve(strict=True)
    except OSError:
        hint = "name it: pierhead build -f PATH"
        return Failure(cause="dockerfile", message=f"there is no {name} in the context", hint=hint)
    if not file.is_relative_to(root) or not file.is_file():
        return Failure(cause="dockerfile", message=f"{name} is not a file of the context")
    return None


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
        for pid in alive:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        await asyncio.sleep(0.02)
    await cgroup.remove()


def _mounts_below(folder: Path) -> list[str]:
    """Return the mount points below a folder, as this process sees them."""
    below = f"{folder}/"
    with open("/proc/self/mounts") as mounts:
        points = [line.split()[1] for line in mounts]
    return [point for point in points if point.startswith(below)]


def _children(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir()) if folder.is_dir() else []


def _texts(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(text[:1000] for text in found)[:64]
