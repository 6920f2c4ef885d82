"""What outlives the builds of one project in one slot: its store, its caches, its last context.

It is never shared by two projects, nor by a project's previews and the rest of it: clearing away
what a build left cannot touch another one, and what one has cached is not there for another.
"""

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pierhead.runner.adapters.process import run
from pierhead.runner.adapters.room import DETACH, unmount
from pierhead.runner.adapters.shelter import close_shelter
from pierhead.runner.adapters.workspace import disk_of
from pierhead.runner.domain.bases import registries_alone
from pierhead.runner.domain.invocation import Store
from pierhead.runner.removal import remove_tree


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one project in one slot."""

    folder: Path

    @property
    def context(self) -> Path:
        """What the last build had as its context."""
        return self.folder / "context"

    @property
    def temporary(self) -> Path:
        """What a build sees as its /var/tmp."""
        return self.folder / "tmp"

    @property
    def blobs(self) -> Path:
        """Compressed layers that are kept."""
        return self.folder / "blobs"

    @property
    def store(self) -> Store:
        """Where images and containers are, if anything was built here."""
        return Store.below(str(self.folder))

    def open_store(self) -> Store:
        """Return the store; what of it is not there is made.

        Raises:
            OSError: the disk is full, or broken. Clearing away makes nothing, so that it can.
        """
        store = self.store
        for place in (store.root, store.run, store.runtime):
            Path(place).mkdir(parents=True, exist_ok=True)
        Path(store.ignore).touch()
        _keep_policy(Path(store.policy))
        return store

    async def clear(self) -> None:
        """Remove working containers with their mounts; images, which are the cache, stay."""
        store = self.store
        if _has_content(store):
            await run(*store.buildah("rm", "-a"), seconds=60)
        for container in _children(Path(store.runtime)):
            await run("runc", "--root", store.runtime, "delete", "-f", container)
        await asyncio.to_thread(close_shelter, store)
        await asyncio.to_thread(_release_mounts, Path(store.root))

    async def containers(self) -> list[str]:
        """Return what is left of working containers, as buildah names them."""
        store = self.store
        if not _has_content(store):
            return []
        listed = await run(*store.buildah("containers", "-q"))
        # When a killed buildah had a layer mounted, each one after it leaves the store mounted.
        await asyncio.to_thread(_release_mounts, Path(store.root))
        return listed.output.split() if listed.code == 0 else [listed.output.strip()]

    def temporaries(self) -> list[Path]:
        """Return buildah's temporary folders; what `RUN --mount=type=cache` keeps is not one."""
        found = self.temporary.glob("buildah*")
        return sorted(path for path in found if not path.name.startswith("buildah-cache"))

    def keep(self, context: Path) -> None:
        """Keep a context for the next build, which compares it; unless the disk has no room."""
        if not context.is_dir():
            return  # it ended before its context came: what is kept is still the last one
        remove_tree(self.context)
        with contextlib.suppress(OSError):  # whatever is wrong, the next one comes whole
            self.folder.mkdir(parents=True, exist_ok=True)
            if not disk_of(self.folder).is_low:
                context.rename(self.context)

    async def keep_slot_below(self, limit: int) -> None:
        """Empty the caches of a slot that has outgrown its share of the disk: others' first."""
        slot = self.folder.parent
        for folder in sorted(slot.iterdir(), key=lambda folder: folder.stat().st_mtime):
            if await _used_bytes(slot) <= limit:
                return
            if folder != self.folder:
                await asyncio.to_thread(remove_tree, folder)
        if await _used_bytes(slot) <= limit:
            return
        await run(*self.store.buildah("rmi", "-a", "-f"), seconds=60)
        for rest in (self.temporary, self.context):
            await asyncio.to_thread(remove_tree, rest)


def _keep_policy(file: Path) -> None:
    """Have buildah's policy there, whole at any moment: a build may be reading it."""
    wanted = registries_alone(_policy_of_the_machine())
    with contextlib.suppress(OSError):
        if file.read_text() == wanted:
            return
    fresh = file.with_suffix(".new")
    fresh.write_text(wanted)
    fresh.replace(file)


def _policy_of_the_machine() -> str | None:
    for folder in (Path.home() / ".config/containers", Path("/etc/containers")):
        with contextlib.suppress(OSError):
            return (folder / "policy.json").read_text()
    return None


async def _used_bytes(folder: Path) -> int:
    """Return how much of the disk a folder takes, holes not counted; however deep it is."""
    counted = await run("du", "--summarize", "--block-size=1", "--", str(folder), seconds=600)
    size = counted.output.splitlines()[-1].split()[0] if counted.output.strip() else ""
    return int(size) if size.isdigit() else 0


def is_whole(store: Store, *, begun: bool) -> bool:
    """Say whether a store is there; `begun`: a step was, so there was a container for it, too.

    Its root is mounted while buildah works, so whoever removes the store leaves that, empty.
    """
    listed = Path(store.containers, "containers.json").is_file()
    ours = Path(store.policy).is_file() and Path(store.ignore).is_file()
    there = Path(store.root).is_dir() and ours
    return there and (not begun or (_has_content(store) and listed))


def _has_content(store: Store) -> bool:
    return Path(store.root, "overlay").exists()


def _release_mounts(folder: Path) -> None:
    """Detach what is mounted below a folder, the innermost first.

    While buildah works, its store is mounted onto itself. When it gives up in between (its disk is
    full, say), the mount stays. What cannot be released is told by the next look.
    """
    for point in reversed(mounts_below(folder)):
        with contextlib.suppress(OSError):
            unmount(point, DETACH)


def mounts_below(folder: Path) -> list[str]:
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
