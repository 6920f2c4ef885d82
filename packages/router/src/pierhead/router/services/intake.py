"""What a runner sends of a build, looked through for the build's secrets before it is kept.

The runner hides them first, and better: it can hold bytes back. Here, where every byte that was
accepted has to stay at its offset, a secret becomes as many stars. The digest is of what came, not
of what is kept, so that it says whether the log is whole.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pierhead.protocol.digest import RunningDigest
from pierhead.protocol.redact import Patterns
from pierhead.protocol.result import Envelope, Failure
from pierhead.router.domain.errors import SecretsLost
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.store import Ledger
from pierhead.router.ports.vault import Vault

# Open logs that are remembered; one that is not is read again from the disk.
REMEMBERED_MAX: Final = 256
_READ_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class Intake:
    """One attempt's log on its way in."""

    patterns: Patterns
    received: RunningDigest = field(default_factory=RunningDigest)
    tail: bytes = b""  # the last bytes as they came: a secret may go on in the next part

    def look(self, part: bytes) -> tuple[int, bytes]:
        """Return how many bytes before a part belong to a secret that it ends, and what to keep."""
        whole, before = bytearray(self.tail + part), len(self.tail)
        hidden = 0
        for start, end in self.patterns.find(bytes(whole)):
            whole[start:end] = b"*" * (end - start)
            if start < before < end:
                hidden = before - start
        return hidden, bytes(whole[before:])

    def accept(self, part: bytes) -> None:
        """Remember a part that was kept."""
        self.received.update(part)
        reach = max(0, self.patterns.longest - 1)
        self.tail = (self.tail + part)[-reach:] if reach else b""


class Intakes:
    """The logs that are open, as far as this process knows them."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._open: OrderedDict[tuple[str, int], Intake] = OrderedDict()

    def get(self, build_id: str, fence: int) -> Intake | None:
        """Return a log that is remembered."""
        return self._open.get((build_id, fence))

    async def begin(self, stored: StoredBuild, fence: int, patterns: Patterns) -> Intake:
        """Read what there is of a log, and remember it from now on."""
        intake, offset = Intake(patterns), stored.log_prefix
        while data := await self._logs.read(stored.id, fence, offset, _READ_BYTES):
            intake.accept(data)
            offset += len(data)
        self._open[stored.id, fence] = intake
        if len(self._open) > REMEMBERED_MAX:
            self._open.popitem(last=False)
        return intake

    def end(self, build_id: str, fence: int) -> None:
        """Forget a log: nothing follows."""
        self._open.pop((build_id, fence), None)


def patterns_of(ledger: Ledger, vault: Vault, stored: StoredBuild) -> Patterns:
    """Return what has to be hidden of whatever an attempt of the build sends."""
    if not stored.submit.plan.secrets:
        return Patterns(())
    try:
        return Patterns(vault.unlock(stored.id, ledger.secrets(stored.id)).values())
    except SecretsLost:
        return Patterns(())  # then no runner was given them either


def without_secrets(envelope: Envelope, patterns: Patterns) -> Envelope:
    """Return a result in whose words for people there are no secrets."""
    if not patterns:
        return envelope
    failure = envelope.failure
    if failure is not None:
        words = _hidden(msgspec.to_builtins(failure), patterns)
        failure = msgspec.convert({**words, "cause": failure.cause}, Failure)
    warnings = tuple(patterns.hide(text) for text in envelope.warnings)
    return msgspec.structs.replace(envelope, failure=failure, warnings=warnings)


def _hidden(value: Any, patterns: Patterns) -> Any:
    match value:
        case str():
            return patterns.hide(value)
        case dict():
            return {name: _hidden(inner, patterns) for name, inner in value.items()}
        case list() | tuple():
            return [_hidden(inner, patterns) for inner in value]
    return value
