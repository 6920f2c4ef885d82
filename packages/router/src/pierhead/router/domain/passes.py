"""What a token of the registry's token call is good for: some actions on some repositories.

It narrows what its holder may, and adds nothing: whoever may not push does not by asking for it.
Scopes are written as Docker's token specification writes them: `repository:NAME:pull,push`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pierhead.router.domain.errors import TokenExpired, Unauthenticated

LIFETIME: Final = timedelta(minutes=5)
PASS_PREFIX: Final = "phs_"  # noqa: S105 - of all of them
# More than two are hardly ever asked for: a push, and a source to mount from.
SCOPES_MAX: Final = 8
CATALOG: Final = "registry:catalog"
_ALL: Final = frozenset({"pull", "push", "delete"})
_SCOPE: Final = re.compile(
    r"(?P<resource>repository:[a-z0-9][a-z0-9._/-]{0,199}|registry:catalog):(?P<actions>[a-z,*]{1,40})"
)
_UPLOADS: Final = re.compile(r"(?P<name>.+)/blobs/uploads/[^/]*\Z")
_CONTENT: Final = re.compile(r"(?P<name>.+)/(?:blobs|manifests|referrers|tags)/[^/]+\Z")

Scopes = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Needed:
    """What a request needs of a pass."""

    resource: str
    action: str
    first: bool = False  # of a push, most likely

    @property
    def scope(self) -> str:
        """What to ask for: who pushes also looks at what is there, and looks first.

        Some clients keep the pass that they got for the look, and never ask for another.
        """
        pushes = self.first or self.action == "push"
        return f"{self.resource}:{'pull,push' if pushes else self.action}"


def scopes_of(texts: Iterable[str]) -> Scopes:
    """Return what is asked for; what nobody knows is not granted."""
    found: dict[str, frozenset[str]] = {}
    for one in [one for text in texts for one in text.split(" ")]:
        known = _SCOPE.fullmatch(one)
        if known is None or (len(found) == SCOPES_MAX and known["resource"] not in found):
            continue
        actions = frozenset(known["actions"].split(","))
        if "*" in actions:
            actions = _ALL
        resource = known["resource"]
        found[resource] = found.get(resource, frozenset()) | actions & _ALL
    return found


def claims(scopes: Scopes, now: datetime) -> str:
    """Return what a pass says: until when, and for what."""
    until = int((now + LIFETIME).timestamp())
    said = (f"{name}:{','.join(sorted(actions))}" for name, actions in sorted(scopes.items()))
    return " ".join([str(until), *said])


def read(text: str, now: datetime) -> Scopes:
    """Return what a pass is good for; its words were proven to be ours.

    Raises:
        TokenExpired: its time is over.
    """
    until, *said = text.split(" ")
    if now.timestamp() >= int(until):
        raise TokenExpired("the time of this token is over", hint="ask for a new one")
    return scopes_of(said)


def needed(method: str, path: str) -> Needed | None:
    """Return what a request below `/v2/` needs; none: anybody who has a pass may ask."""
    if path == "_catalog":
        return Needed(CATALOG, "*")
    uploads, content = _UPLOADS.match(path), _CONTENT.match(path)
    if uploads is not None:
        return Needed(f"repository:{uploads['name']}", "push")
    if content is None:
        return None
    action = {"GET": "pull", "HEAD": "pull", "DELETE": "delete"}.get(method, "push")
    # Who only pulls gets blobs, and does not ask whether they are there.
    first = method == "HEAD" and path.startswith(f"{content['name']}/blobs/")
    return Needed(f"repository:{content['name']}", action, first)


def covers(scopes: Scopes, wanted: Needed) -> bool:
    """Say whether a pass is good for it."""
    actions = scopes.get(wanted.resource, frozenset())
    return actions >= _ALL if wanted.action == "*" else wanted.action in actions


def require(scopes: Scopes | None, wanted: Needed | None) -> None:
    """Raise `ScopeMissing` for a pass that is for something else; none: it is no pass."""
    if scopes is not None and wanted is not None and not covers(scopes, wanted):
        raise ScopeMissing(f"this token is not for {wanted.scope}", hint="ask for one with it")


class ScopeMissing(Unauthenticated):
    """The pass is for something else; its holder may get another one."""
