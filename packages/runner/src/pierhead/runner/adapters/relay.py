"""The registry that one build's buildah sees: it gives what the control plane gives.

It listens on the loopback of the build's own network, so nobody else reaches it, and no token of
the control plane is anywhere near the build. The build's steps share that loopback. What keeps them
out is a password of this build alone, in a file that only buildah sees; it ends with the build, and
opens no more than what the Dockerfile could name after FROM.
"""

import asyncio
import contextlib
import ctypes
import hmac
import os
import re
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pierhead.protocol.errors import IntegrityError, PierheadError
from pierhead.runner.domain.bases import BaseRefusal, authorization, login_file, registries_conf
from pierhead.runner.ports import BaseAnswer, BaseAsk, Bases, LogSink

HEAD_BYTES_MAX: Final = 16 * 1024
IDLE_SECONDS: Final = 60.0
CONNECTIONS_MAX: Final = 32
_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
_LINE: Final = re.compile(r"(?P<method>GET|HEAD) (?P<path>/\S{0,2000}) HTTP/1\.1\Z")
_IMAGE: Final = re.compile(
    r"/v2/r(?P<number>[0-9]{1,3})/(?P<name>[a-z0-9._/-]{1,255})"
    r"/(?P<kind>manifests|blobs)/(?P<reference>[A-Za-z0-9._:-]{1,140})\Z"
)
_REASONS: Final = {200: "OK", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}
# buildah tries TLS first; it waits for 10 s unless it hears at once that there is none.
_BEGINNINGS: Final = (b"G", b"H")
_BASIC: Final = {"www-authenticate": 'Basic realm="pierhead"'}


class Relay:
    """The registry of one build."""

    def __init__(self, bases: Bases, hosts: Sequence[str], log: LogSink) -> None:
        self._bases = bases
        self._hosts = hosts
        self._log = log
        self._open = 0
        self._told: set[str] = set()
        self._lies: dict[tuple[str, str, str], BaseRefusal] = {}
        self.password: Final = secrets.token_urlsafe(24)
        self.address = ""
        self.refusal: BaseRefusal | None = None  # the last one; buildah ends with its first
        self.notes: list[str] = []

    @property
    def conf(self) -> str:
        """The settings that lead buildah here."""
        return registries_conf(self._hosts, self.address)

    @property
    def login(self) -> bytes:
        """The login file that lets it in."""
        return login_file(self.address, self.password)

    @contextlib.asynccontextmanager
    async def listening(self, namespace: Path | None) -> AsyncIterator["Relay"]:
        """Answer, in a network namespace or, without one, on the machine's loopback."""
        listener = listen_in(namespace)
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        server = await asyncio.start_server(self._serve, sock=listener, limit=HEAD_BYTES_MAX)
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        self._open += 1
        try:
            while self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(IDLE_SECONDS):
                    first = await reader.readexactly(1)
                    if first not in _BEGINNINGS:
                        break
                    rest = await reader.readuntil(b"\r\n\r\n")
                if not await self._answer(first + rest, writer):
                    break
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, PierheadError):
            writer.transport.abort()  # what began is not finished; it shows
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; false: the connection is of no use any more."""
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        line = _LINE.match(first)
        headers = {name.lower(): value.strip() for name, _, value in map(_parted, lines)}
        if line is None or headers.keys() & {"content-length", "transfer-encoding"}:
            return False  # nothing of this has a body
        if not self._lets_in(headers.get("authorization", "")):
            await _write(writer, 401, _BASIC)
        elif line["path"] == "/v2/":
            await _write(writer, 200, {})
        elif (found := self._asked(line["method"], line["path"])) is not None:
            await self._pass_on(found, writer)
        else:
            await _write(writer, 404, {})
        return True

    def _lets_in(self, said: str) -> bool:
        return hmac.compare_digest(said.encode(), authorization(self.password).encode())

    def _asked(self, method: str, path: str) -> BaseAsk | None:
        found = _IMAGE.match(path)
        if found is None or int(found["number"]) >= len(self._hosts):
            return None
        return BaseAsk(
            method="HEAD" if method == "HEAD" else "GET",
            host=self._hosts[int(found["number"])],
            name=found["name"],
            kind="blobs" if found["kind"] == "blobs" else "manifests",
            reference=found["reference"],
        )

    async def _pass_on(self, wanted: BaseAsk, writer: asyncio.StreamWriter) -> None:
        what = (wanted.host, wanted.name, wanted.reference)
        if what in self._lies:  # buildah tries again what was cut; nothing better would come
            self.refusal = self._lies[what]
            await _write(writer, 403, {})
            return
        try:
            async with self._bases.ask(wanted) as answer:
                self._note(wanted, answer)
                if answer.refusal is not None:
                    self.refusal = answer.refusal
                    # Any other status, and buildah asks again and again.
                    await _write(writer, 404 if answer.status == 404 else 403, {})
                    return
                await _begin(writer, 200, answer.headers)
                if wanted.method == "HEAD":
                    return
                async for chunk in answer.chunks:
                    writer.write(chunk)
                    await writer.drain()
        except PierheadError as error:
            image, hint = f"{wanted.host}/{wanted.name}", error.problem.hint
            self.refusal = BaseRefusal(image=image, message=str(error), hint=hint)
            if isinstance(error, IntegrityError):
                self._lies[what] = self.refusal
            raise

    def _note(self, wanted: BaseAsk, answer: BaseAnswer) -> None:
        """Say once when something is given though its registry did not confirm it."""
        image = f"{wanted.host}/{wanted.name}:{wanted.reference}"
        if answer.stale_since is None or image in self._told:
            return
        self._told.add(image)
        note = f"{wanted.host} does not answer: {image} is what it was at {answer.stale_since}"
        self.notes.append(note)
        self._log(f"note: {note}\n".encode())


def listen_in(namespace: Path | None) -> socket.socket:
    """Return a socket that listens on the loopback of a network namespace; none: this process's.

    A thread of its own enters the namespace, and ends; a socket stays where it was made.

    Raises:
        OSError: the namespace cannot be entered.
    """
    if namespace is None:
        return _listen()
    made: list[socket.socket | OSError] = []

    def enter() -> None:
        try:
            made.append(_listen_inside(namespace))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _listen_inside(namespace: Path) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}", str(namespace))
    finally:
        os.close(descriptor)
    return _listen()


def _listen() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(CONNECTIONS_MAX)
    listener.setblocking(False)
    return listener


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


async def _write(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    await _begin(writer, status, {**headers, "content-length": "0"})


async def _begin(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    await writer.drain()
