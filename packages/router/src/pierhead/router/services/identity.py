"""Who holds a token, and when tokens were last used."""

import hmac
from dataclasses import dataclass, field, replace
from datetime import datetime

from pierhead.router.domain.build import State
from pierhead.router.domain.credential import TAIL, Credential, Terms, admit, lives, unknown
from pierhead.router.domain.errors import UnknownMachine
from pierhead.router.domain.token import (
    BUILD_PREFIX,
    PULL_PREFIX,
    RUNNER_PREFIX,
    Attempt,
    Owner,
    Principal,
    ProjectHolder,
    Runner,
    bears_seal,
    build_token,
    parse_build_token,
    parse_pull_token,
    token_hash,
)
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Turns tokens into principals."""

    store: Store
    clock: Clock
    key: bytes  # of this installation; derives tokens
    # By id of a token, and only of those that exist: what the database does not have yet.
    uses: dict[str, datetime] = field(default_factory=dict)

    async def principal(self, token: str) -> Principal:
        """Return who holds the token.

        Raises:
            Unauthenticated: nobody does, or it was revoked.
            TokenExpired: its time is over.
        """
        if token.startswith(PULL_PREFIX):
            return parse_pull_token(self.key, token, now=self.clock.now())
        if token.startswith(BUILD_PREFIX):
            return await self._attempt(token)
        hashed = token_hash(token)
        if token.startswith(RUNNER_PREFIX):
            return await self._runner(hashed)
        return (await self.credential(hashed))[1]

    async def credential(self, hashed: str) -> tuple[Credential, Owner | ProjectHolder]:
        """Return a token of the owner or of a project, and who holds it."""
        now = self.clock.now()
        found = await self.store.read(lambda ledger: ledger.credential_by_hash(hashed))
        holder = admit(found, hashed, now)
        assert found is not None
        self.uses[found.id] = now
        return found, holder

    async def store_uses(self) -> None:
        """Store when tokens were last used; called once a minute, and never by a request."""
        uses = dict(self.uses)
        if uses:
            await self.store.write(lambda ledger: ledger.note_uses(uses))
        for token_id, at in uses.items():
            if self.uses.get(token_id) == at:  # not used again meanwhile
                del self.uses[token_id]

    def as_used(self, credential: Credential) -> Credential:
        """Return a stored token with its last use, as far as this process knows."""
        known = filter(None, (credential.used_at, self.uses.get(credential.id)))
        return replace(credential, used_at=max(known, default=None))

    async def open_for_owner(self, token: str, token_id: str) -> bool:
        """Let the token that the control plane wrote down open everything; false: it is revoked."""
        hashed, now = token_hash(token), self.clock.now()

        def operation(ledger: Ledger) -> bool:
            known = ledger.credential_by_hash(hashed)
            if known is not None:
                return lives(known, now)
            terms = Terms(
                name="owner", project=None, ability="root", environment=None, lifetime=None
            )
            first = Credential(
                id=token_id,
                key=token_id,
                terms=terms,
                hash=hashed,
                tail=token[-TAIL:],
                created_at=now,
                created_by="the control plane",
            )
            ledger.save_credential(first)
            return True

        return await self.store.write(operation)

    async def _runner(self, hashed: str) -> Runner:
        found = await self.store.read(lambda ledger: ledger.runner_by_credential(hashed))
        if found is None or not hmac.compare_digest(found.credential_hash, hashed):
            raise UnknownMachine
        return Runner(found.name, here=found.here)

    async def _attempt(self, token: str) -> Attempt:
        build_id, fence = parse_build_token(token)
        stored = await self.store.read(lambda ledger: ledger.build(build_id))
        if stored is None or stored.last_request is None or fence > stored.build.fence:
            raise unknown()
        if not bears_seal(self.key, token, build_id, fence):
            raise unknown()
        if fence == stored.build.fence:
            expected = build_token(self.key, build_id, fence, stored.last_request)
            if not hmac.compare_digest(expected.encode(), token.encode()):
                raise unknown()
        return Attempt(
            build_id=build_id,
            fence=fence,
            project=stored.submit.project,
            live=fence == stored.build.fence and stored.build.state is State.LEASED,
        )
