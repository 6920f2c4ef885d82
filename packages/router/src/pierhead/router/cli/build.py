"""`pierhead build`: like `docker build`, elsewhere."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from pierhead.protocol.build import BuildView, CancelRequest
from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import (
    INTERRUPTED,
    OK,
    USAGE,
    Progress,
    fail,
    give,
    give_json,
    size,
    tell,
)
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.pack import Packed, pack
from pierhead.protocol.client.retry import retrying
from pierhead.protocol.client.upload import upload
from pierhead.protocol.plan import ContextRef, IfNobody, Plan, Submit
from pierhead.router.cli.follow import Story, follow
from pierhead.router.cli.once import control_plane
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.naming import TagName, parse_tag, project_from_folder

SUBMIT_SECONDS: Final = 60.0
_SECRET: Final = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|credential|(api|private)_?key", re.I
)
# What docker has and this release has not: each is named, none is ignored.
NOT_YET: Final = {
    "--secret": "secrets come with the next release; a build argument is not a place for one",
    "--ssh": "it comes after --secret",
    "--platform": "several platforms come later; the image is for the runner's own platform",
    "--build-context": "it comes later; put what you need into the context",
    "--pull": "it comes later; --no-cache builds everything anew",
    "--network": "it comes later; builds have a network of their own",
    "--add-host": "it comes later",
    "--shm-size": "it comes later",
    "--ulimit": "it comes later",
    "--iidfile": "the digest is the last part of the printed reference",
    "--metadata-file": "pierhead build --json prints the whole result",
    "--push": "the image is in the control plane's registry already",
    "--load": "docker pull the printed reference",
    "--output": "skopeo copy the printed reference to where you want it",
    "-o": "skopeo copy the printed reference to where you want it",
    "--cache-from": "runners keep their cache by themselves",
    "--cache-to": "runners keep their cache by themselves",
    "--provenance": "it comes later",
    "--sbom": "it comes later",
    "--check": "it comes later",
    "--squash": "it is not going to come: build in several stages",
    "--rm": "nothing is ever left of a build",
    "--force-rm": "nothing is ever left of a build",
    "--memory": "limits belong to the machine that has them",
    "-m": "limits belong to the machine that has them",
    "--cpu-shares": "limits belong to the machine that has them",
    "--cgroup-parent": "limits belong to the machine that has them",
    "--isolation": "every build is isolated as far as its runner can",
    "--builder": "runners take builds by themselves; pierhead status shows them",
    "--compress": "contexts are always compressed",
    "--no-cache-filter": "it comes later; --no-cache builds everything anew",
    "--attest": "it comes later",
    "--annotation": "it comes later; --label is there",
    "--call": "it comes later",
    "--allow": "builds get no rights beyond their own",
    "--security-opt": "every build is isolated as far as its runner can",
    "--memory-swap": "limits belong to the machine that has them",
    "--cpu-period": "limits belong to the machine that has them",
    "--cpu-quota": "limits belong to the machine that has them",
    "--cpuset-cpus": "limits belong to the machine that has them",
    "--cpuset-mems": "limits belong to the machine that has them",
    "--on": "it comes later; runners take builds by themselves",
    "--where": "it comes later; runners take builds by themselves",
    "--supersedes": "it comes later; pierhead builds cancel ends a build",
    "--want": "it comes later",
    "--scan": "it comes later",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    folder: Path
    project: str
    name: str
    tags: tuple[str, ...]
    plan: Plan
    key: str | None
    if_nobody: IfNobody
    quiet: bool
    as_json: bool
    detach: bool
    raw: bool


def command(
    path: Annotated[Path, typer.Argument(help="Folder with the context")],
    tag: Annotated[list[str] | None, typer.Option("-t", "--tag", help="NAME or NAME:TAG")] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", help="Dockerfile, inside the context")
    ] = None,
    build_arg: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, or NAME")] = None,
    target: Annotated[str | None, typer.Option(help="Stage to build")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every step")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the reference")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Events as JSON lines")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait; print the id")] = False,
    key: Annotated[str | None, typer.Option(help="The same key is the same build")] = None,
    project: Annotated[str | None, typer.Option(help="Otherwise -t's or the folder's name")] = None,
    if_nobody: Annotated[str, typer.Option(help="here, wait or fail")] = "here",
    timeout: Annotated[int, typer.Option(help="Seconds that the build may take", min=1)] = 1800,
    progress: Annotated[str, typer.Option(help="auto, or plain for the whole log")] = "auto",
    url: Annotated[str | None, typer.Option(help="Control plane")] = None,
) -> int:
    """Build an image: here, or on your machines."""
    if progress not in {"auto", "plain"}:
        raise fail("--progress is auto or plain", None, USAGE)
    if if_nobody not in {"here", "wait", "fail"}:
        raise fail("--if-nobody is here, wait or fail", None, USAGE)
    names = [_tag(text) for text in tag or []]
    own = _project(project, names, path)
    asked = Asked(
        folder=path,
        project=own,
        name=names[0].project if names else own,
        tags=tuple(name.tag for name in names),
        plan=Plan(
            dockerfile=_dockerfile(path, file),
            target=target,
            build_args=_pairs(build_arg or [], from_environment=True),
            labels=_pairs(label or [], from_environment=False),
            no_cache=no_cache,
            timeout_seconds=timeout,
        ),
        key=key,
        if_nobody=if_nobody,  # type: ignore[arg-type]
        quiet=quiet,
        as_json=as_json,
        detach=detach,
        raw=progress == "plain",
    )
    with tempfile.TemporaryDirectory(prefix="pierhead-") as folder:
        # Outside of the loop: there, an interrupt would wait until a large context is packed.
        packed = pack(asked.folder, Path(folder) / "context", dockerfile=asked.plan.dockerfile)
        _tell_context(asked, packed)
        return asyncio.run(_build(asked, packed, url))


def check_arguments(arguments: Sequence[str]) -> None:
    """Name a flag of docker's that is not honoured, and what to do instead."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag in NOT_YET:
            raise fail(f"{flag} is not honoured yet", NOT_YET[flag], USAGE)


