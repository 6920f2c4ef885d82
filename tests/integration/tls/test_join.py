"""Joining over TLS: the secret goes to who made the code, and to nobody who stands in between."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.client.trust import pinned_ca
from pierhead.protocol.errors import IntegrityError, PierheadError, Unavailable
from pierhead.protocol.joincode import JoinAddress
from pierhead.protocol.runner import AddRunner, Enroll, Enrolled
from tests.acceptance.stage import BIN
from tests.integration.tls.plane import Plane, ready, stranger
from tests.keyboard import typed
from tests.ports import free_port


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    started = Plane(tmp_path_factory.mktemp("plane"), free_port())
    try:
        asyncio.run(ready(started))
        yield started
    finally:
        started.process.terminate()
        assert started.process.wait(60) == 0


async def test_a_machine_joins_who_made_the_code(plane: Plane) -> None:
    code = await plane.code("desktop")
    joined = await asyncio.to_thread(plane.join, code, "desktop")
    assert joined.returncode == 0, joined.stderr
    noted = msgspec.json.decode((plane.folder / "desktop" / "runner.json").read_bytes())
    assert noted["url"] == plane.url
    assert noted["ca"] == plane.ca
    assert (plane.folder / "desktop" / "runner.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("shows", ["its own authority", "the real authority"])
async def test_who_stands_in_between_never_reads_the_secret(
    plane: Plane, tmp_path: Path, shows: str
) -> None:
    code = await plane.code(f"laptop-{len(shows)}")
    shown = plane.ca.encode() if shows == "the real authority" else None
    async with stranger(tmp_path, shown) as between:
        address = JoinAddress(address=f"127.0.0.1:{between.port}", pin=code.pin, secret=code.secret)
        joined = await asyncio.to_thread(plane.join, address, "astray")

    assert joined.returncode != 0
    assert "error: " in joined.stderr
    assert "hint: " in joined.stderr
    assert between.seen.startswith(b"GET /ca.crt ")
    assert code.secret.encode() not in between.seen
    assert not (plane.folder / "astray").exists()
    # The code was not used up by this: the machine can still join.
    assert plane.join(code, f"late-{len(shows)}").returncode == 0


async def test_the_same_machine_may_use_its_code_again_and_no_other_may(plane: Plane) -> None:
    code = await plane.code("twice")
    first, again = plane.join(code, "twice"), plane.join(code, "twice")
    other = plane.join(code, "somewhere-else")
    noted = (plane.folder / "twice" / "runner.json").read_bytes()

    assert first.returncode == again.returncode == 0, again.stderr
    assert msgspec.json.decode(noted)["credential"]
    assert other.returncode == 1
    assert not (plane.folder / "somewhere-else").exists()
    assert "error: this join code was used by another machine" in other.stderr
    assert "hint: make a new one: pierhead add NAME --builds" in other.stderr


async def test_a_code_that_nobody_made_is_refused_with_what_to_do(plane: Plane) -> None:
    code = await plane.code("unknown")
    made_up = JoinAddress(address=code.address, pin=code.pin, secret="x" * 43)
    joined = plane.join(made_up, "unknown")
    assert joined.returncode == 1
    assert joined.stderr.endswith(
        "error: this join code is not known here\n\n"
        "hint: make a new one: pierhead add NAME --builds"
        "   (joined before: pierhead nodes remove NAME)\n"
    )
    assert not (plane.folder / "unknown").exists()


async def test_a_plan_changes_nothing_and_uses_nothing_up(plane: Plane) -> None:
    code = await plane.code("planned")
    state = plane.folder / "planned"
    planned = plane.join(code, "planned", "--plan", "--service", "--memory", "2G", "--cpus", "2")
    assert planned.returncode == 0, planned.stderr
    assert (
        f"joins      {plane.url}   (its certificate authority is {code.pin[:16]}" in planned.stderr
    )
    assert "may use    1 build at a time, 2 cores, 2.1 GB of memory" in planned.stderr
    assert "starts     pierhead-runner: " in planned.stderr
    assert not state.exists()
    assert plane.join(code, "planned").returncode == 0


@pytest.mark.parametrize("more", [["--cpus", "4096"], ["--memory", "999T"], ["--disk", "9999T"]])
async def test_more_than_the_machine_has_is_refused_before_the_code_is_used(
    plane: Plane, more: list[str]
) -> None:
    code = await plane.code(f"greedy-{more[0].strip('-')}")
    for plan in ([], ["--plan"]):
        refused = plane.join(code, "greedy", *more, *plan)
        assert refused.returncode == 2
        assert f"error: {more[0]} {more[1]}" in refused.stderr
        assert f"hint: {more[0]} " in refused.stderr
    assert plane.join(code, f"greedy-{more[0]}").returncode == 0


async def test_a_service_is_not_set_up_unasked(plane: Plane) -> None:
    code = await plane.code("unasked")
    asked = plane.join(code, "unasked", "--service")
    assert asked.returncode == 2
    assert asked.stderr.endswith("hint: pierhead join --yes\n")
    assert plane.join(code, "unasked").returncode == 0


async def test_a_machine_belongs_to_one_control_plane(plane: Plane, tmp_path: Path) -> None:
    assert plane.join(await plane.code("loyal"), "loyal").returncode == 0
    code = await plane.code("loyal-2")
    elsewhere = JoinAddress(
        address=code.address.replace("127.0.0.1", "localhost"), pin=code.pin, secret=code.secret
    )
    refused = plane.join(elsewhere, "loyal")
    assert refused.returncode == 1
    assert f"error: this machine has joined {plane.url} as loyal" in refused.stderr


async def test_a_copy_of_a_runners_state_is_refused_and_the_runner_goes_on(plane: Plane) -> None:
    assert plane.join(await plane.code("original"), "original").returncode == 0
    shutil.copytree(plane.folder / "original", plane.folder / "copy")
    original = plane.runner("original")
    try:
        await plane.online("original")
        copy = plane.runner("copy")
        assert await asyncio.to_thread(copy.wait, 120) == 1
        said = (plane.folder / "copy.log").read_text()
        assert "error: this is a copy of the state of original, not original" in said
        assert "hint: join this machine with a code of its own: pierhead add NAME" in said
        await plane.online("original")
        assert original.poll() is None
    finally:
        original.terminate()
        assert original.wait(90) == 0

    # Nor does it get in when the original is away.
    copy = plane.runner("copy")
    assert await asyncio.to_thread(copy.wait, 120) == 1


async def test_another_pin_is_an_integrity_error(plane: Plane) -> None:
    assert await pinned_ca(plane.url, (await plane.code("x1")).pin) == plane.ca
    with pytest.raises(IntegrityError, match="is not the control plane that was named"):
        await pinned_ca(plane.url, "0" * 64)


async def test_without_the_authority_nothing_is_sent_and_the_reason_is_said(plane: Plane) -> None:
    async with RouterClient(plane.url, token="pho_canary") as client:
        with pytest.raises(Unavailable, match="is not to be trusted") as refused:
            await client.projects()
    assert "--pin" in (refused.value.problem.hint or "")


async def test_of_twenty_machines_that_race_for_a_code_one_gets_in(plane: Plane) -> None:
    code = await plane.code("raced")

    async def race(number: int) -> Enrolled | PierheadError:
        async with RouterClient(plane.url, ca=plane.ca) as machine:
            wanted = Enroll(secret=code.secret, nonce=f"machine-{number}")
            try:  # a lost answer is asked for again, as by a machine that joins
                return await patiently(lambda: machine.enroll(wanted), 60)
            except PierheadError as error:
                return error

    ends = await asyncio.gather(*(race(number) for number in range(20)))
    winners = [end for end in ends if isinstance(end, Enrolled)]
    losers = [end for end in ends if isinstance(end, PierheadError)]
    assert len(winners) == 1
    assert {loser.problem.slug for loser in losers} == {"join-code-used"}
    assert all(loser.problem.hint for loser in losers)


async def test_a_typo_in_the_name_does_not_use_the_code_up(plane: Plane) -> None:
    code = await plane.code("server")
    wrong = plane.join(code, "server", "--name", "sevrer")
    right = plane.join(code, "server", "--name", "server")
    assert wrong.returncode == 1
    assert "hint: use --name server" in wrong.stderr
    assert right.returncode == 0, right.stderr


def curl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["curl", "-sS", "--max-time", "90", *words], capture_output=True, text=True, check=False
    )


async def test_the_printed_line_gets_the_script_from_nobody_else(
    plane: Plane, tmp_path: Path
) -> None:
    async with plane.owner() as owner:
        made = await owner.add_runner(AddRunner(name="scripted"))
    pinned = ["--insecure", "--pinnedpubkey", made.key_pin]
    real = curl(*pinned, f"{plane.url}/join")
    async with stranger(tmp_path, b"#!/bin/sh\necho taken over\n") as between:
        false = await asyncio.to_thread(curl, *pinned, f"https://127.0.0.1:{between.port}/join")

    assert real.stdout.startswith("#!/bin/sh\n")
    assert real.stdout == (_SCRIPT).read_text()
    assert false.returncode == 90
    assert false.stdout == ""


_SCRIPT = Path(__file__).parents[3] / "packages/router/src/pierhead/router/http/join.sh"


def script(
    text: str, *words: str, path: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-s", "--", *words],
        input=text,
        env={"PATH": path, "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


async def test_the_script_joins_with_a_shell_alone_and_the_secret_in_no_command_line(
    plane: Plane, tmp_path: Path
) -> None:
    code = await plane.code("shell")
    # A command of the same name notes what it was told in which way, then is the real one.
    wrapper = tmp_path / "pierhead"
    wrapper.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >{tmp_path}/words\nexec {BIN}/pierhead "$@"\n'
    )
    wrapper.chmod(0o755)
    done = script(
        _SCRIPT.read_text(),
        str(code),
        "--no-service",
        path=f"{tmp_path}:/usr/sbin:/usr/bin:/bin",
        PIERHEAD_RUNNER_STATE=str(tmp_path / "state"),
        PIERHEAD_CONFIG=str(tmp_path / "config"),
    )
    assert done.returncode == 0, done.stderr
    assert code.secret not in (tmp_path / "words").read_text()
    assert (tmp_path / "state" / "runner.json").exists()


def test_the_script_says_what_is_missing_on_a_machine_with_nothing() -> None:
    done = script(_SCRIPT.read_text(), "ph1_h:1_-_secret", path="/usr/bin:/bin")
    assert done.returncode == 3
    assert done.stderr.startswith("error: neither pierhead nor uv is installed")
    assert "hint: " in done.stderr


@pytest.mark.parametrize("words", [(), ("hello",), ("ph1_half",)])
def test_the_script_refuses_what_is_no_code(words: tuple[str, ...]) -> None:
    done = script(_SCRIPT.read_text(), *words, path="/usr/bin:/bin")
    assert done.returncode == 2
    assert re.match(r"error: .*\n\nhint: ", done.stderr)


def test_of_a_script_that_was_cut_nothing_runs(tmp_path: Path) -> None:
    text = _SCRIPT.read_text()
    for share in (0.3, 0.6, 0.9, 0.99):
        cut = text[: int(len(text) * share)]
        done = script(cut, "ph1_h:1_-_secret", path=f"{tmp_path}")
        assert "installed" not in done.stderr


def login(
    plane: Plane, folder: Path, *words: str, keys: bytes | None = None, **environment: str
) -> tuple[int, str]:
    """Type `pierhead login`, on a terminal if there are keys; return its end and what it said."""
    place = {"PIERHEAD_CONFIG": str(folder), "NO_COLOR": "1", **environment}
    command = [str(BIN / "pierhead"), "login", plane.url, *words]
    if keys is None:
        token = (plane.folder / "config" / "token").read_text()
        done = subprocess.run(
            command,
            env={**os.environ, **place},
            input=token,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stderr
    return typed(command, {**os.environ, **place}, keys)


async def test_an_unknown_authority_is_shown_and_asked_about_before_any_token(
    plane: Plane, tmp_path: Path
) -> None:
    pin = (await plane.code("shown")).pin
    token = tmp_path / "token"
    token.write_text((plane.folder / "config" / "token").read_text())
    said_no = login(plane, tmp_path / "no", "--token-file", str(token), keys=b"n\n")
    said_yes = login(plane, tmp_path / "yes", "--token-file", str(token), keys=b"y\n")

    assert said_no[0] == 1
    assert pin in said_no[1]
    assert not (tmp_path / "no" / "context.json").exists()
    assert said_yes[0] == 0, said_yes[1]
    noted = msgspec.json.decode((tmp_path / "yes" / "context.json").read_bytes())
    assert noted["ca"] == plane.ca
    assert (tmp_path / "yes" / "context.json").stat().st_mode & 0o777 == 0o600


def test_an_authority_that_the_system_trusts_needs_no_pin(plane: Plane, tmp_path: Path) -> None:
    file = str(plane.folder / "config" / "ca.crt")
    code, said = login(plane, tmp_path, SSL_CERT_FILE=file)
    assert code == 0, said
    assert "ca" not in msgspec.json.decode((tmp_path / "context.json").read_bytes())


def test_three_variables_stand_for_a_login(plane: Plane, tmp_path: Path) -> None:
    place = {
        "PIERHEAD_CONFIG": str(tmp_path),
        "PIERHEAD_URL": plane.url,
        "PIERHEAD_TOKEN": (plane.folder / "config" / "token").read_text().strip(),
        "PIERHEAD_CA": str(plane.folder / "config" / "ca.crt"),
    }

    def status(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "pierhead", "status"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    seen, blind = status(place), status({**place, "PIERHEAD_CA": ""})
    missing = status({**place, "PIERHEAD_CA": str(tmp_path / "none")})
    assert seen.returncode == 0, seen.stderr
    assert blind.returncode == 3
    assert "is not to be trusted" in blind.stderr
    assert missing.returncode != 0
    assert "there is no certificate in" in missing.stderr
    assert "hint: " in missing.stderr
