"""Another certificate authority while everything goes on, and at once: real processes and TLS."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from pierhead.protocol.authority import AFTER_SECONDS, AuthorityView, Replace, Rotate
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.client.trust import Trust, fingerprint, fingerprints
from pierhead.protocol.errors import Refused, TokenRefused, Unavailable
from pierhead.protocol.lease import Acquired
from pierhead.protocol.version import AUTHORITIES_HEADER
from pierhead.router.compose import Router, open_router
from pierhead.router.config import Settings
from pierhead.router.domain.authority import ANNOUNCED_AT_LEAST
from pierhead.router.domain.reach import reach
from tests.acceptance.stage import BIN, BUSYBOX, eventually
from tests.held_step import held_step
from tests.integration.router.stage import House, MovableClock, ScriptedRunner
from tests.integration.tls.plane import Plane, Stranger, ready, stranger
from tests.keyboard import typed
from tests.ports import free_port

pytestmark = pytest.mark.timeout(600)
Step = Callable[[RouterClient], Awaitable[AuthorityView]]
AFTER = timedelta(seconds=AFTER_SECONDS)
TURNS = ("announced", "switched", "steady")


async def announce(owner: RouterClient) -> AuthorityView:
    return await owner.rotate(Rotate())


async def advance(owner: RouterClient) -> AuthorityView:
    return await owner.advance_rotation()


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    started = Plane(tmp_path, free_port())
    try:
        asyncio.run(ready(started))
        yield started
    finally:
        started.process.terminate()
        assert started.process.wait(60) == 0


async def kill(plane: Plane) -> None:
    """Kill the control plane without a word, and start it again."""
    plane.process.kill()
    await asyncio.to_thread(plane.process.wait)
    plane.start()
    await ready(plane)


async def authority(plane: Plane) -> AuthorityView:
    async with plane.on_its_machine() as owner:
        return await owner.authority()


async def do(plane: Plane, *steps: Step) -> AuthorityView:
    async with plane.on_its_machine() as owner:
        found = [await step(owner) for step in steps]
    return found[-1]


async def answers(plane: Plane, ca: str) -> bool:
    """Say whether whoever believes these authorities, and no others, reaches the control plane."""
    async with RouterClient(plane.url, ca=ca) as visitor:
        try:
            await patiently(visitor.meta, 60)
        except Unavailable as error:
            return "is not to be trusted" not in str(error)
    return True


def known_by(file: Path) -> tuple[str, ...]:
    return fingerprints(msgspec.json.decode(file.read_bytes())["ca"])


def login(plane: Plane, name: str) -> Path:
    """Let commands of another machine know the control plane; return what they note."""
    command = [str(BIN / "pierhead"), "login", plane.url, "--pin", fingerprints(plane.ca)[0]]
    environment = {**os.environ, **plane.environment, "PIERHEAD_CONFIG": str(plane.folder / name)}
    subprocess.run(command, env=environment, input=plane.owner_token, text=True, check=True)
    return plane.folder / name / "context.json"


@asynccontextmanager
async def at_work(plane: Plane, name: str) -> AsyncIterator[Path]:
    """Let a machine join, and build; yield what its runner says."""
    joined = plane.join(await plane.code(name), name)
    assert joined.returncode == 0, joined.stderr
    runner = plane.runner(name)
    try:
        await plane.online(name)
        yield plane.folder / f"{name}.log"
    finally:
        runner.terminate()
        await asyncio.to_thread(runner.wait, 120)


def lasting(view: AuthorityView) -> AuthorityView:
    """Leave out what runners say of it, at any time."""
    return msgspec.structs.replace(view, knowing=(), unknowing=(), awaited=())


async def test_a_build_goes_on_over_all_of_it_although_the_control_plane_is_killed_each_time(
    plane: Plane, tmp_path: Path
) -> None:
    noted, old = login(plane, "laptop"), fingerprints(plane.ca)
    source = tmp_path / "source"
    source.mkdir()
    (source / "busybox").write_bytes(BUSYBOX.read_bytes())
    (source / "busybox").chmod(0o755)
    with held_step() as step:
        (source / "Dockerfile").write_text(
            f"FROM scratch\nCOPY busybox /bin/busybox\nRUN {json.dumps(step.words)}\n"
        )
        async with at_work(plane, "desktop") as log:
            words = ["build", str(source), "--if-nobody", "fail", "--project", "slow"]
            typed_in = asyncio.to_thread(plane.type, *words, config="laptop", within=500)
            build = asyncio.create_task(typed_in)

            async def is_building() -> bool:
                async with plane.on_its_machine() as owner:
                    phases = [view.phase for view in (await owner.builds()).builds]
                return phases == ["building"] and step.is_running

            await eventually(is_building, within=120)

            for turn, go_on in zip(TURNS, (announce, advance, advance), strict=True):
                before = await do(plane, go_on)
                await kill(plane)
                assert lasting(await authority(plane)) == lasting(before)
                assert before.turn == turn

                async def know(pins: frozenset[str] = frozenset(fingerprints(plane.ca))) -> bool:
                    files = (plane.folder / "desktop" / "runner.json", noted)
                    return all(set(known_by(file)) == pins for file in files)

                await eventually(know, within=120, what=f"both know who is {turn}")
                assert await is_building()

            step.let_go()
            done = await build
            assert done.returncode == 0, done.stderr
            async with plane.on_its_machine() as owner:
                [view] = (await owner.builds()).builds
            assert (view.state, view.attempts) == ("succeeded", 1)

            async def has_said_so() -> bool:
                return (await authority(plane)).knowing == ("desktop",)

            await eventually(has_said_so, within=120)
            said = log.read_text()
            assert said.count("authorities.learned") == 2  # the new one, and that it is alone
            assert "certificate" not in said

    # The command that followed the build learned it as well.
    assert known_by(noted) == fingerprints(plane.ca) != old
    assert plane.type("status", config="laptop").returncode == 0


async def test_whoever_knows_one_of_the_two_is_let_through_until_the_old_one_is_alone_no_more(
    plane: Plane,
) -> None:
    old = plane.ca
    await do(plane, announce)
    assert fingerprints(plane.ca)[0] == fingerprint(old)
    new = plane.ca.removeprefix(old)
    assert await answers(plane, old)
    assert await answers(plane, new)
    await do(plane, advance)
    assert plane.ca == new + old
    assert await answers(plane, old)
    assert await answers(plane, new)
    await do(plane, advance)
    assert plane.ca == new
    assert not await answers(plane, old)
    assert await answers(plane, new)
    # Nothing is left of the old one's key: one key for each certificate that signs.
    assert (plane.folder / "data/tls/authority.pem").read_text().count("PRIVATE KEY") == 2


async def test_programs_of_others_are_let_through_by_either_of_the_two(
    plane: Plane, tmp_path: Path
) -> None:
    old = plane.ca
    await do(plane, announce)
    new = plane.ca.removeprefix(old)
    for name, text in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ca.crt").write_text(text)
    assert [await others(plane, tmp_path / name) for name in ("old", "new")] == [True, True]
    await do(plane, advance)
    assert [await others(plane, tmp_path / name) for name in ("old", "new")] == [True, True]
    await do(plane, advance)
    assert [await others(plane, tmp_path / name) for name in ("old", "new")] == [False, True]


async def others(plane: Plane, folder: Path) -> bool:
    """Say whether curl and skopeo, whose TLS are two, believe the control plane by a file."""
    host = plane.url.removeprefix("https://")
    curl = ["curl", "-sS", "--cacert", str(folder / "ca.crt"), plane.url + "/api/meta"]
    login = ["--cert-dir", str(folder), "--creds", f"owner:{plane.owner_token}"]
    ends = []
    for command in (curl, ["skopeo", "list-tags", *login, f"docker://{host}/nothing"]):
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        ends.append("certificate" not in done.stderr)
    assert ends[0] == ends[1]
    return ends[0]


async def test_it_can_be_taken_back_until_the_new_one_signs(plane: Plane) -> None:
    noted, old = login(plane, "laptop"), plane.ca
    first = await do(plane, announce)
    assert plane.type("status", config="laptop").returncode == 0
    assert known_by(noted) == fingerprints(plane.ca)
    assert len(known_by(noted)) == 2
    found = await do(plane, lambda owner: owner.cancel_rotation())
    assert (found.turn, found.root) == ("steady", first.root)
    assert plane.ca == old
    assert plane.type("status", config="laptop").returncode == 0
    assert known_by(noted) == fingerprints(old)
    for state, step in ((first, advance), (found, lambda owner: owner.cancel_rotation())):
        with pytest.raises(Refused) as refused:
            await do(plane, step)
        assert refused.value.problem.slug == "rotation-conflict", state


@pytest.mark.parametrize("made", ["before", "announced"])
@pytest.mark.parametrize("used", ["announced", "switched"])
async def test_a_code_is_good_whatever_signs_by_then(plane: Plane, made: str, used: str) -> None:
    code = await plane.code("attic") if made == "before" else None
    await do(plane, announce)
    code = code or await plane.code("attic")
    assert code.pin == fingerprints(plane.ca)[0 if made == "before" else 1]
    if used == "switched":
        await do(plane, advance)
    noted = login(plane, "laptop")
    assert known_by(noted) == fingerprints(plane.ca)
    joined = plane.join(code, "attic")
    assert joined.returncode == 0, joined.stderr
    # Verified by the one that the code names, it learned the other.
    assert known_by(plane.folder / "attic" / "runner.json") == fingerprints(plane.ca)


async def test_who_was_away_all_the_time_is_told_what_happened_and_comes_back_by_a_code(
    plane: Plane,
) -> None:
    noted = login(plane, "laptop")
    async with at_work(plane, "attic") as log:
        pass
    before, length = noted.read_bytes(), len(log.read_text())
    await do(plane, announce, advance, advance)

    runner = plane.runner("attic")
    try:

        async def has_said() -> bool:
            return "is not believed any more" in log.read_text()[length:]

        await eventually(has_said, within=120)
    finally:
        runner.terminate()
        await asyncio.to_thread(runner.wait, 120)
    said = log.read_text()[length:]
    assert "Either it was changed while this machine was away, or somebody else answers" in said
    assert "pierhead nodes remove attic && pierhead add attic --builds" in said

    examined = plane.examine("attic")
    assert f"problem  reach      {plane.url} is not believed any more" in examined.stdout
    assert "-> if pierhead ca says" in examined.stdout

    asked = plane.type("status", config="laptop")
    assert asked.returncode == 3
    assert f"error: {plane.url} is not believed any more" in asked.stderr
    assert f"pierhead login {plane.url} --pin PIN" in asked.stderr
    assert noted.read_bytes() == before

    assert (await authority(plane)).unknowing == ("attic",)
    shown = plane.type("ca")
    assert "not yet    attic" in shown.stdout
    assert "pierhead nodes remove attic && pierhead add attic --builds" in shown.stderr
    assert plane.type("nodes", "remove", "attic", "--yes").returncode == 0
    async with at_work(plane, "attic"):
        assert f"ok       reach      {plane.url} answers" in plane.examine("attic").stdout


class Teller(Stranger):
    """Somebody in between who would like to be believed."""

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say with each answer by whom they are to be believed, and show that one."""
        pin = fingerprint(self.certificates.authority.decode())
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.seen += data
                asks = data.startswith(b"GET /ca.crt ")
                body = self.certificates.authority if asks else b'{"low":1,"high":1,"release":"x"}'
                said = f"{AUTHORITIES_HEADER}: {pin}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + said.encode() + body)
        writer.close()


