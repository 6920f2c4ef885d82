"""Brings a built image to where the command line wants it: files, and a local engine."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pierhead.protocol.build import BuildView
from pierhead.protocol.cli.speak import REFUSED, USAGE, Progress, fail, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.router.cli.flags import Output
from pierhead.router.cli.image_file import Image, find_image, write_archive, write_files

_ENGINES: Final = ("docker", "podman")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is wanted beside the image in the registry."""

    outputs: tuple[Output, ...] = ()
    load: bool = False
    id_file: Path | None = None
    metadata_file: Path | None = None
    names: tuple[str, ...] = ()  # NAME:TAG
    quiet: bool = False

    @property
    def takes_stdout(self) -> bool:
        """The image itself goes to stdout, so nothing else may."""
        return any(output.destination == "-" for output in self.outputs)


def check_wish(wish: Wish, *, detach: bool) -> None:
    """Refuse now what could not be done after the build.

    Raises:
        CommandFailed: no engine to load into, no folder to write to, or nobody waits for the image.
    """
    named = [output.destination for output in wish.outputs if output.destination != "-"]
    files = [*map(Path, named), *filter(None, (wish.id_file, wish.metadata_file))]
    if detach and (files or wish.load or wish.takes_stdout):
        text = "--detach does not wait for the image, so nothing can be made of it"
        raise fail(text, "leave out --detach, or -o, --load, --iidfile and --metadata-file", USAGE)
    for file in files:
        if not file.absolute().parent.is_dir():
            raise fail(f"there is no folder {file.absolute().parent}", f"make it for {file}", USAGE)
    if wish.load:
        engine()
    if wish.takes_stdout and sys.stdout.isatty():
        raise fail("an image is not for a terminal", "-o type=tar,dest=FILE", USAGE)


async def deliver(client: RouterClient, view: BuildView, wish: Wish) -> None:
    """Write the files, and load the image."""
    if view.result is None or view.reference is None:
        return
    if wish.id_file:
        wish.id_file.write_text(view.result.config_digest or "")
    if not (wish.outputs or wish.load or wish.metadata_file):
        return
    image = await find_image(client, view.reference)
    if wish.metadata_file:
        wish.metadata_file.write_text(json.dumps(_metadata(view, image, wish.names), indent=2))
    for output in wish.outputs:
        with _opened(output.destination) as file:
            await _write(client, image, output.kind, file, wish)
        _told(wish, f"written   {output.destination}")
    if wish.load:
        await _load(client, image, wish)


def engine() -> str:
    """Return the engine of this machine that takes images.

    Raises:
        CommandFailed: there is none.
    """
    silent: list[str] = []
    for name in _ENGINES:
        if shutil.which(name) is None:
            continue
        if _run([name, "version"]).returncode == 0:
            return name
        silent.append(name)
    if silent:
        text = f"--load: {silent[0]} is installed, but does not answer"
        raise fail(text, f"{silent[0]} version says why; -o FILE.tar needs no engine")
    text = "--load: there is no docker and no podman on this machine"
    raise fail(text, "-o FILE.tar writes the image into a file")


async def _load(client: RouterClient, image: Image, wish: Wish) -> None:
    name = engine()
    with tempfile.NamedTemporaryFile(prefix="pierhead-", suffix=".tar") as file:
        await _write(client, image, "docker", file, wish)
        file.flush()
        loaded = _run([name, "load", "-q", "-i", file.name])
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
def _opened(destination: str) -> Iterator[IO[bytes]]:
    """Yield a file that appears under its name only when it is whole."""
    if destination == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    fresh = Path(f"{destination}.part")
    try:
        with fresh.open("wb") as file:
            yield file
        os.replace(fresh, destination)
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


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _told(wish: Wish, line: str) -> None:
    if not wish.quiet:
        tell(line)
