"""The pages in docs/journeys, played: each `$` line is typed, and what is seen is compared.

Numbers, times, ids and digests are left aside; everything else is word for word. Run as a module it
writes what it sees into the pages: `python -m tests.acceptance.journeys [PAGE...]`.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.integration.mirror.others import PASSWORD, docker_registry, push
from tests.integration.router.stage import tiny_image
from tests.ports import free_port
from tests.usual_port import usual_port

from .stage import BIN, BUSYBOX, PATIENCE_SECONDS, ROOT, Stage, eventually, stage

PAGES: Final = ROOT / "docs" / "journeys"
BLOCK: Final = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
EXAMPLE: Final = ROOT / "examples" / "web"
TOKENS: Final = {"token": PASSWORD, "wrong-token": "incorrect horse"}
# What differs between two runs, and what stands for it.
ASIDE: Final = (
    (re.compile(r"sha256:[0-9a-f]{6,64}|\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"\b[bt]_[a-z0-9]{8}\b"), "ID"),
    (re.compile(r"\d+ (?:h|min|days)(?: \d+ (?:min|s))?|\d+(?:\.\d+)? s\b|cached$", re.M), "TIME"),
    (re.compile(r"\d+(?:\.\d+)? (?:[kMG]?B)"), "SIZE"),
    (re.compile(r"\d{2}:\d{2}(?::\d{2})?"), "CLOCK"),
    (re.compile(r"\d+"), "N"),
    (re.compile(r"N of N layers, SIZE of SIZE(?: at SIZE/s)?"), "LAYERS"),
    (re.compile(r"pinging container registry .*"), "what the resolver says"),
    (re.compile(r"^ports .*", re.M), "what else listens here"),
    (re.compile(r"^service (?!stopped).*", re.M), "what keeps it running"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a page is played.

    `url`: of the control plane, where somebody named it; else it is found as `pierhead up` noted.
    """

    stage: Stage
    folder: Path
    url: str = ""

    def type(self, line: str) -> str:
        """Type a line of shell, and return all that is seen."""
        # stderr and stdout go to one place, as on a terminal; nobody sits there, so nothing asks.
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env={
                **os.environ,
                **self.stage.environment,
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "PIERHEAD_URL": self.url,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        # Where things are elsewhere is where they are for whoever reads the page.
        seen = done.stdout.replace(f"{self.stage.folder}/data", "/var/lib/pierhead")
        return seen.replace(f"{self.stage.folder}/config", "/root/.config/pierhead")

    async def under_way(self) -> None:
        """Wait until the newest build runs or has ended: what follows is about that."""

        async def begun() -> bool:
            async with self.stage.client() as owner:
                newest, *older = (await owner.builds(limit=5)).builds
            # The desktop has one slot: what comes while it builds has to wait.
            # One that is asked to end makes place, and what waits for it begins.
            goes_on = any(one.step and not one.cancel_requested for one in older)
            waits = newest.position is not None and goes_on
            return waits or newest.step is not None or newest.finished_at is not None

        await eventually(begun, within=PATIENCE_SECONDS, what="the newest build runs")


@asynccontextmanager
async def nothing_set_up(folder: Path, work: Path) -> AsyncIterator[Scene]:
    """A machine that has only the command."""
    scene = Scene(Stage(folder, free_port()), work)
    with usual_port():
        try:
            yield scene
        finally:  # the page may have ended before it came to that
            await asyncio.to_thread(scene.type, "pierhead up --stop")


@asynccontextmanager
async def with_desktop(folder: Path, work: Path) -> AsyncIterator[Scene]:
    """A control plane, and a machine named desktop that builds for it."""
    async with stage(folder) as on:
        await on.join("desktop", "--memory", "400M")
        yield Scene(on, work)


@asynccontextmanager
async def with_its_address(folder: Path, work: Path) -> AsyncIterator[Scene]:
    """The same, and the shell knows where the control plane is."""
    async with with_desktop(folder, work) as scene:
        yield replace(scene, url=scene.stage.url)


@asynccontextmanager
async def desktop_is_off(folder: Path, work: Path) -> AsyncIterator[Scene]:
    """The same, but the desktop was switched off a minute ago."""
    async with stage(folder, time_scale=0.5) as on:
        runner = await on.join("desktop", "--memory", "400M")
        await runner.kill()

        async def offline() -> bool:
            async with on.client() as owner:
                runners = (await owner.capabilities()).runners
            here = any(one.here and one.online for one in runners)
            return here and any(one.name == "desktop" and not one.online for one in runners)

        what = "desktop is seen to be offline, and the builder on this machine is there"
        await eventually(offline, within=PATIENCE_SECONDS, what=what)
        yield Scene(on, work)


@asynccontextmanager
async def beside_a_registry(folder: Path, work: Path) -> AsyncIterator[Scene]:
    """A desktop that builds, and a registry in its network that lets in with a password."""
    async with docker_registry(folder / "registry") as host:
        await push(host, "me/base", tiny_image("base"), "1")
        async with stage(folder, more={"REGISTRY": host}) as on:
            await on.join("desktop", "--memory", "400M")
            yield Scene(on, work)


SCENES: Final = {
    "first-image": nothing_set_up,
    "everyday-build": with_desktop,
    "cancel-and-replace": with_desktop,
    "why-it-failed": with_desktop,
    "nobody-can-build": desktop_is_off,
    "secrets": with_desktop,
    "registries": beside_a_registry,
    "one-call": with_its_address,
}


def work_folder(parent: Path) -> Path:
    """Make the folder that the pages build."""
    root = parent / "web"
    shutil.copytree(EXAMPLE, root)
    (root / ".git").mkdir()
    (root / "node_modules").mkdir()
    (root / ".git" / "pack").write_bytes(bytes(800_000))
    (root / "node_modules" / "left-pad.js").write_bytes(bytes(300_000))
    shutil.copy(BUSYBOX, root / "busybox")
    for name, text in TOKENS.items():
        (root / name).write_text(text)
    return root


def commands(block: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with what is seen after it."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].rstrip("\n"), ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def aside(text: str) -> list[str]:
    """Return the lines, without what differs from run to run."""
    for pattern, word in ASIDE:
        text = pattern.sub(word, text)
    # Whether there is time to say what is waited for, and how far it is, is the machine's affair.
    lines = [line.strip() for line in text.strip().splitlines()]
    timely = ("waiting ", "upload SIZE of SIZE at ", "download SIZE of SIZE at ")
    return [line for line in lines if not line.startswith(timely)]


async def play(page: str, temporary: Path, see: Callable[[str, str, str], Awaitable[None]]) -> None:
    """Type every command of a page; `see` gets each with what the page says and what came."""
    text = (PAGES / f"{page}.md").read_text()
    (temporary / "stage").mkdir()
    work = work_folder(temporary)
    async with SCENES[page](temporary / "stage", work) as scene:
        for block in BLOCK.findall(text):
            for typed, expected in commands(block):
                seen = await asyncio.to_thread(scene.type, typed)
                if "--detach" in typed and page not in {"nobody-can-build"}:
                    await scene.under_way()
                await see(typed, expected, seen)


async def rewrite(page: str) -> None:
    """Write what is seen now into a page."""
    fresh: list[str] = []

    async def keep(typed: str, _: str, seen: str) -> None:
        fresh.append(f"$ {typed}\n{seen}" + ("" if seen.endswith("\n") or not seen else "\n"))

    with tempfile.TemporaryDirectory(prefix="ph-") as temporary:
        await play(page, Path(temporary), keep)
    file = PAGES / f"{page}.md"
    blocks = iter(BLOCK.findall(file.read_text()))
    counts = [len(commands(block)) for block in blocks]
    rest = iter(fresh)
    texts = iter("".join(next(rest) for _ in range(count)) for count in counts)
    file.write_text(BLOCK.sub(lambda _: next(texts), file.read_text()))


if __name__ == "__main__":
    for name in sys.argv[1:] or SCENES:
        asyncio.run(rewrite(name))
