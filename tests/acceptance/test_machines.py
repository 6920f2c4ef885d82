"""Machines of their own: one keeps the control plane, others build, push and pull over TLS."""

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .connect_proxy import __file__ as connect_proxy
from .machines import Machine, machines
from .stage import BUSYBOX, HELLO, PATIENCE_SECONDS, eventually

PORT = 7443
PROXY_PORT = 3128
LOGIN = "me:pass%2Fword"  # as it stands in a URL
CERTIFICATES = Path("/etc/containers/certs.d")
# Longer than a lease: without heartbeats the build would be lost on the way.
LONG = HELLO.replace("CMD", "RUN sleep 25\nCMD")


@dataclass(frozen=True, slots=True)
class Town:
    """Machines, and the control plane on one of them."""

    plane: Machine
    desktop: Machine
    laptop: Machine
    gate: Machine
    office: Machine
    pin: str

    @property
    def registry(self) -> str:
        return f"{self.plane.address}:{PORT}"

    @property
    def token(self) -> Path:
        return self.plane.folder / "config" / "token"

    def join(self, machine: Machine, name: str) -> str:
        """Add a machine on the control plane, and paste the printed line on the machine."""
        line = self.plane.type("add", name, "--builds", "--no-wait")
        pasted = machine.run("sh", "-c", f"{line} --yes")
        assert pasted.returncode == 0, pasted.stderr
        return pasted.stderr

    async def online(self, name: str) -> None:
        async def is_there() -> bool:
            seen = json.loads(self.plane.type("status", "--json"))
            runners = seen["capabilities"]["runners"]
            return any(runner["name"] == name and runner["online"] for runner in runners)

        await eventually(is_there, within=PATIENCE_SECONDS, what=f"{name} is online")

    def log_in(self, machine: Machine) -> None:
        machine.type("login", f"https://{self.registry}", "--pin", self.pin, stdin=self.secret)

    @property
    def secret(self) -> str:
        return self.token.read_text()

    def pull(self, machine: Machine, reference: str, to: Path) -> str:
        """Pull with a client that knows nothing of us but certs.d; return the digest."""
        folder = CERTIFICATES / self.registry
        folder.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(self.plane.folder / "config" / "ca.crt", folder / "ca.crt")
            login = self.plane.folder / "config" / "docker" / "config.json"
            copied = machine.run(
                *("skopeo", "copy", "--authfile", login, "--digestfile", to / "digest"),
                *(f"docker://{reference}", f"oci:{to / 'image'}:x"),
            )
        finally:
            shutil.rmtree(folder)
            with contextlib.suppress(OSError):  # somebody else's are in it
                CERTIFICATES.rmdir()
        assert copied.returncode == 0, copied.stderr
        return (to / "digest").read_text().strip()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with machines(tmp_path_factory.mktemp("town")) as all_of_them:
        plane = all_of_them["plane"]
        up = plane.run("pierhead", "up", "--port", str(PORT))
        assert up.returncode == 0, up.stderr + plane.logs()
        found = re.search(r"^pin +([0-9a-f]{64})$", up.stderr, re.MULTILINE)
        assert found is not None, up.stderr
        yield Town(**all_of_them, pin=found[1])


def context(machine: Machine, dockerfile: str = HELLO) -> Path:
    folder = machine.folder / "web"
    folder.mkdir(exist_ok=True)
    shutil.copy(BUSYBOX, folder / "busybox")
    (folder / "Dockerfile").write_text(dockerfile)
    return folder


def built_on(machine: Machine) -> str:
    runner: str = json.loads(machine.type("builds", "show", "@", "--json"))["runner"]
    return runner


async def test_one_machine_asks_another_builds_and_the_image_comes_over_tls(
    town: Town, tmp_path: Path
) -> None:
    said = town.join(town.desktop, "desktop")
    await town.online("desktop")
    town.log_in(town.laptop)
    reference = town.laptop.type("build", "-t", "web:1", context(town.laptop))

    assert f"its certificate authority is {town.pin[:16]}" in said
    assert re.fullmatch(rf"{re.escape(town.registry)}/web@sha256:[0-9a-f]{{64}}", reference)
    assert built_on(town.laptop) == "desktop"
    assert town.pull(town.laptop, reference, tmp_path) == reference.partition("@")[2]
    # What was built is a base image, under the name that people see, by TLS and our own authority.
    on_top = context(town.laptop, f"FROM {reference}\nCOPY busybox /again\n")
    second = town.laptop.type("build", "-t", "web:2", on_top)
    assert built_on(town.laptop) == "desktop"
    assert second not in {"", reference}


def test_a_wrong_pin_is_told_no_token(town: Town) -> None:
    url = f"https://{town.registry}"
    refused = town.office.run("pierhead", "login", url, "--pin", "0" * 64, stdin=town.secret)
    assert refused.returncode == 3  # not on this net at all
    near = town.gate.run("pierhead", "login", url, "--pin", "0" * 64, stdin=town.secret)
    assert near.returncode == 1
    assert "is not the control plane that was named" in near.stderr
    unpinned = town.gate.run("pierhead", "login", url, stdin=town.secret)
    assert unpinned.returncode == 1
    assert f"--pin {town.pin}" in unpinned.stderr
    assert not (town.gate.folder / "config" / "context.json").exists()


def test_plain_http_is_for_the_machine_itself(town: Town) -> None:
    plain = town.laptop.run("curl", "-sS", "--max-time", "90", f"http://{town.registry}/api/meta")
    local = town.plane.run("curl", "-sS", f"http://127.0.0.1:{PORT}/api/meta")
    assert "this port speaks TLS" in plain.stdout
    assert json.loads(local.stdout)["release"]


async def test_behind_a_proxy_a_machine_joins_builds_pushes_and_stays_alive(
    town: Town, tmp_path: Path
) -> None:
    noted = tmp_path / "proxy.log"
    town.gate.start(
        sys.executable, connect_proxy, "0.0.0.0", str(PROXY_PORT), "me:pass/word", noted
    )
    gate = town.gate.addresses["b"]
    town.office.environment["HTTPS_PROXY"] = f"http://{LOGIN}@{gate}:{PROXY_PORT}"
    town.desktop.run("pierhead", "runner", "stop")

    async def proxy_answers() -> bool:
        return town.office.run("curl", "-s", f"http://{gate}:{PROXY_PORT}/").returncode == 0

    await eventually(proxy_answers, within=PATIENCE_SECONDS, what="the proxy answers")
    town.join(town.office, "office")
    await town.online("office")
    town.log_in(town.office)
    reference = town.office.type("build", "-t", "web:2", context(town.office, LONG))

    assert built_on(town.office) == "office"
    assert json.loads(town.office.type("builds", "show", "@", "--json"))["attempts"] == 1
    assert town.pull(town.laptop, reference, tmp_path) == reference.partition("@")[2]
    seen = set(noted.read_text().splitlines()) - {"refused GET / HTTP/1.1"}
    assert seen == {f"connect {town.registry}"}
