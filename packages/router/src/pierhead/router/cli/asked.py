"""What the command line of a build asks for, before anything is done about it.

It is read before the first line is told, so nothing here imports what speaks to a control plane.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from pierhead.protocol.cli.speak import USAGE, fail
from pierhead.protocol.plan import IfNobody, Plan
from pierhead.router.cli.flags import Output


class Wish(Struct, frozen=True, kw_only=True):
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


def check_wish(wish: Wish, *, detach: bool, platforms: Sequence[str] = ()) -> None:
    """Refuse now what could not be done after the build.

    Raises:
        CommandFailed: no engine to load into, no folder to write to, or nobody waits for the image.
    """
    named = [output.destination for output in wish.outputs if output.destination != "-"]
    files = [*map(Path, named), *filter(None, (wish.id_file, wish.metadata_file))]
    if detach and (files or wish.load or wish.takes_stdout):
        text = "--detach does not wait for the image, so nothing can be made of it"
        raise fail(text, "leave out --detach, or -o, --load, --iidfile and --metadata-file", USAGE)
    if len(platforms) > 1 and (wish.outputs or wish.load):
        text = "-o and --load are for an image of one platform"
        hint = f"--platform {platforms[0]}, or copy all of it: skopeo copy --all docker://REFERENCE"
        raise fail(text, f"{hint} oci:FOLDER", USAGE)
    for file in files:
        if not file.absolute().parent.is_dir():
            folder = file.absolute().parent
            text = f"{_option_of(wish, file)} {file}: there is no folder {folder}"
            raise fail(text, f"mkdir -p {folder}", USAGE)
        if file.is_dir():
            text = f"{_option_of(wish, file)} {file}: that is a folder"
            raise fail(text, f"name a file: {file / 'FILE'}", USAGE)
    if wish.load:
        from pierhead.router.cli.engine import engine  # noqa: PLC0415 - hardly ever wanted

        engine()
    if wish.takes_stdout and sys.stdout.isatty():
        raise fail("-o -: an image is not for a terminal", "-o type=tar,dest=FILE", USAGE)


def _option_of(wish: Wish, file: Path) -> str:
    if file == wish.id_file:
        return "--iidfile"
    return "--metadata-file" if file == wish.metadata_file else "-o"


class Asked(Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    folder: Path
    project: str
    environment: str
    name: str
    tags: tuple[str, ...]
    plan: Plan
    platforms: tuple[str, ...]  # several, or none: then the plan has it
    wish: Wish
    key: str | None
    on: tuple[str, ...]
    supersedes: str | None
    if_nobody: IfNobody
    quiet: bool
    as_json: bool
    detach: bool
    raw: bool
    secrets: Mapping[str, bytes]
    allow_secret_args: bool

    __repr__ = object.__repr__  # the secrets are not to be shown
