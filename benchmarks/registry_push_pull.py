"""A blob of 350 MB into the router's registry and out again, against docker-registry.

Both run here, side by side in time, on the same disk; each takes the same requests: one upload by
parts of 8 MiB, then two downloads. Rounds alternate, and the best of each counts.

The first download is thrown away inside the kernel, so it shows what the registry takes to send;
the second is kept in memory, as a client does. Copying takes the same time from either registry,
and longer than sending, so it is most of what the second one shows.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import httpx

from benchmarks.figure import Figure
from benchmarks.processes import resident_mb
from tests.acceptance.stage import eventually, stage
from tests.ports import free_port

SIZE_BYTES = 350_000_000
PART_BYTES = 8 * 1024 * 1024
ROUNDS = 5
GOALS = {"push": 0.9, "pull": 0.7, "pull_kept": 0.7}
SCRATCH = bytearray(PART_BYTES)
Take: TypeAlias = Callable[[socket.socket, int], int]  # takes what came, at an offset
CONFIG = """\
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: ROOT}}
http: {addr: "127.0.0.1:PORT"}
"""


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    async with stage(folder) as opened, reference(folder) as other:
        headers = {"Authorization": f"Bearer {opened.token}"}
        async with httpx.AsyncClient(base_url=opened.url, headers=headers, timeout=60) as ours:
            best = {what: [float("inf")] * 2 for what in GOALS}
            before = resident_mb(opened.plane.pid)
            for number in range(ROUNDS):
                for which, client in enumerate((ours, other)):
                    took = await one_round(client, number)
                    told = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in took.items())
                    say(f"{('pierhead', 'docker-registry')[which]}: {told}")
                    for what, seconds in took.items():
                        best[what][which] = min(best[what][which], seconds)
            grown = resident_mb(opened.plane.pid) - before
    ratios = [
        Figure(metric=f"{what}_ratio", value=one / reference, goal=GOALS[what])
        for what, (one, reference) in best.items()
    ]
    return [*ratios, Figure(metric="memory_grown_mb", value=grown, goal=32)]


async def one_round(client: httpx.AsyncClient, number: int) -> dict[str, float]:
    """Push one fresh blob and pull it twice; return the seconds that each took."""
    digest = hashlib.sha256(b"".join(pieces(number))).hexdigest()
    started = time.perf_counter()
    location = (await client.post("/v2/bench/blobs/uploads/")).headers["location"]
    for piece in pieces(number):
        answer = await client.patch(location, content=piece)
        assert answer.status_code == 202, answer.text
        location = answer.headers["location"]
    # Merged: the reference keeps the state of an upload in the query of its address.
    last = httpx.URL(location).copy_merge_params({"digest": f"sha256:{digest}"})
    done = await client.put(last)
    assert done.status_code == 201, done.text
    pushed = time.perf_counter()
    path = f"/v2/bench/blobs/sha256:{digest}"
    await asyncio.to_thread(download, client, path, throw_away)
    pulled = time.perf_counter()
    kept = bytearray(SIZE_BYTES)
    began = time.perf_counter()
    await asyncio.to_thread(download, client, path, into(kept))
    took = {"push": pushed - started, "pull": pulled - pushed}
    took["pull_kept"] = time.perf_counter() - began
    assert hashlib.sha256(kept).hexdigest() == digest
    return took


def throw_away(connection: socket.socket, _offset: int) -> int:
    """Let the kernel discard what came; return how much that was."""
    return connection.recv_into(SCRATCH, PART_BYTES, socket.MSG_TRUNC)


def into(kept: bytearray) -> Take:
    """Return what keeps the bytes that come."""
    view = memoryview(kept)
    return lambda connection, offset: connection.recv_into(view[offset:])


def download(client: httpx.AsyncClient, path: str, take: Take) -> None:
    """Pull a blob, so that the client costs as little as can be."""
    url = client.base_url
    head = f"GET {path} HTTP/1.1\r\nHost: {url.netloc.decode()}\r\nConnection: close\r\n"
    if token := client.headers.get("authorization"):
        head += f"Authorization: {token}\r\n"
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(head.encode() + b"\r\n")
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += connection.recv(1)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:100]
        size = 0
        while size < SIZE_BYTES and (came := take(connection, size)):
            size += came
        assert size == SIZE_BYTES


def pieces(number: int) -> Iterator[bytes]:
    """Yield the blob of a round by parts, cheap to make and of no round but this."""
    piece = hashlib.shake_128(str(number).encode()).digest(PART_BYTES)
    for offset in range(0, SIZE_BYTES, PART_BYTES):
        yield piece[: SIZE_BYTES - offset]


@contextlib.asynccontextmanager
async def reference(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run a docker-registry of our own."""
    port, config = free_port(), folder / "registry.yml"
    config.write_text(CONFIG.replace("ROOT", str(folder / "reference")).replace("PORT", str(port)))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with (folder / "reference.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "docker-registry", "serve", config, env=environment, stdout=log, stderr=log
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            async def answers() -> bool:
                with contextlib.suppress(httpx.HTTPError):
                    return (await client.get("/v2/")).is_success
                return False

            await eventually(answers, within=60, what="docker-registry answers")
            yield client
    finally:
        process.terminate()
        await process.wait()