async def _build(asked: Asked, packed: Packed, url: str | None) -> int:
    found = find_place(url)
    async with control_plane(found, stays=asked.detach) as place, place.client() as client:
        progress = Progress("upload", packed.ref.size_bytes, quiet=asked.quiet)
        sent = await upload(client, asked.project, packed.ref, packed.file, progress.at)
        if sent and not asked.quiet:
            tell(f"upload    {size(sent)}")
        view = await _submit(client, asked, packed.ref)
        if asked.detach:
            _give_id(asked, view)
            return OK
        return await _follow(client, asked, view, may_detach=place is found)


async def _submit(client: RouterClient, asked: Asked, context: ContextRef) -> BuildView:
    # A key makes the call replayable: a lost answer must not build twice.
    key = asked.key or f"cli-{os.urandom(16).hex()}"
    request = Submit(
        project=asked.project,
        plan=asked.plan,
        context=context,
        key=key,
        tags=asked.tags,
        if_nobody=asked.if_nobody,
    )
    async for attempt in retrying(SUBMIT_SECONDS):
        with attempt:
            return await client.submit(request)
    raise AssertionError("retrying ends by a value or an error")


async def _follow(client: RouterClient, asked: Asked, view: BuildView, *, may_detach: bool) -> int:
    story = Story(asked.name, quiet=asked.quiet, raw=asked.raw)
    following = asyncio.create_task(follow(client, view.id, story, as_json=asked.as_json))
    interrupts: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupts.put_nowait, None)
    await _first(following, interrupts.get())
    if not following.done() and may_detach and sys.stdin.isatty() and sys.stderr.isatty():
        if await _wants_detach(view, following, interrupts):
            following.cancel()
            tell(f"detached. later: pierhead builds watch {view.id}")
            return INTERRUPTED
        tell()
    if following.done():
        return following.result()
    await client.cancel(view.id, CancelRequest(reason="interrupted"))
    await _first(following, interrupts.get())  # who interrupts again does not wait for the end
    if following.done():
        following.exception()  # it was told already, and the interrupt is what counts
    return INTERRUPTED


