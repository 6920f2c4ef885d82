"""A runner's way in: join code, enrollment, session, and what it can do."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.ids import Count, ReplayKey, RunnerName, ShortText
from pierhead.protocol.platform import PlatformText

# pid and network: a RUN step sees neither the host's processes nor its addresses.
# network: own network only. none: a RUN step can see and reach what the runner can.
Isolation: TypeAlias = Literal["full", "none"]
PublicKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]  # X25519, raw


class Capabilities(Struct, frozen=True, kw_only=True):
    """What the machine is and what its backend can do. Detected, never typed by anybody."""

    platforms: Annotated[tuple[PlatformText, ...], Meta(min_length=1, max_length=16)]  # native
    backend: ShortText  # "buildah 1.28.2"
    isolation: Isolation
    networks: Annotated[tuple[Literal["default", "none"], ...], Meta(max_length=2)]
    cpus: Annotated[int, Meta(ge=1, le=4096)]
    memory_bytes: Count  # what builds may use together
    total_memory_bytes: Count = 0  # of the machine; 0: not said
    disk_free_bytes: Count = 0  # when the runner began
    slots: Annotated[int, Meta(ge=0, le=256)] = 1
    limits: Annotated[dict[ShortText, ShortText], Meta(max_length=32)] = {}  # shown, not matched
    release: ShortText = ""
    # What it may build besides, by emulation, because its owner said so.
    emulated: Annotated[tuple[PlatformText, ...], Meta(max_length=16)] = ()


class Enroll(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/runners/enroll`. The same code with the same `nonce` is a replay."""

    secret: Annotated[str, Meta(min_length=16, max_length=256)]
    nonce: ReplayKey
    name: RunnerName | None = None  # none: the name that the code was made for
    state_id: ShortText = ""  # as in the session request


class Enrolled(Struct, frozen=True, kw_only=True):
    """The runner's credential: it may open sessions and take builds, and nothing else."""

    name: RunnerName
    credential: ShortText


class SessionRequest(Struct, frozen=True, kw_only=True):
    """Body of `PUT /api/runners/session`: one process of a runner begins to work.

    `process` is random for each start of the runner, so the builds of its last life are known to
    be lost at once. The same process again gets the same session. `public_key` is of this process
    alone: secrets of its builds are sealed to it, and without one it gets no build that has any.

    `state_id` is what a copy of the runner's state folder does not share with it. A runner has the
    one that it joined with, or that of its first session; a copy is refused.
    """

    process: ReplayKey
    boot_id: ShortText
    started_ms: Count = 0  # since the boot: of two processes of one boot, the later one counts
    state_id: ShortText = ""
    capabilities: Capabilities
    public_key: PublicKey | None = None


class Session(Struct, frozen=True, kw_only=True):
    """Answer to a session request. All durations are set by the router."""

    session_id: ShortText
    lease_ttl_ms: Count
    renew_in_ms: Count
    hold_ms: Count


class SessionRelease(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/runners/release`: the process ends, and works on nothing any more.

    A session that was replaced, or has ended, is left as it is; so it can be said again.
    """

    session_id: ShortText


class RunnerView(Struct, frozen=True, kw_only=True):
    """One runner as `pierhead status` shows it."""

    name: RunnerName
    here: bool
    online: bool
    stopped: bool = False  # it said that it ends; otherwise, not online, it fell silent
    seen_at: str | None  # RFC 3339
    builds: tuple[str, ...]
    capabilities: Capabilities | None


class AddRunner(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/runners`: make a join code for a new runner."""

    name: RunnerName


class JoinCode(Struct, frozen=True, kw_only=True):
    """A code that lets one machine join, once, within its lifetime."""

    name: RunnerName
    code: ShortText
    expires_in_seconds: Count
    key_pin: ShortText = ""  # of the server's key, as `curl --pinnedpubkey` takes it
