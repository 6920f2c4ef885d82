"""Which control plane the command speaks to, with which token, and whom it believes to be that.

`--url` and `PIERHEAD_URL` win, then what `pierhead login` noted, then a control plane on this
machine, at the port that `pierhead up` noted.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pierhead.protocol.cli.speak import UNAVAILABLE, fail
from pierhead.protocol.client.address import INSECURE_HTTP, host_of
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.trust import trust_in
from pierhead.protocol.loopback import is_loopback

LOCAL_URL: Final = "http://127.0.0.1:7443"


@dataclass(frozen=True, slots=True)
class Place:
    """A control plane. `chosen`: somebody named it, so no other will do.

    `lasts`: it does not end with the commands that use it. `listener`: the users (uid) whose
    process there may be told the token; none: whoever answers.
    """

    url: str
    token: str | None
    chosen: bool
    ca: str | None = None  # its own certificate authority, PEM; none: the system's
    lasts: bool = True
    listener: frozenset[int] | None = None

    def client(self) -> RouterClient:
        """Return a client for it."""
        insecure = os.environ.get(INSECURE_HTTP) == "1"
        again = f"pierhead login {self.url} --pin PIN"
        trust = trust_in(self.ca, self._learned, again=again)
        return RouterClient(
            self.url,
            token=self.token,
            ca=trust,
            insecure_http=insecure,
            listener=self.listener,
        )

    def _learned(self, ca: str) -> None:
        """Note other authorities of the control plane, if it is the one that is noted still."""
        noted = _read("context.json")
        if noted and noted["url"] == self.url and noted.get("ca"):
            _write("context.json", {**noted, "ca": ca})


def config_folder() -> Path:
    """Return where the command keeps what it was told.

    Raises:
        CommandFailed: no folder can be there.
    """
    said = os.environ.get("PIERHEAD_CONFIG")
    folder = Path(said) if said else Path.home() / ".config/pierhead"
    there = next(path for path in (folder, *folder.parents, Path("/")) if path.exists())
    if not there.is_dir():
        below = f"a folder has to be there: {folder}" if there != folder else "no folder"
        what = "PIERHEAD_CONFIG: " if said else ""
        hint = "name a folder: PIERHEAD_CONFIG=DIR" + (
            ", or: unset PIERHEAD_CONFIG" if said else ""
        )
        raise fail(f"{what}{there} is a file, and {below}", hint, UNAVAILABLE)
    return folder


def find_place(url: str | None = None) -> Place:
    """Return the control plane to speak to."""
    said = url or os.environ.get("PIERHEAD_URL") or None
    token = os.environ.get("PIERHEAD_TOKEN")
    noted = _read("context.json")
    if noted and (said is None or noted["url"] == said.rstrip("/")):
        found = token or noted.get("token")
        return _known(Place(noted["url"], found, chosen=True, ca=noted.get("ca")))
    there = said or _local_url()
    if _is_own_public(there):
        place = Place(there, token, chosen=True, ca=_own_ca())
        return place if token else with_own_token(place)
    return _known(Place(there, token, chosen=said is not None))


def with_own_token(place: Place) -> Place:
    """Return a place with the token of this machine's owner, if its control plane wrote one here.

    Over plain HTTP it is told to nobody but that control plane's user, and root.
    """
    file = config_folder() / "token"
    try:
        token, owner = file.read_text().strip(), file.stat().st_uid
    except OSError:
        return place
    listener = frozenset({0, owner}) if place.url.startswith("http://") else None
    return replace(place, token=token, listener=listener)


def note_place(url: str, token: str, ca: str | None) -> None:
    """Remember a control plane; only its owner can read the file."""
    noted = {"url": url.rstrip("/"), "token": token}
    _write("context.json", {**noted, "ca": ca} if ca else noted)


def note_local(url: str, public: str | None = None) -> None:
    """Remember where the control plane of this machine answers.

    `public`: where it answers others, by TLS of its own authority, whose certificate is beside.
    """
    _write("local.json", {"url": url, **({"public": public} if public else {})})


def _read(name: str) -> dict[str, str] | None:
    try:
        found = json.loads((config_folder() / name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and "url" in found else None


def _write(name: str, document: dict[str, str]) -> None:
    folder = config_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Of this process alone: several commands may learn the same thing at once.
    fresh = folder / f"{name}.{os.getpid()}.new"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / name)
    finally:
        fresh.unlink(missing_ok=True)


def _local_url() -> str:
    return (_read("local.json") or {}).get("url", LOCAL_URL)


def _is_own_public(url: str) -> bool:
    """Say whether others find this machine's control plane by it: whoever answers proves it."""
    return url.rstrip("/") == (_read("local.json") or {}).get("public")


def _own_ca() -> str | None:
    try:
        return (config_folder() / "ca.crt").read_text()
    except OSError:
        return None


def _known(place: Place) -> Place:
    """Return a place with the owner's token if it is on this machine: no other may be shown it."""
    is_here = is_loopback(host_of(place.url)) or place.url.rstrip("/") == _local_url()
    return with_own_token(place) if place.token is None and is_here else place