@pytest.mark.parametrize("way", ["tls", "clear"])
async def test_nobody_in_between_makes_anybody_believe_them(tmp_path: Path, way: str) -> None:
    learned: list[str] = []
    async with stranger(tmp_path, kind=Teller, tls=way == "tls") as between:
        real = tmp_path / "real"
        async with open_authority(real) as (router, _):
            assert router.handshakes is not None
            trust = Trust(router.handshakes.authority.decode(), learned.append)
        url = f"{'https' if way == 'tls' else 'http'}://127.0.0.1:{between.port}"
        async with RouterClient(url, token="pho_canary", ca=trust) as visitor:
            if way == "tls":
                with pytest.raises(Unavailable, match="is not believed any more"):
                    await visitor.meta()
                assert between.seen == b""
            else:
                assert (await visitor.meta()).release == "x"  # heard, but nothing was proven
    assert learned == []
    assert b"GET /ca.crt" not in between.seen
    assert len(trust.pins) == 1


# Inside of one process, where time can be moved, and visitors come from elsewhere.


@asynccontextmanager
async def open_authority(
    folder: Path, clock: MovableClock | None = None
) -> AsyncIterator[tuple[Router, Callable[..., RouterClient]]]:
    """Open a control plane of its own authority, and what connects to it from an address."""
    folder.mkdir(exist_ok=True)
    settings = Settings(data=folder, config=folder, here=False)
    reached = reach(host="0.0.0.0", port=7443, usual_address="127.0.0.1")
    async with contextlib.AsyncExitStack() as opened:
        router = await opened.enter_async_context(open_router(settings, reached, clock=clock))

        def client(token: str | None = None, address: str = "127.0.0.1") -> RouterClient:
            said = token or (folder / "token").read_text().strip()
            asgi = httpx.ASGITransport(router.app, client=(address, 1))
            made = RouterClient("http://127.0.0.1:7443", token=said, transport=asgi)
            opened.push_async_callback(made.close)
            return made

        yield router, client


