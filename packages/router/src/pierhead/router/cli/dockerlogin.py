"""The login that docker has for a registry on this machine: from its file, or its helper."""

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from pierhead.protocol.cli.speak import USAGE, fail

HELPER_SECONDS: Final = 30.0
_HUB: Final = "https://index.docker.io/v1/"
_HELPER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


def docker_login(host: str) -> tuple[str, str]:
    """Return username and secret.

    Raises:
        CommandFailed: docker has none for it, or not one that can be passed on.
    """
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    config = _read(file)
    for name in _names(host):
        helper = _of(config, "credHelpers").get(name) or config.get("credsStore")
        found = _asked(str(helper), name) if helper else None
        found = found or _written(_of(config, "auths").get(name))
        if found is not None:
            return found
    text = f"docker is not logged in to {host} ({file})"
    raise fail(text, f"docker login {host}, or: pierhead registries add {host} -u NAME", USAGE)


def _names(host: str) -> tuple[str, ...]:
    """Return the names under which docker may have it."""
    own = (host, f"https://{host}", f"https://{host}/v1/", f"https://{host}/v2/")
    return (_HUB, *own) if host == "docker.io" else own


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        found = {}
    except (OSError, ValueError) as error:
        raise fail(f"{file} cannot be read", "give the token itself: -u NAME", USAGE) from error
    return found if isinstance(found, dict) else {}


def _of(config: dict[str, Any], part: str) -> dict[str, Any]:
    found = config.get(part)
    return found if isinstance(found, dict) else {}


def _written(entry: object) -> tuple[str, str] | None:
    """Return a login that stands in the file itself."""
    said = entry.get("auth") if isinstance(entry, dict) else None
    if not isinstance(said, str) or not said:
        return None
    try:
        username, _, secret = base64.b64decode(said, validate=True).decode().partition(":")
    except ValueError:
        return None
    return (username, secret) if username and secret else None


def _asked(helper: str, name: str) -> tuple[str, str] | None:
    """Ask a credential helper of docker's; none: it knows nothing of the registry."""
    program = shutil.which(f"docker-credential-{helper}") if _HELPER.match(helper) else None
    if program is None:
        hint = "install it, or give the token itself: -u NAME"
        raise fail(f"docker-credential-{helper[:64]} is not installed here", hint, USAGE)
    try:
        done = subprocess.run(
            [program, "get"],
            input=name.encode(),
            capture_output=True,
            check=False,
            timeout=HELPER_SECONDS,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        username, secret = str(found.get("Username", "")), str(found.get("Secret", ""))
    except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired):
        return None
    if username == "<token>":
        text = f"docker has a token for {name} that only docker can use"
        raise fail(text, "make one in the registry's settings, then: -u NAME", USAGE)
    return (username, secret) if username and secret else None
