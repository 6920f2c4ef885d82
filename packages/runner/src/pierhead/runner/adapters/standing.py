"""Whether somebody took away, under a build, what it stands on: then its failure is not its own.

While a step runs, nobody changes its context or the layers below its own. A folder notes when a
name was last made or removed in it, and no step can reach these folders, so what is noted there
since the step began was done from outside. Of a folder that is half gone this is what is left.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.runner.domain.invocation import Store

# More are not looked at: the build has ended, and somebody waits to hear how.
FOLDERS_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Standing:
    """The folders of an attempt, each as the one that it was at the begin."""

    places: tuple[tuple[Path, tuple[int, int]], ...]

    @classmethod
    def on(cls, places: Iterable[Path]) -> "Standing":
        """Note which folders these are."""
        return cls(tuple((place, _identity(place)) for place in places if place.is_dir()))

    def holds(self) -> bool:
        """Say whether they are all there, and no others in their places."""
        try:
            return all(_identity(place) == before for place, before in self.places)
        except OSError:
            return False


def layers_changed(store: Store, since: Path) -> bool:
    """Say whether a layer that was there when a file was last written lost something since then."""
    began = _written_ns(since)
    if began is None:
        return False
    try:
        layers = list(_layers(store))
        return any(_changed(layer / "diff", began) for layer in layers if _is_older(layer, began))
    except (OSError, ValueError, KeyError, TypeError):
        return True  # what names them, or one of them, is gone


def context_changed(context: Path, since: Path) -> bool:
    """Say whether something of a context was made or removed since a file was written."""
    began = _written_ns(since)
    return began is not None and _changed(context, began)


def _layers(store: Store) -> Iterator[Path]:
    """Yield the folders of all layers but those that containers write into."""
    own = {one["layer"] for one in _listed(Path(store.containers, "containers.json"))}
    for layer in _listed(Path(store.root, "overlay-layers", "layers.json")):
        if layer["id"] not in own:
            yield Path(store.root, "overlay", layer["id"])


def _listed(file: Path) -> list[dict[str, str]]:
    found = json.loads(file.read_text() or "[]")
    return found if isinstance(found, list) else []


def _is_older(layer: Path, began: int) -> bool:
    return (layer / "link").stat().st_mtime_ns <= began


def _changed(folder: Path, began: int) -> bool:
    """Say whether a name was made or removed below a folder since then, however deep."""
    waiting, looked_at = [str(folder)], 0
    while waiting and looked_at < FOLDERS_MAX:
        looked_at += 1
        at = waiting.pop()
        if os.lstat(at).st_ctime_ns > began:
            return True
        with os.scandir(at) as entries:
            waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return False


def _identity(place: Path) -> tuple[int, int]:
    found = place.stat()
    return found.st_dev, found.st_ino


def _written_ns(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None
