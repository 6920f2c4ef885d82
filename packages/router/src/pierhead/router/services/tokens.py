"""Tokens of the owner and of projects: made, listed without their secret, revoked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pierhead.protocol.meta import PullToken, PullTokenRequest
from pierhead.protocol.project import NewToken, TokenMade, TokenPage, TokenView
from pierhead.router.domain.credential import (
    KEPT,
    PER_PROJECT_MAX,
    TAIL,
    Credential,
    Terms,
    check_replay,
    lives,
    secret_of,
)
from pierhead.router.domain.errors import InvalidRequest, LimitReached, NotFound
from pierhead.router.domain.token import (
    Owner,
    Principal,
    pull_token,
    require_owner,
    require_view,
    token_hash,
)
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock, Entropy
from pierhead.router.services.identity import Identity
from pierhead.router.services.projects import check_limit, no_project, place_for
from pierhead.router.services.views import token_view, written

_AFTER: Final = re.compile(r"[0-9]{1,15}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What owners may do with tokens."""

    store: Store
    identity: Identity
    clock: Clock
    entropy: Entropy
    host: str  # of references

    async def add(self, principal: Principal, request: NewToken) -> TokenMade:
        """Make a token, or show again the one that was just made under this key.

        Raises:
            KeyReused: the key stands for another token, or for one that is not shown any more.
        """
        require_owner(principal)
        assert isinstance(principal, Owner)
        terms, token_id, now = _terms(request), self.entropy.id("t_"), self.clock.now()

        def operation(ledger: Ledger) -> Credential:
            known = ledger.credential_by_key(terms.project, request.key)
            if known is not None:
                check_replay(known, terms, now)
                return known
            if terms.project is not None:
                if ledger.project(terms.project) is None:
                    raise no_project(principal, terms.project)
                place_for(ledger, terms.project, terms.environment or "production", now)
            ledger.forget_credentials(terms.project, now - KEPT)
            _check_room(ledger, terms.project)
            secret = secret_of(self.identity.key, token_id, terms, request.key)
            new = Credential(
                id=token_id,
                key=request.key,
                terms=terms,
                hash=token_hash(secret),
                tail=secret[-TAIL:],
                created_at=now,
                created_by=principal.name,
            )
            ledger.save_credential(new)
            return new

        made = await self.store.write(operation)
        secret = secret_of(self.identity.key, made.id, made.terms, made.key)
        return TokenMade(token=secret, view=token_view(made))

    async def add_pull(
        self, principal: Principal, project: str, request: PullTokenRequest
    ) -> PullToken:
        """Make a password that pulls from one repository for a while.

        Raises:
            NotFound: there is no such project for this token.
        """
        require_view(principal, project)
        if await self.store.read(lambda ledger: ledger.project(project)) is None:
            raise no_project(principal, project)
        ends = self.clock.now() + timedelta(seconds=request.ttl_seconds)
        whole = datetime.fromtimestamp(int(ends.timestamp()), UTC)  # as the token carries it
        return PullToken(
            registry=self.host,
            repository=project,
            username="pull",
            token=pull_token(self.identity.key, project, whole),
            expires_at=written(whole),
        )

    async def page(
        self, principal: Principal, project: str | None, limit: int, after: str | None
    ) -> TokenPage:
        """Return the tokens of a project (none: the owner's), newest first."""
        require_owner(principal)
        check_limit(limit)
        if after is not None and not _AFTER.match(after):
            raise InvalidRequest("after is what `next` said")
        before = int(after) if after else None

        def operation(ledger: Ledger) -> Sequence[tuple[int, Credential]]:
            if project is not None and ledger.project(project) is None:
                raise no_project(principal, project)
            return ledger.credentials_page(project, limit, before)

        found = await self.store.read(operation)
        following = str(found[-1][0]) if len(found) == limit else None
        views = tuple(token_view(self.identity.as_used(one)) for _, one in found)
        return TokenPage(tokens=views, next=following)

    async def revoke(self, principal: Principal, token_id: str) -> TokenView:
        """End a token; asking again is harmless."""
        require_owner(principal)
        now = self.clock.now()

        def operation(ledger: Ledger) -> Credential:
            found = ledger.credential(token_id)
            if found is None:
                hint = "list them: pierhead projects tokens ls PROJECT"
                raise NotFound(f"there is no token {token_id[:40]}", hint=hint)
            ended = replace(found, revoked_at=found.revoked_at or now)
            _keep_one_owner(ledger, ended, now)
            ledger.save_credential(ended)
            return ended

        return token_view(self.identity.as_used(await self.store.write(operation)))


def _terms(request: NewToken) -> Terms:
    """Return what is asked for.

    Raises:
        InvalidRequest: an owner's token that is less than one, or a project's that is more.
    """
    of_owner = request.project is None
    if of_owner != (request.ability == "root") or (of_owner and request.environment):
        hint = "an owner's token has no project and the ability root; a project's, read or write"
        raise InvalidRequest("the token fits neither an owner nor a project", hint=hint)
    seconds = request.expires_in_seconds
    return Terms(
        name=request.name,
        project=request.project,
        ability=request.ability,
        environment=request.environment,
        lifetime=timedelta(seconds=seconds) if seconds is not None else None,
    )


def _check_room(ledger: Ledger, project: str | None) -> None:
    if len(ledger.credentials_page(project, PER_PROJECT_MAX, None)) >= PER_PROJECT_MAX:
        hint = "revoke some: pierhead projects tokens revoke ID"
        raise LimitReached(f"there are {PER_PROJECT_MAX} tokens already", hint=hint)


def _keep_one_owner(ledger: Ledger, ended: Credential, now: datetime) -> None:
    """Raise `InvalidRequest` when nobody would be the owner any more."""
    if ended.terms.project is not None:
        return
    others = ledger.credentials_page(None, PER_PROJECT_MAX, None)
    if not any(lives(one, now) for _, one in others if one.id != ended.id):
        hint = "make another first: pierhead owner-token rotate"
        raise InvalidRequest("this is the last token of the owner", hint=hint)
