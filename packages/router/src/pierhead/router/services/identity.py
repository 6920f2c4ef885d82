"""Who holds a token."""

import hmac
from dataclasses import dataclass

from pierhead.router.domain.build import State
from pierhead.router.domain.errors import Unauthenticated
from pierhead.router.domain.token import (
    BUILD_PREFIX,
    PULL_PREFIX,
    Attempt,
    Principal,
    build_token,
    parse_build_token,
    parse_pull_token,
    token_hash,
)
from pierhead.router.ports import Clock, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Turns tokens into principals."""

    store: Store
    key: bytes
    clock: Clock

    async def principal(self, token: str) -> Principal:
        """Return who holds the token.

        Raises:
            Unauthenticated: nobody does.
            TokenExpired: somebody did.
        """
        if token.startswith(PULL_PREFIX):
            return parse_pull_token(self.key, token, now=self.clock.now())
        if token.startswith(BUILD_PREFIX):
            return await self._attempt(token)
        hashed = token_hash(token)
        found = await self.store.read(lambda ledger: ledger.principal(hashed))
        if found is None:
            raise Unauthenticated("this token is not known here")
        return found

    async def _attempt(self, token: str) -> Attempt:
        build_id, fence = parse_build_token(token)
        stored = await self.store.read(lambda ledger: ledger.build(build_id))
        # Tokens of earlier attempts cannot be derived any more: their request is forgotten. They
        # are told apart from nonsense only by their fence, which gives away nothing.
        if stored is None or stored.last_request is None or fence > stored.build.fence:
            raise Unauthenticated("this token is not known here")
        if fence == stored.build.fence:
            expected = build_token(self.key, build_id, fence, stored.last_request)
            if not hmac.compare_digest(expected.encode(), token.encode()):
                raise Unauthenticated("this token is not known here")
        return Attempt(
            build_id=build_id,
            fence=fence,
            project=stored.submit.project,
            live=fence == stored.build.fence and stored.build.state is State.LEASED,
        )
