"""Memory in the place where buildah copies secrets to, while a build has some.

Before a step that mounts a secret, buildah writes a copy of it into the folder of the working
container, below its store, which is on a disk. So that folder's parent is memory as long as a build
with secrets is in the slot: mounted before the build, taken away after its containers are gone.

The list of working containers is in there as well. When the memory was lost with it (the machine
was cut off), nobody knows any more which layers belong to containers, and the store begins anew.
"""

import os
from pathlib import Path
from typing import Final

from pierhead.runner.adapters.room import NODEV, NOSUID, mount, unmount
from pierhead.runner.domain.invocation import Store
from pierhead.runner.removal import remove_tree

# It also takes what steps write into volumes; what they write there counts as the build's memory.
_OPTIONS: Final = "mode=700,size=512m"
_MARK: Final = "containers-in-memory"


def open_shelter(store: Store) -> None:
    """Put memory in the place; what the folder had until then is not seen."""
    place = Path(store.containers)
    if os.path.ismount(place):
        return
    place.mkdir(parents=True, exist_ok=True)
    _mark(store).touch()
    try:
        mount("tmpfs", str(place), "tmpfs", NOSUID | NODEV, f"{_OPTIONS},noswap")
    except OSError:  # Linux before 6.4 does not know noswap
        mount("tmpfs", str(place), "tmpfs", NOSUID | NODEV, _OPTIONS)


def close_shelter(store: Store) -> None:
    """Take the memory away, with all that is in it. Harmless when there is none."""
    if not _mark(store).exists():
        return
    place = Path(store.containers)
    known = os.path.ismount(place)
    lost = not known or any(child.is_dir() for child in place.iterdir())
    if known:
        unmount(str(place))
    if lost:
        remove_tree(Path(store.root))
        Path(store.root).mkdir(parents=True, exist_ok=True)
    _mark(store).unlink()


def _mark(store: Store) -> Path:
    return Path(store.root).with_name(_MARK)
