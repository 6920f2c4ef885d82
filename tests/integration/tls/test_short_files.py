"""A file that becomes shorter while it is sent, or goes: the reader is cut, and never misled."""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from pierhead.server.files import FileBody, PartsBody
from pierhead.server.serve import Service, listen
from pierhead.server.stretch import Stretch
from pierhead.server.tls import Certificates

SIZE = 64 * 1024 * 1024  # far more than sockets hold


@asynccontextmanager
async def served(folder: Path, certificates: Certificates) -> AsyncIterator[int]:
    """Serve a file whole at `/file`, and in three parts at `/parts`, with TLS and without."""
    file = folder / "large"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/file":
            body = FileBody(file, media_type="a/b", etag="e", headers={})
            return await body(scope, receive, send)
        parts: list[Stretch | bytes] = [
            Stretch(file, 0, SIZE // 2),
            b"-",
            Stretch(file, SIZE // 2, SIZE // 2),
        ]
        return await PartsBody(parts, media_type="a/b", etag="e")(scope, receive, send)

    listener = listen("127.0.0.1", 0)
    service = Service(app, drain=lambda: None, context_for=lambda _: certificates.context)
    running = asyncio.create_task(service.run([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        service.stop()
        service.stop()
        await running
        listener.close()


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
@pytest.mark.parametrize("path", ["/file", "/parts"])
@pytest.mark.parametrize("left", [SIZE // 4, SIZE // 2, None])
async def test_the_connection_ends_before_the_length_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secure: bool, path: str, left: int | None
) -> None:
    caplog.set_level(logging.WARNING)
    certificates = Certificates(tmp_path / "tls", ("127.0.0.1",), now=datetime.now(UTC))
    with (tmp_path / "large").open("wb") as file:
        os.truncate(file.fileno(), SIZE)
    trust = ssl.create_default_context(cadata=certificates.authority.decode())
    async with served(tmp_path, certificates) as port:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust if secure else None, limit=64 * 1024
        )
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        if left is None:
            (tmp_path / "large").unlink()
        else:
            os.truncate(tmp_path / "large", left)
        got = 0
        while some := await reader.read(1 << 20):
            got += len(some)
        writer.close()
    if left is None and path == "/file":
        assert got == length, "what is open stays whole"
        assert caplog.text == ""
    else:
        assert SIZE // 4 - 1 <= got < length
        assert caplog.text.count("answer.cut") == 1
        assert len(caplog.records) == 1
