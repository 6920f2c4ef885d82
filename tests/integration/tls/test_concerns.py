"""An authority that ends soon, and one that is being changed: what status and doctor say of it."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.project import NewProject, NewToken
from pierhead.server.authority import AUTHORITY_LIFETIME, new_authority
from pierhead.server.tls import AUTHORITY_FILE
from tests.integration.tls.plane import Plane, ready
from tests.ports import free_port

LEFT = timedelta(days=100)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    """A control plane whose authority was made nearly ten years ago."""
    folder = tmp_path / "data" / "tls"
    folder.mkdir(parents=True)
    old = new_authority("pierhead", now=datetime.now(UTC) - AUTHORITY_LIFETIME + LEFT)
    (folder / AUTHORITY_FILE).write_bytes(old.pem)
    started = Plane(tmp_path, free_port())
    try:
        asyncio.run(ready(started))
        yield started
    finally:
        started.process.terminate()
        assert started.process.wait(60) == 0


def test_an_authority_that_ends_soon_is_told_until_another_one_is_on_its_way(plane: Plane) -> None:
    ends = f"{datetime.now(UTC) + LEFT:%Y-%m-%d}"
    before = plane.type("status")
    document = json.loads(plane.type("status", "--json").stdout)
    rotated = plane.type("ca", "rotate")
    after = plane.type("status")

    assert before.returncode == 0, before.stderr
    said, remedy, *_ = before.stdout.splitlines()
    assert said.startswith(f"needs you   the certificate authority ends on {ends}, in ")
    assert remedy == "            -> pierhead ca rotate"
    (concern,) = document["capabilities"]["concerns"]
    assert concern["what"] == "authority"
    assert concern["remedy"] == "pierhead ca rotate"
    assert rotated.returncode == 0, rotated.stderr
    said, remedy, *_ = after.stdout.splitlines()
    assert said.startswith("note        the certificate authority is being changed: another one ")
    assert remedy == "            -> pierhead ca"


async def test_a_project_is_told_nothing_of_it(plane: Plane) -> None:
    async with plane.on_its_machine() as owner:
        await owner.add_project(NewProject(name="web"))
        made = await owner.add_token(NewToken(key="once", name="ci", project="web"))
        told = (await owner.capabilities()).concerns
    async with RouterClient(plane.url, token=made.token, ca=plane.ca) as project:
        assert (await project.capabilities()).concerns == ()
    assert [one.what for one in told] == ["authority"]


async def test_doctor_tells_it_to_a_machine_that_joined_and_to_the_owner(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = await asyncio.to_thread(plane.join, await plane.code("desktop"), "desktop")
    assert joined.returncode == 0, joined.stderr

    monkeypatch.setenv("PIERHEAD_URL", f"http://127.0.0.1:{plane.port}")  # the owner is here
    examined = await asyncio.to_thread(plane.examine, "desktop")

    assert examined.returncode == 1
    lines = examined.stdout.splitlines()
    said, remedy = finding(lines, " is believed by an authority that ends on ")
    assert said.startswith(f"problem  authority  {plane.url} is believed by ")
    assert remedy == "-> on the control plane: pierhead ca rotate"
    said, remedy = finding(lines, "the certificate authority ends on ")
    assert said.startswith("problem  authority  ")
    assert remedy == "-> pierhead ca rotate"


def finding(lines: list[str], words: str) -> tuple[str, str]:
    """Return the only line with these words, and the one below it."""
    (at,) = [number for number, line in enumerate(lines) if words in line]
    return lines[at], lines[at + 1].strip()
