"""Which control plane the command speaks to, and with which token.

`--url` and `PIERHEAD_URL` win, then what `pierhead login` noted, then a control plane on this
machine.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.protocol.client.client import RouterClient

LOCAL_URL: Final = "http://127.0.0.1:7443"


@dataclass(frozen=True, slots=True)
class Place:
    """A control plane. `chosen`: somebody named it, so no other will do."""

    url: str
    token: str | None
    chosen: bool

    def client(self) -> RouterClient:
        """Return a client for it."""
        insecure = os.environ.get("PIERHEAD_INSECURE_HTTP") == "1"
        return RouterClient(self.url, token=self.token, insecure_http=insecure)


def config_folder() -> Path:
    """Return where the command keeps what it was told."""
    said = os.environ.get("PIERHEAD_CONFIG")
    return Path(said) if said else Path.home() / ".config/pierhead"


def find_place(url: str | None = None) -> Place:
    """Return the control plane to speak to."""
    said = url or os.environ.get("PIERHEAD_URL") or None
    token = os.environ.get("PIERHEAD_TOKEN")
    noted = _noted()
    if said is None and noted:
        return Place(noted["url"], token or noted.get("token"), chosen=True)
    if said is not None and noted and noted["url"] == said.rstrip("/"):
        token = token or noted.get("token")
    return Place(said or LOCAL_URL, token or _own_token(), chosen=said is not None)


def note_place(url: str, token: str) -> None:
    """Remember a control plane; only its owner can read the file."""
    folder = config_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = folder / "context.json.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url.rstrip("/"), "token": token}, file)
    fresh.replace(folder / "context.json")


def _noted() -> dict[str, str] | None:
    try:
        found = json.loads((config_folder() / "context.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and "url" in found else None


def _own_token() -> str | None:
    try:
        return (config_folder() / "token").read_text().strip()
    except OSError:
        return None
