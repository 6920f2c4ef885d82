"""Pulls by readers that are slow, leave, or want only a part; with sendfile and without."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from pierhead.server.files import FileBody
from tests.integration.registry.conftest import Served, push_blob
from tests.integration.registry.image import digest_of

SHOP = "acme/shop"
LARGE = os.urandom(1 << 20) * 24


def open_files() -> set[str]:
    """Return what this process has open, but for the database, which keeps a few."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return {name for name in found if "router.db" not in name}


async def begin(served: Served, digest: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a blob and read nothing but the headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=64 * 1024)
    writer.write(
        f"GET /v2/{SHOP}/blobs/{digest} HTTP/1.1\r\nHost: x\r\n"
        "Authorization: Bearer shop\r\n\r\n".encode()
    )
    assert b"200" in await reader.readline()
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def test_slow_readers_hold_up_nobody_and_get_all_of_it(served: Served) -> None:
    async with served.client("shop") as shop:
        await push_blob(shop, SHOP, LARGE)
        readers = [await begin(served, digest_of(LARGE)) for _ in range(12)]
        # All of them have stopped reading; whoever comes now is served.
        for _ in range(3):
            whole = await shop.get(f"/v2/{SHOP}/blobs/{digest_of(LARGE)}")
            assert whole.content == LARGE
        for reader, writer in readers:
            assert digest_of(await reader.readexactly(len(LARGE))) == digest_of(LARGE)
            # The connection is as good as any other afterwards.
            writer.write(b"GET /v2/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer shop\r\n\r\n")
            assert b"200" in await reader.readline()
            writer.close()


async def test_readers_that_leave_leave_nothing_behind(served: Served) -> None:
    async with served.client("shop") as shop:
        await push_blob(shop, SHOP, LARGE)
        await shop.get("/v2/")
        before = open_files()
        for _ in range(8):
            _, writer = await begin(served, digest_of(LARGE))
            writer.transport.abort()
        async with asyncio.timeout(60):
            while open_files() - before:  # noqa: ASYNC110 - others close them
                await asyncio.sleep(0.01)
        assert (await shop.get("/v2/")).status_code == 200


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serve ten bytes by an application whose server knows nothing of sendfile."""
    (tmp_path / "file").write_bytes(b"0123456789")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = FileBody(tmp_path / "file", media_type="text/plain", etag="e", headers={"X": "y"})
        await body(scope, receive, send)

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client


@pytest.mark.parametrize(
    ("asked", "status", "content", "said"),
    [
        ("", 200, b"0123456789", None),
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=3-", 206, b"3456789", "bytes 3-9/10"),
        ("bytes=3-99", 206, b"3456789", "bytes 3-9/10"),
        ("bytes=-4", 206, b"6789", "bytes 6-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=-0", 416, b"", "bytes */10"),
        ("bytes=5-2", 416, b"", "bytes */10"),
        ("bytes=-", 416, b"", "bytes */10"),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=1-9999999999999999", 200, b"0123456789", None),
    ],
)
async def test_a_range_is_answered_with_what_there_is_of_it(
    plain: httpx.AsyncClient, asked: str, status: int, content: bytes, said: str | None
) -> None:
    answer = await plain.get("/", headers={"Range": asked} if asked else {})
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("content-range") == said
    head = await plain.head("/", headers={"Range": asked} if asked else {})
    assert (head.status_code, head.content) == (status, b"")
    assert head.headers["content-length"] == str(len(content))


async def test_a_range_of_something_else_is_answered_with_the_whole(
    plain: httpx.AsyncClient,
) -> None:
    other = await plain.get("/", headers={"Range": "bytes=3-", "If-Range": '"other"'})
    assert (other.status_code, other.content) == (200, b"0123456789")
    same = await plain.get("/", headers={"Range": "bytes=3-", "If-Range": '"e"'})
    assert (same.status_code, same.content) == (206, b"3456789")
