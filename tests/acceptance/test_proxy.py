"""The everyday build works behind a proxy with small bodies, little patience, and whole answers."""

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from .office import office_proxy
from .stage import BUSYBOX, HELLO, PATIENCE_SECONDS, eventually, finished, stage

BODY_BYTES_MAX = 16 * 1024 * 1024
# Longer than the proxy's patience: something has to move while the build says nothing.
SILENT = "COPY large /large\nRUN echo before; sleep 40; echo behind\n"


def _context(folder: Path) -> str:
    folder.mkdir()
    (folder / "busybox").write_bytes(BUSYBOX.read_bytes())
    (folder / "busybox").chmod(0o755)
    (folder / "large").write_bytes(os.urandom(40 * 2**20))
    (folder / "Dockerfile").write_text(HELLO + SILENT)
    return str(folder)


@pytest.mark.timeout(600)
async def test_upload_log_push_events_and_acquire_pass_a_proxy_that_allows_little(
    tmp_path: Path,
) -> None:
    context = _context(tmp_path / "hello")
    async with stage(tmp_path) as on, office_proxy(on.port) as proxy:
        await on.join("one", port=proxy.port)
        await asyncio.sleep(35)  # the runner has nothing to do for longer than the proxy waits
        through = {"PIERHEAD_URL": f"http://127.0.0.1:{proxy.port}"}
        built = await asyncio.to_thread(
            on.run, "build", "--progress", "plain", "--no-cache", context, **through
        )
        async with on.client() as owner:
            view = await finished(owner, "@")

    assert built.returncode == 0, built.stderr
    assert (view.state, view.runner, view.attempts, view.log_complete) == (
        "succeeded",
        "one",
        1,
        True,
    )
    assert "behind" in built.stderr
    assert (proxy.refused, proxy.cut) == ([], [])
    assert max(proxy.largest.values()) <= BODY_BYTES_MAX
    assert proxy.largest["POST /api/contexts/objects"] > 4 * 2**20
    assert any(what.startswith("PATCH /v2/") for what in proxy.largest)
    assert f"GET /api/builds/{view.id}/events" in proxy.streamed
    assert {"POST /api/runners/acquire", f"PATCH /api/builds/{view.id}/logs"} <= {*proxy.largest}


async def test_the_proxy_refuses_what_is_large_and_cuts_what_is_silent(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, office_proxy(on.port, idle_seconds=12.0) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        headers = {"Authorization": f"Bearer {on.token}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, trust_env=False, timeout=PATIENCE_SECONDS
        ) as http:
            large = await http.post("/api/builds", content=bytes(BODY_BYTES_MAX + 1))
            assert large.status_code == 413
            assert (await http.get("/api/meta")).status_code == 200
        await on.join("one", port=proxy.port)

        async def noticed() -> bool:
            return "POST /api/runners/acquire" in proxy.cut

        # A held acquire is silent for 25 s.
        await eventually(noticed, within=PATIENCE_SECONDS)
    assert proxy.refused == ["POST /api/builds"]


async def test_a_tar_piped_to_curl_is_a_build(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "busybox").write_bytes(BUSYBOX.read_bytes())
    (folder / "busybox").chmod(0o755)
    (folder / "Dockerfile").write_text(HELLO)
    async with stage(tmp_path) as on:
        await on.join("one")
        line = (
            "tar c . | curl -sNT- -H 'Authorization: Bearer '\"$T\""
            ' "$URL/api/builds:run?project=web&t=web:1"'
        )
        piped = await asyncio.create_subprocess_shell(
            line,
            cwd=folder,
            env={**os.environ, "T": on.token, "URL": on.url},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(piped.communicate(), PATIENCE_SECONDS)
        async with on.client() as owner:
            view = await finished(owner, "@")
    assert view.state == "succeeded"
    lines = [line for line in output.splitlines() if line]
    assert b'"event":"queued"' in lines[0]
    assert b'"event":"finished"' in lines[-1]
    assert view.id.encode() in lines[-1]