async def test_it_signs_when_all_know_it_and_is_alone_a_while_later(tmp_path: Path) -> None:
    clock = MovableClock()
    async with open_authority(tmp_path, clock) as (router, client):
        owner = client()
        await owner.rotate(Rotate())
        house: Any = FromHere(client)
        knows, lacks = await house.runner("knows"), await house.runner("lacks")
        old, new = router.authorities.pins()
        for runner, pins in ((knows, (old, new)), (lacks, (old,))):
            request = msgspec.structs.replace(runner.request(), authorities=pins)
            await runner.client.acquire(request)
        clock.advance(ANNOUNCED_AT_LEAST.total_seconds())
        await router.authorities.on_time()
        found = await owner.authority()
        assert (found.turn, found.knowing, found.awaited) == ("announced", ("knows",), ("lacks",))

        await lacks.release()  # it was stopped: nobody waits for it
        await router.authorities.on_time()
        found = await owner.authority()
        assert (found.turn, found.root.fingerprint) == ("switched", new)
        assert (found.unknowing, found.awaited) == (("lacks",), ())
        clock.advance((AFTER - timedelta(hours=1)).total_seconds())
        await router.authorities.on_time()
        assert (await owner.authority()).turn == "switched"
        clock.advance(3600)
        await router.authorities.on_time()
        found = await owner.authority()
        assert (found.turn, found.root.fingerprint, found.leaving) == ("steady", new, None)


