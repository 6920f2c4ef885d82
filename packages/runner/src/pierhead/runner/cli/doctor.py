"""`pierhead doctor`: say what keeps this machine from building, each with its remedy."""

import asyncio
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from pierhead.protocol.answers import Finding
from pierhead.protocol.cli.builder import install_line
from pierhead.protocol.cli.place import Place, find_place
from pierhead.protocol.cli.speak import OK, REFUSED, give, give_json, size
from pierhead.protocol.client.trust import certificate_ends
from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.meta import Concern
from pierhead.protocol.programs import ISOLATING, PACKAGES, ROOTLESS, SEARCH
from pierhead.runner.app import examine, reaches
from pierhead.runner.config import Joined, at_work, joined_before, state_folder

GIB: Final = 1024**3
ANSWER_SECONDS: Final = 5.0
AUTHORITY_TOLD_BEFORE: Final = timedelta(days=183)
DISK_FREE_MIN: Final = 2 * GIB
MEMORY_MIN: Final = GIB


def command(as_json: Annotated[bool, typer.Option("--json", help="As JSON")] = False) -> int:
    """Look at this machine as a builder, and let it build; exit 1 if something has to be mended."""
    found = [*_programs(), _user(), _cgroups(), _disk(), _memory(), *_runner(), *_control_plane()]
    if shutil.which("buildah", path=SEARCH):
        found += _build()
    if as_json:
        give_json(found)
    else:
        for finding in found:
            give(f"{'problem' if finding.remedy else 'ok':8} {finding.what:10} {finding.text}")
            if finding.remedy:
                give(f"{'':19} -> {finding.remedy}")
    return REFUSED if any(finding.remedy for finding in found) else OK


def _build() -> list[Finding]:
    try:
        checks = asyncio.run(examine(_place()))
    except OSError as error:
        text = f"nothing can be built below {_place()}: {error.strerror}"
        return [Finding(what="build", text=text, remedy="use another: PIERHEAD_RUNNER_STATE=DIR")]
    return [Finding(what=check.what, text=check.text, remedy=check.remedy) for check in checks]


def _runner() -> list[Finding]:
    """Say whether the runner of a machine that joined is at work, however it was started."""
    state = state_folder()
    joined = joined_before(state)
    if joined is None:
        return []
    try:
        pid = at_work(state)
    except Unavailable as error:
        remedy = error.problem.hint or ""
        return [Finding(what="runner", text=str(error), remedy=remedy)]
    what = f"{joined.name} of {joined.url}"
    if pid is None:
        remedy = "pierhead runner start"
        at_work_or_not = Finding(what="runner", text=f"{what} is stopped", remedy=remedy)
    else:
        at_work_or_not = Finding(what="runner", text=f"{what} is at work (process {pid})")
    return [at_work_or_not, _reach(joined), *_believed(joined)]


def _believed(joined: Joined) -> list[Finding]:
    """Say when the last authority ends by which the control plane is believed here."""
    if joined.ca is None:
        return []
    ends = max(certificate_ends(joined.ca))
    if datetime.now(UTC) < ends - AUTHORITY_TOLD_BEFORE:  # noqa: TID251 - of this machine
        return []
    text = f"{joined.url} is believed by an authority that ends on {ends:%Y-%m-%d}"
    return [Finding(what="authority", text=text, remedy="on the control plane: pierhead ca rotate")]


def _reach(joined: Joined) -> Finding:
    """Say whether the control plane answers, and is the one that this machine joined."""
    try:
        asyncio.run(reaches(joined))
    except PierheadError as error:
        return Finding(what="reach", text=str(error), remedy=error.problem.hint or "")
    return Finding(what="reach", text=f"{joined.url} answers")


def _control_plane() -> list[Finding]:
    """Say what its owner should know of the control plane that commands of this machine use."""
    place = find_place()
    if place.token is None:
        return []
    try:
        concerns = asyncio.run(_concerns(place))
    except (PierheadError, TimeoutError):
        return []  # whether it can be reached is said of runners alone
    return [
        Finding(what=one.what, text=one.text, remedy=one.remedy if one.needs_you else "")
        for one in concerns
    ]


async def _concerns(place: Place) -> tuple[Concern, ...]:
    async with asyncio.timeout(ANSWER_SECONDS), place.client() as client:
        return (await client.capabilities()).concerns


def _place() -> Path:
    """Return the runner's folder, or where it would be made: it says most about the real disk."""
    folder = state_folder()
    while not folder.exists():
        folder = folder.parent
    return folder


def _programs() -> list[Finding]:
    found = []
    for program in ISOLATING if os.geteuid() == 0 else ROOTLESS:
        path = shutil.which(program, path=SEARCH)
        remedy = "" if path else install_line(PACKAGES[program])
        found.append(Finding(what=program, text=path or "is not installed", remedy=remedy))
    return found


def _user() -> Finding:
    if os.geteuid() == 0:
        return Finding(what="user", text="root: builds are isolated")
    remedy = "run it as root; until then only trusted projects build here"
    return Finding(what="user", text="not root: builds are not isolated", remedy=remedy)


def _cgroups() -> Finding:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return Finding(what="cgroups", text="v2")
    if all((root / name).is_dir() for name in ("memory", "pids", "cpu")):
        return Finding(what="cgroups", text="v1")
    return Finding(
        what="cgroups", text="no memory, pids and cpu controllers", remedy="mount cgroup2 there"
    )


def _disk() -> Finding:
    folder = _place()
    free = shutil.disk_usage(folder).free
    remedy = "" if free >= DISK_FREE_MIN else f"free at least {size(DISK_FREE_MIN)} there"
    return Finding(what="disk", text=f"{size(free)} free at {folder}", remedy=remedy)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    remedy = "" if total >= MEMORY_MIN else "builds need about 1 GB; use a larger machine"
    return Finding(what="memory", text=size(total), remedy=remedy)
