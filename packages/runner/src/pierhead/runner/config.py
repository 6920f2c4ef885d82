"""Where a runner keeps its state, and what it was told when it joined."""

import fcntl
import hashlib
import os
from pathlib import Path

import msgspec

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine knows after `pierhead join`; the file is readable by its owner only."""

    name: str
    url: str
    credential: str
    ca: str | None = None  # the control plane's own certificate authority, PEM
    insecure_http: bool = False
    slots: int = 1
    # For each build.
    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None  # with its cache
    cpu_weight: int | None = None


def state_folder() -> Path:
    """Return where the runner of this machine keeps its state."""
    said = os.environ.get("PIERHEAD_RUNNER_STATE")
    if said:
        return Path(said)
    if os.geteuid() == 0:
        return Path("/var/lib/pierhead-runner")
    return Path.home() / ".local/share/pierhead-runner"


def save_joined(state: Path, joined: Joined) -> None:
    """Write what was learned by joining; whole or not at all."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = state / "runner.json.new"
    _write_secret(fresh, msgspec.json.encode(joined))
    fresh.replace(state / "runner.json")


def _write_secret(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def joined_before(state: Path) -> Joined | None:
    """Return what was learned by joining, if this machine has."""
    try:
        return load_joined(state)
    except Unavailable:
        return None


def machine_secret(state: Path) -> bytes:
    """Return random bytes that this state folder keeps; a repeated join is known by them."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, fresh = state / "machine.key", state / "machine.key.new"
    if not path.exists():
        _write_secret(fresh, os.urandom(32))
        fresh.replace(path)
    return path.read_bytes()


def load_joined(state: Path) -> Joined:
    """Return what was learned by joining.

    Raises:
        Unavailable: this machine has not joined.
    """
    try:
        return msgspec.json.decode((state / "runner.json").read_bytes(), type=Joined)
    except FileNotFoundError as error:
        hint = "on the control plane: pierhead add NAME --builds, then here: pierhead join CODE"
        detail = f"this machine has not joined a control plane ({state})"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error


def state_id(holder: int) -> str:
    """Return what the state folder that `holder` locks does not share with a copy of itself.

    A copy of a file is another file, and a copied disk is in another machine.
    """
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    told = f"{machine}\n{os.fstat(holder).st_ino}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def lock_state(state: Path) -> int:
    """Hold the state folder for this process; return the descriptor that holds it.

    Raises:
        Unavailable: another runner has it.
    """
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        detail = f"a runner works with {state} already"
        hint = "stop that one first, or use another folder: PIERHEAD_RUNNER_STATE"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error
    return descriptor
