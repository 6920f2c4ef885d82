"""A whole build in one call: a tar comes in, events go out."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from pierhead.protocol.build import BuildView
from pierhead.protocol.client.tarred import pack_tar
from pierhead.protocol.client.upload import bodies_of
from pierhead.protocol.plan import ContextOffer, ContextRef, Submit
from pierhead.protocol.tree import DIGEST_BYTES
from pierhead.router.domain.token import Principal, require_project
from pierhead.router.ports.contexts import Incoming
from pierhead.router.services.contexts import Contexts
from pierhead.router.services.submit import Submissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What the one call does of what a client does in many."""

    contexts: Contexts
    submissions: Submissions
    incoming: Incoming

    async def start(
        self, principal: Principal, wanted: Submit, body: AsyncIterator[bytes]
    ) -> BuildView:
        """Take a context in, and submit a build of it; `wanted` is all but its context.

        Raises:
            Invalid: it is no tar, or too large.
            KeyReused: the key belongs to another build, or to one of another context.
        """
        require_project(principal, wanted.project, wanted.environment)
        context = await self._take(principal, wanted, body)
        request = msgspec.structs.replace(wanted, context=context)
        return await self.submissions.submit(principal, request)

    async def _take(
        self, principal: Principal, wanted: Submit, body: AsyncIterator[bytes]
    ) -> ContextRef:
        async with self.incoming.tar(body) as tar:
            packed = await asyncio.to_thread(pack_tar, tar, dockerfile=wanted.plan.dockerfile)
            pages = dict(packed.described())
            offer = ContextOffer(
                project=wanted.project, digest=packed.digest, pages=b"".join(pages)
            )
            while True:
                state = await self.contexts.offer(principal, offer)
                if state.context is not None:
                    return state.context
                missing = (
                    state.missing[at : at + DIGEST_BYTES]
                    for at in range(0, len(state.missing), DIGEST_BYTES)
                )
                bodies = bodies_of(pages.get(one) or packed.read(one) for one in missing)
                while (part := await asyncio.to_thread(next, bodies, None)) is not None:
                    await self.contexts.keep(principal, wanted.project, _once(part[0]))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
