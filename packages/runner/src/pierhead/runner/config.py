"""Where a runner keeps its state, what it learned when it joined, and which process works there."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.problem import problem

ELSEWHERE: Final = "use another folder: PIERHEAD_RUNNER_STATE=DIR"


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


def note_authorities(state: Path, ca: str) -> None:
    """Write by whom the control plane is believed from now on; whole or not at all.

    Raises:
        Unavailable: the folder is not what it was: it does not come back by this.
    """
    save_joined(state, msgspec.structs.replace(load_joined(state), ca=ca))


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
        Unavailable: this machine has not joined, or what it learned cannot be read.
    """
    hint = "on the control plane: pierhead add NAME --builds, then here: pierhead join CODE"
    file = state / "runner.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Joined)
    except FileNotFoundError as error:
        detail = f"this machine has not joined a control plane ({state})"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error
    except NotADirectoryError as error:
        hint = "name a folder: PIERHEAD_RUNNER_STATE=DIR"
        detail = f"{state} is no folder"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error
    except (OSError, msgspec.DecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        detail = f"what this machine learned by joining cannot be read: {file}: {reason}"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error


@contextlib.contextmanager
def unless_refused(state: Path) -> Iterator[None]:
    """Leave nothing of a join that was refused.

    Whoever gets no answer keeps its key: the code may be used up by now, and the same machine can
    ask again.
    """
    files = [file for file in (state / "lock", state / "machine.key") if not file.exists()]
    folders = [folder for folder in (state, *state.parents) if not folder.exists()]
    try:
        yield
    except PierheadError as error:
        if not isinstance(error, Unavailable):
            _take_back(files, folders)
        raise


def _take_back(files: list[Path], folders: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else has put something into one
        for folder in folders:
            folder.rmdir()


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


def lock_file(state: Path) -> Path:
    """Return the file whose lock a runner holds while it works; it has the process's number."""
    return state / "lock"


def lock_state(state: Path) -> int:
    """Hold the state folder for this process; return the descriptor that holds it.

    Raises:
        Unavailable: another runner has it, or it cannot be used.
    """
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(lock_file(state), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(state, error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        detail = f"a runner works with {state} already"
        hint = "stop that one first: pierhead runner stop, or use another folder: "
        hint += "PIERHEAD_RUNNER_STATE=DIR"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error
    with contextlib.suppress(OSError):  # a full disk: it is only for whoever wants to stop us
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def check_state(state: Path) -> None:
    """Go on if `lock_state` would succeed, as far as can be known without making anything.

    Raises:
        Unavailable: it would not.
    """
    if lock_file(state).exists():
        os.close(lock_state(state))
        return
    folder = state
    while not folder.exists():
        folder = folder.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise _unusable(state, f"{folder} cannot be written to")


def at_work(state: Path) -> int | None:
    """Return the process that works with a state folder; none: no runner is at work there.

    Raises:
        Unavailable: one is, and it cannot be seen from here: it is in a container, say.
    """
    try:
        descriptor = os.open(lock_file(state), os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(state, error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        said = os.pread(descriptor, 20, 0).strip()
        if said.isdigit() and _has_open(int(said), descriptor):
            return int(said)
        detail = f"a runner works with {state}, and its process cannot be seen from here"
        hint = "stop it where it was started: in its container, or as its user"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error
    else:
        return None
    finally:
        os.close(descriptor)


def _has_open(pid: int, descriptor: int) -> bool:
    """Say whether a process has a file open: its number may be another process's by now."""
    wanted, folder = os.fstat(descriptor), Path(f"/proc/{pid}/fd")
    try:
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                if os.path.samestat(entry.stat(), wanted):
                    return True
    except OSError:
        return False
    return False


def _unusable(state: Path, why: str) -> Unavailable:
    detail = f"a runner cannot work with {state}: {why}"
    return Unavailable(problem("dependency-unavailable", detail, hint=ELSEWHERE))