async def _wants_detach(
    view: BuildView, following: "asyncio.Task[int]", interrupts: "asyncio.Queue[None]"
) -> bool:
    """Ask what people mean by ^C, until they answer, interrupt again, or the build ends."""
    question = f"\n^C  cancel {view.id}?  [c]ancel  [d]etach  (again ^C = cancel) "
    print(question, end="", file=sys.stderr, flush=True)
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), typed.set)  # a thread that reads could not be stopped
    try:
        await _first(following, interrupts.get(), typed.wait())
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return typed.is_set() and sys.stdin.readline().strip().lower().startswith("d")


async def _first(*awaited: Awaitable[object]) -> None:
    """Wait until one of them is done, and end those that were only made to be waited for."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, one in zip(tasks, awaited, strict=True):
        if task is not one:
            task.cancel()


def _give_id(asked: Asked, view: BuildView) -> None:
    if asked.as_json:
        give_json(view)
    else:
        give(view.id)


def _tell_context(asked: Asked, packed: Packed) -> None:
    if asked.quiet:
        return
    left = (
        f"   (left out {', '.join(packed.left_out[:3])}: .dockerignore)" if packed.left_out else ""
    )
    tell(f"context   {packed.ref.files} files, {size(packed.ref.unpacked_bytes)}{left}")
    for warning in packed.warnings:
        tell(f"note      {warning}")
    for name in filter(_SECRET.search, asked.plan.build_args):
        tell(f"note      {name} looks like a secret; build arguments can be read in the image")


def _tag(text: str) -> TagName:
    first, slash, name = text.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):  # docker's rule for hosts
        # The name would be taken, and the image would not be where its name says.
        hint = f"-t {name}, then skopeo copy the printed reference to {first}"
        raise fail(f"{text} names the registry {first}; images go to our own", hint, USAGE)
    try:
        return parse_tag(text)
    except Refused as error:
        raise fail(str(error), error.hint, USAGE) from error


def _project(project: str | None, names: list[TagName], path: Path) -> str:
    if len({name.project for name in names}) > 1:
        raise fail("all -t of one build have the same NAME", "-t web:1.2 -t web:latest", USAGE)
    if project:
        return project
    try:
        return names[0].project if names else project_from_folder(path.resolve().name)
    except Refused as error:
        raise fail(str(error), error.hint, USAGE) from error


def _dockerfile(path: Path, file: str | None) -> str:
    """Return the Dockerfile relative to the context, as `-f` means it: from where we are."""
    if file is None:
        found = path / "Dockerfile"
        if path.is_dir() and not found.is_file():
            hint = "name it: pierhead build -f PATH"
            raise fail(f"there is no Dockerfile in {path}", hint, USAGE)
        return "Dockerfile"
    inside = Path(file) if (Path(file)).is_file() else path / file
    if path.is_dir() and not inside.is_file():
        raise fail(f"there is no file {file}", "name it: pierhead build -f PATH", USAGE)
    try:
        return str(inside.resolve().relative_to(path.resolve()))
    except ValueError as error:
        hint = "copy it into the context"
        raise fail(f"{file} is outside the context {path}", hint, USAGE) from error


def _pairs(texts: Sequence[str], *, from_environment: bool) -> dict[str, str]:
    found = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not name:
            raise fail(f"{text!r} is not NAME=VALUE", None, USAGE)
        if given:
            found[name] = value
        elif from_environment and name in os.environ:
            found[name] = os.environ[name]
        elif not from_environment:
            found[name] = ""
    return found
