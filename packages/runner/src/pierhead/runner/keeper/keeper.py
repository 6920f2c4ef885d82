"""The keeper: a process of its own, with the standard library only.

The runner hashes, packs and uploads; a heartbeat in the same process would starve with it. So it
lives here, and so does the last resort: when the runner is gone (this process's input ends, however
it came to that), or a lease is somebody else's, everything that a build started is killed.

A lease that is not renewed in time may be somebody else's by now, or the router may be away and
nobody's. So the steps are frozen until it answers: nothing is built twice, and nothing is lost.

Runs as a script: `python -I -S keeper.py`. Orders come as JSON lines on the input, so that no
token is ever in a command line or an environment; news goes out as JSON lines.

Time is CLOCK_BOOTTIME: it goes on while a machine sleeps, as the router's clock does.
"""

import base64
import contextlib
import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

# Freeze this much before the lease ends on the router's clock, which may be a little ahead.
MARGIN_SECONDS = 3.0
# The runner says something each 5 s; one that is silent for so long hangs: it must keep no lease.
RUNNER_SILENT_SECONDS = 45.0
CALL_SECONDS = 5.0
# A router that is away for longer is not waited for.
AWAY_SECONDS_MAX = 600.0
# What to write into which file of a cgroup, on v1 and on v2.
FREEZING = {"freezer.state": "FROZEN", "cgroup.freeze": "1"}
THAWING = {"freezer.state": "THAWED", "cgroup.freeze": "0"}


def now() -> float:
    """Return seconds since the machine started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Group:
    """A process group, named so that a reused number is not mistaken for it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.pid: int = order["pid"]
        self.cgroups: list[str] = order["cgroups"]
        self.began = began(self.pid)

    def kill(self) -> None:
        """End all of it; what is gone, and what only has its number, is left alone."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.thaw()
        for folder in self.cgroups:
            for pid in members(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def is_alive(self) -> bool:
        """Say whether its first process runs."""
        return self.began is not None and began(self.pid) == self.began

    def freeze(self) -> bool:
        """Let nothing of its steps run until it is thawed; no: this machine cannot do that."""
        return any(write(folder, FREEZING) for folder in self.cgroups) or not self.is_alive()

    def is_frozen(self) -> bool:
        """Say whether something has frozen all of it."""
        return any(
            read(folder, name).startswith((word, "FREEZING"))  # it takes a while, on v1
            for folder in self.cgroups
            for name, word in FREEZING.items()
        )

    def thaw(self) -> None:
        """Let all of it run; what a step has frozen, too: until then nothing ends it."""
        for folder in self.cgroups:
            for path, _, _ in os.walk(folder):
                write(path, THAWING)


def began(pid: int) -> str | None:
    """Return when a process was started, in ticks; none when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


def read(folder: str, name: str) -> str:
    """Return what a file of a cgroup says; nothing where there is none."""
    try:
        with open(os.path.join(folder, name)) as state:
            return state.read()
    except OSError:
        return ""


def write(folder: str, words: dict[str, str]) -> bool:
    """Write words into those files of a cgroup that it has, and say whether it has one."""
    found = False
    for name, word in words.items():
        # Not created: on v1 only one hierarchy has it.
        with contextlib.suppress(OSError), open(os.path.join(folder, name), "r+") as state:
            state.write(word)
            found = True
    return found


def members(folder: str) -> list[int]:
    """Return all processes in a cgroup and below it."""
    found: list[int] = []
    for path, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.procs")) as procs:
                found += [int(line) for line in procs]
    return found


