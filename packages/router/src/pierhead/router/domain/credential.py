"""A token of the owner or of a project as it is stored: what it opens, and until when.

It is made under a key of the maker's choice, so that whoever lost the answer can ask again and does
not make a second one. The secret follows from the token's id and that key, so it is never stored.
"""

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from pierhead.router.domain.errors import KeyReused, TokenExpired, Unauthenticated
from pierhead.router.domain.token import (
    OWNER_PREFIX,
    PROJECT_PREFIX,
    Owner,
    ProjectHolder,
    derived_secret,
)

# As long as a result is answered again; whoever lost an answer asks within seconds.
REPLAY: Final = timedelta(minutes=15)
# Last uses are stored together, and no oftener than this, so that a read stays a read.
USE_STORED_EVERY: Final = timedelta(minutes=1)
# Tokens that open nothing any more stay listed for so long.
KEPT: Final = timedelta(days=30)
PER_PROJECT_MAX: Final = 1000
TAIL: Final = 4

Ability = Literal["read", "write", "root"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was asked for: the same key with other terms is another request."""

    name: str
    project: str | None  # none: the owner's
    ability: Ability
    environment: str | None
    lifetime: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A stored token. `hash` is all that is kept of its secret, and `tail` what people see."""

    id: str
    key: str
    terms: Terms
    hash: str
    tail: str
    created_at: datetime
    created_by: str
    used_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def expires_at(self) -> datetime | None:
        """When it ends by itself."""
        lifetime = self.terms.lifetime
        return self.created_at + lifetime if lifetime is not None else None


def secret_of(installation: bytes, token_id: str, terms: Terms, key: str) -> str:
    """Return the token itself."""
    prefix = OWNER_PREFIX if terms.project is None else PROJECT_PREFIX
    return prefix + derived_secret(installation, "token", token_id, key)


def lives(credential: Credential, now: datetime) -> bool:
    """Say whether the token opens anything."""
    ends = credential.expires_at
    return credential.revoked_at is None and (ends is None or now < ends)


def admit(credential: Credential | None, token_hash: str, now: datetime) -> Owner | ProjectHolder:
    """Return who holds a token.

    The database found it by the first part of its hash, which is no secret; the whole is compared
    here, in a time that does not depend on it.

    Raises:
        Unauthenticated: there is none, or it was revoked.
        TokenExpired: its time is over.
    """
    if credential is None or not hmac.compare_digest(credential.hash, token_hash):
        raise unknown()
    terms, ends = credential.terms, credential.expires_at
    if credential.revoked_at is not None:
        detail = f"the token {terms.name} was revoked"
        raise Unauthenticated(detail, hint=f"ask the owner for a new one: {_again(terms)}")
    if ends is not None and now >= ends:
        detail = f"the token {terms.name} ended at {ends:%Y-%m-%d %H:%M} UTC"
        raise TokenExpired(detail, hint=f"ask the owner for a new one: {_again(terms)}")
    if terms.project is None:
        return Owner(terms.name)
    return ProjectHolder(terms.project, terms.ability != "read", terms.environment)


def unknown() -> Unauthenticated:
    """Return the refusal of a token that nobody gave out."""
    hint = "log in with a token of this control plane: pierhead login URL"
    return Unauthenticated("this token is not known here", hint=hint)


def check_replay(known: Credential, terms: Terms, now: datetime) -> None:
    """Let the repeat of a request see its token again, for a while.

    Raises:
        KeyReused: the key stands for another token, or for one that is not shown any more.
    """
    hint = "use a new key for a new token"
    if known.terms != terms:
        raise KeyReused(f"the key {known.key!r} was used for the token {known.id}", hint=hint)
    if not lives(known, now) or now >= known.created_at + REPLAY:
        raise KeyReused(f"the token {known.id} is not shown again", hint=hint)


def _again(terms: Terms) -> str:
    if terms.project is None:
        return "pierhead owner-token add NAME"
    return f"pierhead projects tokens add {terms.project}"
