"""The control plane's end of the gate: starts that process, and gives it connections.

Each connection that is given away leaves behind one end of a pair, on which the visitor is heard in
the clear: it can be passed to another process, as a TLS connection itself cannot. The gate is
started by the first one, and again when it has ended; whoever comes while there is none, or while
it does not take what it is given, is answered by the control plane's own TLS. One that takes
nothing for long is ended.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pierhead.protocol.environment import for_a_process
from pierhead.server.log import get_logger
from pierhead.server.threads import in_thread

BACKOFF_FIRST_SECONDS: Final = 1.0
BACKOFF_MAX_SECONDS: Final = 60.0
# A life of this length was a good one: the next fault starts with the short wait again.
GOOD_LIFE_SECONDS: Final = 60.0
LAST_BYTES_SECONDS: Final = 2.0
# It takes what it is given at once, but for its start, and on a machine with too much to do.
LATE_SECONDS: Final = 5.0
HUNG_SECONDS: Final = 30.0
log = get_logger()


class Gateway:
    """Gives connections to the gate, whose certificates are in `folder`.

    `domain` has a certificate of its own; `stays` says of the first bytes of a handshake whether
    nobody but the control plane can answer it.
    """

    def __init__(self, folder: Path, domain: str | None, stays: Callable[[bytes], bool]) -> None:
        words = [sys.executable, "-m", "pierhead.server.gate", str(folder)]
        self._command = [*words, domain] if domain else words
        self._stays = stays
        self._life: _Life | None = None
        self._backoff = BACKOFF_FIRST_SECONDS
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """The process that has it now."""
        return self._life.process.pid if self._life else None

    def through(self, connection: socket.socket, first: bytes) -> socket.socket | None:
        """Give a connection away; return where its visitor is heard in the clear.

        The caller closes its own descriptor afterwards. None: it stays with the caller.
        """
        if self._stays(first) or not self._is_open():
            return None
        assert self._life is not None
        try:
            near, far = socket.socketpair()
        except OSError:  # no descriptors are left
            return None
        with far:
            if self._life.give(connection, far):
                return near
        near.close()
        return None

    def close(self) -> None:
        """Give nothing away any more; what was given goes on."""
        self._not_before = float("inf")
        if self._life is not None:
            self._life.close()

    async def wait_closed(self) -> None:
        """Let it say its last bytes; what it carries for another process may take longer."""
        if self._life is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await in_thread(self._life.process.wait, LAST_BYTES_SECONDS)

    def _is_open(self) -> bool:
        loop = asyncio.get_running_loop()
        if self._life is None and loop.time() >= self._not_before:
            with contextlib.suppress(OSError):  # no descriptors, or no memory
                self._life = _Life(self._command, self._ended)
        return self._life is not None

    def _ended(self, lasted: float) -> None:
        if lasted > GOOD_LIFE_SECONDS:
            self._backoff = BACKOFF_FIRST_SECONDS
        log.warning("gate.ended", lasted=round(lasted, 1), again_in_seconds=self._backoff)
        self._life = None
        self._not_before = asyncio.get_running_loop().time() + self._backoff
        self._backoff = min(self._backoff * 2, BACKOFF_MAX_SECONDS)


class _Life:
    """One life of the gate's process."""

    def __init__(self, command: list[str], ended: Callable[[float], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._told = ended
        self._given: deque[float] = deque()  # when each was that it has not taken yet
        self._killing: asyncio.TimerHandle | None = None
        # What is given before the process is up waits in the socket.
        self._end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end.setblocking(False)
        with end:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=end.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=for_a_process(os.environ),
                    start_new_session=True,  # what is typed at a terminal is not for it
                )
            except OSError:
                self._end.close()
                raise
        self._loop.add_reader(self._end, self._hear)
        log.info("gate.started", process=self.process.pid)

    def give(self, connection: socket.socket, far: socket.socket) -> bool:
        """Give a connection, and where it is to be carried; false: it is not taken."""
        if self._given and self._loop.time() - self._given[0] > LATE_SECONDS:
            return False
        try:
            socket.send_fds(self._end, [b"\0"], [connection.fileno(), far.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            self._over()
            return False
        except OSError:
            return False  # so many wait already
        self._given.append(self._loop.time())
        if self._killing is None:
            self._killing = self._loop.call_later(HUNG_SECONDS, self._kill_if_hung)
        return True

    def close(self) -> None:
        """Tell it that nothing comes any more."""
        if self._killing is not None:
            self._killing.cancel()
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._end.close()

    def _hear(self) -> None:
        try:
            heard = self._end.recv(1)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if heard and self._given:
            self._given.popleft()
        elif not heard:
            self._over()

    def _kill_if_hung(self) -> None:
        """End it when it has not taken what it was given so long ago: it carries nothing either."""
        self._killing = None
        if not self._given:
            return
        left = self._given[0] + HUNG_SECONDS - self._loop.time()
        if left <= 0:
            log.warning("gate.hung", process=self.process.pid, untaken=len(self._given))
            self.process.kill()
        else:
            self._killing = self._loop.call_later(left, self._kill_if_hung)

    def _over(self) -> None:
        self.close()
        self._loop.run_in_executor(None, self.process.wait)  # so that it is no zombie
        self._told(self._loop.time() - self._began)
