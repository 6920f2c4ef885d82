"""A control plane behind a real HAProxy, which has the certificate and port 443."""

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pierhead.server.authority import issue, new_authority

from .machines import Machine, machines
from .stage import BUSYBOX, HELLO, PATIENCE_SECONDS, eventually

CONFIG = """\
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 60s
frontend tls
    bind {address}:443 ssl crt {folder}/proxy.pem
    http-request set-header X-Forwarded-Proto https
    default_backend pierhead
frontend clear
    bind {address}:80
    http-request set-header X-Forwarded-Proto http
    default_backend pierhead
backend pierhead
    server pierhead 127.0.0.1:7443
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    with machines(tmp_path_factory.mktemp("town")) as all_of_them:
        plane = all_of_them["plane"]
        world = new_authority("world", now=datetime.now(UTC))
        pair = issue(world, [plane.address], now=datetime.now(UTC))
        (plane.folder / "proxy.pem").write_bytes(pair.pem)
        (plane.folder / "world.crt").write_bytes(world.certificate)
        config = plane.folder / "haproxy.cfg"
        config.write_text(CONFIG.format(address=plane.address, folder=plane.folder))
        haproxy = plane.start("/usr/sbin/haproxy", "-f", config)
        # It listens at all its ports before it answers at any; what `up` says of them is compared.
        while plane.run("curl", "-s", "--max-time", "20", f"http://{plane.address}/").returncode:
            assert haproxy.poll() is None, plane.logs()
            time.sleep(0.1)
        for machine in all_of_them.values():
            # All of them trust what the world trusts.
            machine.environment["SSL_CERT_FILE"] = str(plane.folder / "world.crt")
        yield all_of_them


def up(plane: Machine, proxy: str) -> str:
    said = ["--behind-proxy", proxy, "--public-url", f"https://{plane.address}"]
    done = plane.run("pierhead", "up", *said)
    assert done.returncode == 0, done.stderr + plane.logs()
    return done.stderr


def status_of(machine: Machine, url: str, token: str, *more: str) -> str:
    """Ask with a token, which curl is told on its input, and return the status."""
    words = ["curl", "-sS", "--max-time", "90", "-o", "/dev/null", "-w", "%{http_code}"]
    done = machine.run(*words, "-K", "-", *more, url, stdin=f'oauth2-bearer = "{token}"')
    return done.stdout


async def test_machines_join_and_build_by_what_their_system_trusts(
    town: dict[str, Machine], tmp_path: Path
) -> None:
    plane, desktop, laptop = town["plane"], town["desktop"], town["laptop"]
    said = up(plane, "127.0.0.1")
    token = (plane.folder / "config" / "token").read_text()
    line = plane.type("add", "desktop", "--builds", "--no-wait")
    pasted = desktop.run("sh", "-c", f"{line} --yes")
    assert pasted.returncode == 0, pasted.stderr

    async def online() -> bool:
        seen = json.loads(plane.type("status", "--json"))
        runners = seen["capabilities"]["runners"]
        return any(runner["name"] == "desktop" and runner["online"] for runner in runners)

    await eventually(online, within=PATIENCE_SECONDS, what="desktop is online")
    laptop.type("login", f"https://{plane.address}", stdin=token)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "Dockerfile").write_text(HELLO)
    shutil.copy(BUSYBOX, tmp_path / "web" / "busybox")
    reference = laptop.type("build", tmp_path / "web")

    assert "the certificate is the proxy's" in said
    assert "80 is used by haproxy and 443 is used by haproxy: left alone" in said
    assert "backend pierhead" in said
    assert line.startswith(f"curl -LsSf https://{plane.address}/join | sh -s -- ph1_")
    assert f"ph1_{plane.address}:443_-_" in line
    assert reference.startswith(f"{plane.address}/web@sha256:")


def test_a_token_that_came_to_the_proxy_in_the_clear_is_refused(town: dict[str, Machine]) -> None:
    plane, laptop = town["plane"], town["laptop"]
    up(plane, "127.0.0.1")
    token = (plane.folder / "config" / "token").read_text().strip()
    assert status_of(laptop, f"https://{plane.address}/api/projects", token) == "200"
    assert status_of(laptop, f"http://{plane.address}/api/projects", token) == "403"


def test_what_a_proxy_says_is_believed_from_its_own_address_only(town: dict[str, Machine]) -> None:
    plane = town["plane"]
    up(plane, "192.0.2.99")
    token = (plane.folder / "config" / "token").read_text().strip()
    lie = ["-H", "X-Forwarded-Proto: http"]
    url = "http://127.0.0.1:7443/api/projects"
    assert status_of(plane, url, token, *lie) == "200"
    up(plane, "127.0.0.1")
    assert status_of(plane, url, token, *lie) == "403"
