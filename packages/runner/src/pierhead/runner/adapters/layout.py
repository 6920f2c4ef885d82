"""The image of a build, as the exporter wrote it: an OCI layout in the attempt's folder."""

import json
import os
from pathlib import Path
from typing import Final

from pierhead.protocol.image import read_image
from pierhead.protocol.platform import normalise_platform
from pierhead.protocol.result import CacheUse, Failure
from pierhead.runner.ports import Broken, Built

_MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024


def read_layout(
    layout: Path, wanted: str | None, cache: CacheUse, peak: int | None
) -> Built | Broken:
    """Return the image in a layout; `wanted`: the platform that the plan asks for."""
    try:
        manifest = _small(_blob(layout, _first_digest(_small(layout / "index.json"))))
        image = read_image(manifest, _small(_blob(layout, _config_digest(manifest))))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        failure = Failure(cause="runner", message=f"the exported image is broken: {error}"[:1000])
        return Broken(failure=failure, cache=cache, peak_memory_bytes=peak)
    found, expected = image.platform.platform, wanted or _own_platform()
    if found != expected:
        # buildah takes a base of any architecture and does not say so.
        message = f"the base image is for {found}, not for {expected}"
        failure = Failure(cause="platform", message=message)
        return Broken(failure=failure, cache=cache, peak_memory_bytes=peak)
    return Built(layout=layout, image=image, cache=cache, peak_memory_bytes=peak)


def _own_platform() -> str:
    machine = os.uname()
    return normalise_platform(machine.sysname, machine.machine)


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