class Hold(threading.Thread):
    """One lease: renews it until it is dropped or lost."""

    def __init__(self, order: dict[str, Any], keeper: "Keeper") -> None:
        super().__init__(daemon=True)
        self.build: str = order["build"]
        self.fence: int = order["fence"]
        self.token: str = order["token"]
        self.url = urlsplit(order["url"])
        self.proxy = urlsplit(order["proxy"]) if order.get("proxy") else None
        self.ca: str | None = order.get("ca")
        self.ttl: float = order["ttl_ms"] / 1000
        self.renew: float = order["renew_ms"] / 1000
        self.keeper = keeper
        self.groups: list[Group] = []
        self.ended = threading.Event()
        # Of a lease that is taken over it is only known that it was renewed not long ago.
        self.sent = now() - self.renew
        self.connection: http.client.HTTPConnection | None = None
        self.cancelled = False
        self.frozen = False

    def run(self) -> None:
        """Renew until dropped or lost."""
        # The first beat comes at once: a keeper that was started anew does not know how old the
        # lease is that it takes over.
        wait = 0.0
        while not self.ended.wait(max(0.0, min(wait, self.left()))):
            if self.keeper.runner_is_silent():
                return self.lose("the runner does not answer its own helper")
            if self.left() <= 0 and (self.frozen or not self.freeze()):
                return self.lose("no heartbeat got through in time")
            began_call = now()
            try:
                status, body = self.beat()
            except (OSError, http.client.HTTPException, ValueError):
                self.close()
                status, body = 0, {}
            if status in (401, 403, 404, 409):
                return self.lose(f"the router says {status}")
            wait = self.renew if status == 200 else min(1.0, self.renew)
            if status == 200:
                self.sent = began_call
                self.thaw()
                self.hear(body)
        return self.close()

    def left(self) -> float:
        """Return how many seconds there are until the build has to be frozen, or then ended."""
        allowed = self.ttl - min(MARGIN_SECONDS, self.ttl / 4)
        seconds: float = self.sent + (AWAY_SECONDS_MAX if self.frozen else allowed) - now()
        return seconds

    def freeze(self) -> bool:
        """Freeze the build until the router answers; no: something of it goes on."""
        self.frozen = True
        self.keeper.say(self.build, self.fence, "frozen", "the router does not answer")
        return all(group.freeze() for group in self.groups)

    def thaw(self) -> None:
        """Let the build go on, if it was frozen."""
        if self.frozen:
            self.frozen = False
            for group in self.groups:
                group.thaw()
            self.keeper.say(self.build, self.fence, "thawed", "")

    def add(self, group: Group) -> None:
        """Watch over a group. What it may do is what the build may do now."""
        self.groups.append(group)
        if group.is_frozen():
            self.frozen = True  # by the keeper before this one, and until the router answers
        elif self.frozen and not group.freeze():
            self.lose("no heartbeat got through in time")

    def hear(self, body: dict[str, Any]) -> None:
        """Take what the answer says besides yes."""
        if body.get("cancel_requested") and not self.cancelled:
            self.cancelled = True
            self.keeper.say(self.build, self.fence, "cancel", "")

    def beat(self) -> tuple[int, dict[str, Any]]:
        """Send one heartbeat; return the status and the document of the answer."""
        # No wait may go beyond the moment at which the build has to be ended.
        seconds = max(0.1, min(CALL_SECONDS, self.left() / 2))
        if self.connection is None:
            self.connection = self.connect(seconds)
        elif self.connection.sock is not None:
            self.connection.sock.settimeout(seconds)
        path = f"{self.url.path}/api/builds/{self.build}/heartbeat"
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Pierhead-Fence": str(self.fence),
            "Pierhead-Protocol": "1",  # the heartbeat is as it was in the first version
            "Content-Type": "application/json",
        }
        self.connection.request("POST", path, b"{}", headers)
        answer = self.connection.getresponse()
        body = answer.read(65536)
        if answer.status != 200:
            # A proxy says 404 or 403 as well, while the router is away: that means nothing.
            ours = answer.headers.get_content_type() == "application/problem+json"
            return answer.status if ours else 0, {}
        document = json.loads(body)
        if not isinstance(document, dict) or "lease_ttl_ms" not in document:
            raise ValueError("not the answer of a router")
        return answer.status, document

    def lose(self, reason: str) -> None:
        """End the build: its lease is somebody else's or nobody's."""
        if not self.ended.is_set():
            self.ended.set()
            self.kill()
            self.keeper.say(self.build, self.fence, "lost", reason)
        self.close()

    def kill(self) -> None:
        """End every process of the build."""
        for group in self.groups:
            group.kill()

    def connect(self, seconds: float) -> http.client.HTTPConnection:
        """Return a connection to the router, straight or through the proxy."""
        target = self.url.hostname or "", self.url.port
        first = (self.proxy.hostname or "", self.proxy.port or 80) if self.proxy else target
        if self.url.scheme != "https":
            return http.client.HTTPConnection(*target, timeout=seconds)
        context = ssl.create_default_context(cadata=self.ca)
        connection = http.client.HTTPSConnection(*first, timeout=seconds, context=context)
        if self.proxy:
            connection.set_tunnel(*target, headers=proxy_headers(self.proxy))
        return connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def proxy_headers(proxy: SplitResult) -> dict[str, str]:
    """Return what tells a proxy who asks."""
    if proxy.username is None:
        return {}
    user, password = unquote(proxy.username), unquote(proxy.password or "")
    said = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {said}"}


class Keeper:
    """All leases, and the runner's orders."""

    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}
        self.lock = threading.Lock()
        self.heard = now()

    def say(self, build: str, fence: int, event: str, reason: str) -> None:
        """Tell the runner; by the fence it knows which attempt is meant: it may have a newer."""
        news = {"build": build, "fence": fence, "event": event, "reason": reason}
        line = json.dumps(news)
        with self.lock, contextlib.suppress(OSError):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def runner_is_silent(self) -> bool:
        """Say whether the runner hangs."""
        return now() - self.heard > RUNNER_SILENT_SECONDS

    def obey(self, order: dict[str, Any]) -> None:
        """Carry out one order."""
        self.heard = now()
        kind, build = order["op"], order.get("build", "")
        if kind == "hold":
            self.drop(build)
            self.holds[build] = Hold(order, self)
            self.holds[build].start()
        elif kind == "group" and build in self.holds:
            self.holds[build].add(Group(order))
        elif kind == "drop":
            self.drop(build)
        elif kind == "believe":
            for hold in list(self.holds.values()):
                hold.ca = order["ca"]  # of its next connection

    def drop(self, build: str) -> None:
        """Forget a build; its processes are the runner's business again."""
        hold = self.holds.pop(build, None)
        if hold is not None:
            hold.ended.set()

    def run(self) -> None:
        """Obey until the input ends; then the runner is gone, and its builds go with it."""
        for line in sys.stdin:
            self.obey(json.loads(line))
        for hold in self.holds.values():
            hold.kill()


def main() -> None:
    """Be the keeper of one runner."""
    # The runner's terminal or supervisor may signal the whole group; the runner decides, not we.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -5)
    threading.stack_size(256 * 1024)
    Keeper().run()


if __name__ == "__main__":
    main()
