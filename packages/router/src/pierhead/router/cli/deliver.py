"""Brings a built image to where the command line wants it: files, and a local engine."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from pierhead.protocol.build import BuildView
from pierhead.protocol.cli.speak import REFUSED, Progress, fail, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.router.cli.asked import Wish
from pierhead.router.cli.engine import engine, run
from pierhead.router.cli.image_file import Image, find_image, write_archive, write_files
from pierhead.router.cli.unwritten import naming


async def deliver(client: RouterClient, view: BuildView, wish: Wish) -> None:
    """Write the files, and load the image."""
    if view.result is None or view.reference is None:
        return
    if wish.id_file:
        # As docker has it: what names the image, which is its index when it is for several.
        several = len(view.result.platforms) > 1
        named = view.result.manifest_digest if several else view.result.config_digest
        with opened(wish.id_file) as file:
            file.write((named or "").encode())
    if not (wish.outputs or wish.load or wish.metadata_file):
        return
    image = await find_image(client, view.reference)
    if wish.metadata_file:
        with opened(wish.metadata_file) as file:
            file.write(json.dumps(_metadata(view, image, wish.names), indent=2).encode())
    for output in wish.outputs:
        with _destination(output.destination) as file:
            await _write(client, image, output.kind, file, wish)
        _told(wish, f"written   {output.destination}")
    if wish.load:
        await _load(client, image, wish)


async def _load(client: RouterClient, image: Image, wish: Wish) -> None:
    name = engine()
    with tempfile.NamedTemporaryFile(prefix="pierhead-", suffix=".tar") as file:
        with naming(tempfile.gettempdir()):
            await _write(client, image, "docker", file, wish)
            file.flush()
        loaded = run([name, "load", "-q", "-i", file.name])
    if loaded.returncode != 0:
        said = loaded.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise fail(f"{name} does not take the image: {said[0]}", "-o FILE.tar", REFUSED)
    _told(wish, f"loaded    {', '.join(wish.names) or image.digest} into {name}")


async def _write(
    client: RouterClient, image: Image, kind: str, file: IO[bytes], wish: Wish
) -> None:
    total = sum(part["size"] for part in image.parts)
    progress = Progress("download", total, quiet=wish.quiet)
    if kind == "tar":
        await write_files(client, image, file, progress=progress.at)
    else:
        await write_archive(
            client,
            image,
            file,
            names=wish.names,
            for_docker=kind == "docker",
            progress=progress.at,
        )


@contextlib.contextmanager
def _destination(name: str) -> Iterator[IO[bytes]]:
    if name != "-":
        with opened(Path(name)) as file:
            yield file
        return
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that appears under its name only when it is whole, where a link leads.

    What is there and is no file, like a device or a pipe, is written to as it is.

    Raises:
        OSError: it could not be written; named by the path that was said.
    """
    with naming(path):
        there = path.resolve()
        if there.exists() and not there.is_file():
            with there.open("wb") as device:
                yield device
            return
        fresh = there.with_name(f"{there.name}.part")
        try:
            with fresh.open("wb") as file:
                yield file
            os.replace(fresh, there)
        finally:
            fresh.unlink(missing_ok=True)


def _metadata(view: BuildView, image: Image, names: Sequence[str]) -> dict[str, object]:
    """Return what `docker buildx build --metadata-file` writes, as far as it is known here."""
    assert view.result is not None
    return {
        "containerimage.config.digest": view.result.config_digest,
        "containerimage.descriptor": image.descriptor,
        "containerimage.digest": image.digest,
        "image.name": ",".join(names) or view.reference,
        "pierhead.build": view.id,
        "pierhead.reference": view.reference,
    }


def _told(wish: Wish, line: str) -> None:
    if not wish.quiet:
        tell(line)
