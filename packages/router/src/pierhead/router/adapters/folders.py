"""The data and config folders: the lock, the installation's key, the owner's token."""

import base64
import fcntl
import json
import os
from pathlib import Path

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem
from pierhead.router.usable import LOCK


def lock(data: Path, role: str = "control plane") -> int:
    """Hold the data folder for this process; return the descriptor that holds it.

    Raises:
        Unavailable: another process of the role has it.
    """
    data.mkdir(parents=True, exist_ok=True, mode=0o750)
    name = LOCK if role == "control plane" else f"{role}.lock"
    descriptor = os.open(data / name, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        detail = f"a {role} (process {holder}) runs on {data} already"
        hint = "use that one, or name another folder: --data DIR"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def secret_file(path: Path, make: str) -> str:
    """Return the secret in a file that only its owner can read; make it when it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        file.write(make + "\n")
        file.flush()
        os.fsync(file.fileno())
    return make


def replace_secret(path: Path, secret: str) -> str:
    """Put another secret in the place of one; whoever reads meanwhile gets either, and whole."""
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return secret


def write_registry_login(config: Path, host: str, token: str) -> None:
    """Write what `docker --config` and `skopeo --authfile` read to pull from this registry."""
    folder = config / "docker"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, fresh = folder / "config.json", folder / "config.json.new"
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        found = {}
    auth = base64.b64encode(f"owner:{token}".encode()).decode()
    found.setdefault("auths", {})[host] = {"auth": auth}
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(found, file, indent=2)
    fresh.replace(path)