class FromHere(House):
    """What lets scripted runners in, without a socket."""

    def __init__(self, client: Callable[..., RouterClient]) -> None:
        self._client = client

    def client(self, token: str | None) -> RouterClient:
        return self._client(token)

    @property
    def owner(self) -> RouterClient:
        return self._client()


async def held(router: Router, runner: ScriptedRunner) -> "asyncio.Task[Acquired]":
    """Let a runner ask for work; return what waits for the answer, once the request is held."""
    waiting = asyncio.create_task(runner.acquire(hold_ms=25_000))

    async def waits() -> bool:
        return len(router.bells._parked) == 1

    await eventually(waits, within=60)
    return waiting


async def test_a_runner_that_waits_for_work_hears_of_it_at_once(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (router, client):
        house: Any = FromHere(client)
        runner: ScriptedRunner = await house.runner("desktop")
        waiting = await held(router, runner)
        async with asyncio.timeout(20):
            await client().rotate(Rotate())
            assert (await waiting).grants == ()


async def test_a_runner_that_waits_is_let_in_no_more_when_all_have_to_join_again(
    tmp_path: Path,
) -> None:
    async with open_authority(tmp_path) as (router, client):
        house: Any = FromHere(client)
        runner: ScriptedRunner = await house.runner("desktop")
        waiting = await held(router, runner)
        owner = client()
        pin = (await owner.authority()).root.fingerprint
        async with asyncio.timeout(20):
            done = await owner.replace_authority(Replace(fingerprint=pin))
            with pytest.raises(TokenRefused):
                await waiting
        assert done.runners == ("desktop",)
        assert (await owner.authority()).root.fingerprint == done.new_fingerprint != pin
        # The name is kept for it, and for whoever has a new code only.
        again = await house.runner("desktop")
        assert again.credential != runner.credential
        with pytest.raises(TokenRefused):
            await runner.acquire()


async def test_from_another_machine_the_owner_may_look_and_change_nothing(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (_, client):
        owner = client(address="203.0.113.9")
        before = await owner.authority()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: owner.rotate(Rotate()),
            owner.cancel_rotation,
            owner.advance_rotation,
            lambda: owner.replace_authority(Replace(fingerprint=before.root.fingerprint)),
        ]
        for call in calls:
            with pytest.raises(Refused) as refused:
                await call()
            assert refused.value.problem.slug == "not-allowed"
        assert await owner.authority() == before


# At once.


def type_in(plane: Plane, *words: str, keys: bytes) -> tuple[int, str]:
    """Type a command at a terminal; return its exit code, and what is seen there."""
    place = {**plane.environment, "PIERHEAD_URL": f"http://127.0.0.1:{plane.port}"}
    command = [str(BIN / "pierhead"), *words]
    return typed(command, {**os.environ, **place}, keys)


async def test_whoever_may_have_been_copied_ends_at_once_and_everybody_joins_again(
    plane: Plane,
) -> None:
    noted, old = login(plane, "laptop"), plane.ca
    pin = fingerprint(old)
    key = (plane.folder / "data/tls/server.pem").read_bytes().partition(b"-----BEGIN CERT")[0]
    async with at_work(plane, "desktop"):
        code = await plane.code("attic")
        await plane.code("cellar")
        unconfirmed = plane.type("ca", "rotate", "--now")
        stale = plane.type("ca", "rotate", "--now", "--fingerprint", "0" * 64)
        assert (unconfirmed.returncode, stale.returncode) == (1, 1)
        assert "error: nothing was changed" in unconfirmed.stderr
        assert "error: the authority has another fingerprint" in stale.stderr
        assert plane.ca == old
        assert await answers(plane, old)

        done = plane.type("ca", "rotate", "--now", "--fingerprint", pin)
        assert done.returncode == 0, done.stderr
        new = fingerprint(plane.ca)
        assert done.stdout.strip() == new != pin
        assert "2 join codes ended" in done.stderr
        assert "next: pierhead add desktop --builds" in done.stderr

        assert not await answers(plane, old)
        assert await answers(plane, plane.ca)
        async with plane.on_its_machine() as owner:
            [desktop] = (await owner.capabilities()).runners
        assert not desktop.online  # no build waits for it
        # Whoever believes the new one, and has an old credential, is let in no more.
        async with RouterClient(
            plane.url, token=credential(plane, "desktop"), ca=plane.ca
        ) as expelled:
            with pytest.raises(TokenRefused, match="is not known here any more"):
                await expelled.projects()

    assert key not in (plane.folder / "data/tls/server.pem").read_bytes()
    joined = plane.join(code, "attic")
    assert joined.returncode == 1
    assert "is not the control plane that was named" in joined.stderr
    assert plane.type("status", config="laptop").returncode == 3
    assert known_by(noted) == (pin,)
    audit = [
        line
        for text in (plane.folder / "plane.log").read_text().splitlines()
        if text.startswith("{")
        and (line := msgspec.json.decode(text))["event"] == "authority.replaced"
    ]
    assert [(line["old_fingerprint"], line["new_fingerprint"]) for line in audit] == [(pin, new)]

    await kill(plane)
    assert fingerprint(plane.ca) == new
    async with at_work(plane, "desktop"):  # its name was kept for it
        pass


def credential(plane: Plane, name: str) -> str:
    noted = msgspec.json.decode((plane.folder / name / "runner.json").read_bytes())
    return str(noted["credential"])


async def test_at_a_terminal_the_fingerprint_is_typed(plane: Plane) -> None:
    old = plane.ca
    words, pin = ("ca", "rotate", "--now"), fingerprint(old)
    wrong = await asyncio.to_thread(type_in, plane, *words, keys=b"f" * 64 + b"\n")
    assert wrong[0] == 1
    assert "error: the authority has another fingerprint" in wrong[1]
    assert plane.ca == old
    right = await asyncio.to_thread(type_in, plane, *words, keys=pin.encode() + b"\n")
    assert right[0] == 0, right[1]
    assert fingerprint(plane.ca) != pin


async def test_a_code_from_before_names_somebody_who_is_none_any_more(plane: Plane) -> None:
    code = await plane.code("attic")
    await do(plane, announce, advance, advance)
    joined = plane.join(code, "attic")
    assert joined.returncode == 1
    assert "was its authority changed since" in joined.stderr
