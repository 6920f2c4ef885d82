"""The certificate authority: shown, changed for another one step by step, or replaced at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pierhead.protocol.authority import AuthorityView, Replace, Replaced, RootView, Rotate, Turn
from pierhead.router.domain import authority as rules
from pierhead.router.domain.authority import Announced, Authority, Machine, Root, Steady, Switched
from pierhead.router.domain.errors import NotFound
from pierhead.router.domain.token import Owner, Principal, require_owner, require_rotation
from pierhead.router.ports.roots import Roots
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.bells import Bells
from pierhead.router.services.runners import Expelled
from pierhead.router.services.views import written
from pierhead.server.log import get_logger

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """What the owner may do with the certificate authority, and what goes on by itself."""

    roots: Roots | None  # none: this control plane has no authority of its own
    store: Store
    clock: Clock
    bells: Bells
    expel_all: Callable[[], Awaitable[Expelled]]
    turning: asyncio.Lock = field(default_factory=asyncio.Lock)

    def pins(self) -> tuple[str, ...]:
        """Return by whom this control plane is to be believed, from now on."""
        if self.roots is None:
            return ()
        return tuple(root.pin for root in rules.believed(self.roots.state))

    async def show(self, principal: Principal) -> AuthorityView:
        """Return the authority, and which runners know it."""
        require_owner(principal)
        return await self._view(self._own())

    async def begin(self, principal: Principal, request: Rotate, *, is_here: bool) -> AuthorityView:
        """Make another root, and announce it.

        Raises:
            RotationConflict: the authority is being changed already.
        """
        owner = require_rotation(principal, is_here=is_here)
        roots, after = self._own(), timedelta(seconds=request.after_seconds)
        async with self.turning:
            state = rules.begin(roots.state, roots.make(), after, self.clock.now())
            self._enter(roots, state, owner)
        return await self._view(roots)

    async def cancel(self, principal: Principal, *, is_here: bool) -> AuthorityView:
        """Take the announcement of another root back.

        Raises:
            RotationConflict: there is none, or that root signs already.
        """
        owner, roots = require_rotation(principal, is_here=is_here), self._own()
        async with self.turning:
            self._enter(roots, rules.cancel(roots.state), owner)
        return await self._view(roots)

    async def advance(self, principal: Principal, *, is_here: bool) -> AuthorityView:
        """Go on to the next phase now, whoever has not learned the new root.

        Raises:
            RotationConflict: the authority is not being changed.
        """
        owner, roots = require_rotation(principal, is_here=is_here), self._own()
        async with self.turning:
            self._enter(roots, rules.advance(roots.state, self.clock.now()), owner)
        return await self._view(roots)

    async def replace(self, principal: Principal, request: Replace, *, is_here: bool) -> Replaced:
        """Let nobody be believed any more by what was: all machines have to join again.

        First nobody is let in any more, then there is another root: a stop in between leaves the
        doors closed, and the same command does the rest.

        Raises:
            StaleFingerprint: the authority is another one than was confirmed; nothing was changed.
        """
        owner, roots = require_rotation(principal, is_here=is_here), self._own()
        async with self.turning:
            old = roots.state.root.pin
            rules.check_confirmed(roots.state, request.fingerprint)
            new, expelled = roots.make(), await self.expel_all()
            roots.begin_anew(Steady(new))
            log.warning(
                "authority.replaced",
                old_fingerprint=old,
                new_fingerprint=new.pin,
                by=owner.name,
                codes=expelled.codes,
                runners=list(expelled.runners),
            )
        return Replaced(
            old_fingerprint=old,
            new_fingerprint=new.pin,
            codes=expelled.codes,
            runners=expelled.runners,
        )

    async def on_time(self) -> None:
        """Go on to the next phase if its time has come."""
        if self.roots is None or isinstance(self.roots.state, Steady):
            return
        machines = await self.store.read(machines_of)
        async with self.turning:
            now = self.clock.now()
            if rules.is_due(self.roots.state, machines, now):
                self._enter(self.roots, rules.advance(self.roots.state, now), None)

    def _own(self) -> Roots:
        if self.roots is None:
            hint = "one that answers others itself has one: pierhead up --host 0.0.0.0"
            detail = "this control plane has no certificate authority of its own"
            raise NotFound(detail, hint=hint)
        return self.roots

    def _enter(self, roots: Roots, state: Authority, by: Owner | None) -> None:
        before = roots.state
        roots.enter(state)
        # Runners hear of it with the answers that they wait for.
        self.bells.recall()
        log.info(
            "authority.changed",
            turn=turn_of(state),
            was=turn_of(before),
            fingerprint=state.root.pin,
            old_fingerprint=before.root.pin,
            believed=[root.pin for root in rules.believed(state)],
            by=by.name if by else "the control plane",
        )

    async def _view(self, roots: Roots) -> AuthorityView:
        machines = await self.store.read(machines_of)
        return view(roots.state, machines)


def turn_of(state: Authority) -> Turn:
    """Return the word for a state."""
    match state:
        case Announced():
            return "announced"
        case Switched():
            return "switched"
        case Steady():
            return "steady"


def view(state: Authority, machines: Sequence[Machine]) -> AuthorityView:
    """Return an authority as its owner sees it."""
    unknowing = rules.unknowing(state, machines)
    return AuthorityView(
        turn=turn_of(state),
        root=_root_view(state.root),
        coming=_root_view(state.coming) if isinstance(state, Announced) else None,
        leaving=_root_view(state.leaving) if isinstance(state, Switched) else None,
        next_at=None if isinstance(state, Steady) else written(state.until),
        knowing=tuple(machine.name for machine in machines if machine.name not in unknowing),
        unknowing=unknowing,
        awaited=rules.awaited(state, machines),
    )


def _root_view(root: Root) -> RootView:
    return RootView(fingerprint=root.pin, since=written(root.made_at), until=written(root.ends_at))


def machines_of(ledger: Ledger) -> Sequence[Machine]:
    """Return what all runners but our own said of whom they believe."""
    return [
        Machine(
            name=known.name,
            pins=known.authorities,
            stopped=known.session is not None and known.session.ended,
        )
        for known in ledger.runners()
        if not known.here
    ]
