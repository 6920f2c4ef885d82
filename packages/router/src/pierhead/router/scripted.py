"""A control plane that follows a script: for tests of code that builds.

It keeps what the real one keeps: keys, groups, cancellation, cursors. It builds nothing and reads
no context.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from pierhead.router.errors import RefusedError
from pierhead.router.events import START, Cursor, Event, Finished, Log, Queued, Started
from pierhead.router.image import BuildId, Digest, ImageConfig, ImageInfo
from pierhead.router.outcome import Built, Cancelled, Eligible, Outcome, Rejection
from pierhead.router.place import Capabilities, PullCredentials, RunnerInfo
from pierhead.router.request import BuildPolicy, BuildRequest

HOST = "build.example.com"
Script: TypeAlias = Callable[[BuildId, BuildRequest], Outcome]


def built(build_id: BuildId, request: BuildRequest, config: ImageConfig | None = None) -> Built:
    """Return a plausible image; the same request gives the same digest."""
    name = f"{request.project} {request.dockerfile} {request.target}".encode()
    digest = Digest("sha256:" + hashlib.sha256(name).hexdigest())
    platforms = request.platforms or ("linux/amd64",)
    image = ImageInfo(
        build_id=build_id,
        reference=f"{HOST}/{request.project}@{digest}",
        digest=digest,
        config_digest=digest,
        config=config or ImageConfig(labels=request.labels),
        platforms=platforms,
        by_platform=dict.fromkeys(platforms, digest),
        size_bytes=1,
        built_on="desktop",
    )
    return Built(image=image)


class ScriptedBuild:
    """A build that ends as the script says, once its seconds are over."""

    def __init__(self, build_id: BuildId, request: BuildRequest) -> None:
        self.request = request
        self.ended: Outcome | None = None
        self._id = build_id
        self._told: list[Event] = []
        self._news = asyncio.Event()
        self._end = asyncio.Event()

    @property
    def id(self) -> BuildId:
        """Its id, for `attach`."""
        return self._id

    async def run(self, script: Script, seconds: float) -> None:
        """Live for so long, then end, unless somebody ends it before."""
        self._tell(Queued(position=1))
        self._tell(Started(runner="desktop", executor="runners", attempt=1))
        self._tell(Log(data=b"STEP 1/1: FROM scratch\n", offset=0))
        try:
            async with asyncio.timeout(seconds):
                await self._end.wait()
        except TimeoutError:
            self.end(script(self._id, self.request))

    def end(self, outcome: Outcome) -> None:
        """End it, once."""
        if self.ended is None:
            self.ended = outcome
            self._tell(Finished(outcome=outcome))
            self._end.set()

    def _tell(self, event: Event) -> None:
        self._told.append(replace(event, cursor=Cursor(str(len(self._told) + 1))))
        self._news.set()
        self._news = asyncio.Event()

    async def events(self, *, after: Cursor = START) -> AsyncGenerator[Event, None]:
        """Yield what happened and happens, to `Finished`."""
        position = int(after or "0")
        while True:
            news = self._news
            for event in self._told[position:]:
                position += 1
                yield event
            if self.ended is not None and position == len(self._told):
                return
            if position == len(self._told):
                await news.wait()

    async def outcome(self) -> Outcome:
        """Wait for the end."""
        await self._end.wait()
        assert self.ended is not None
        return self.ended

    async def cancel(self, reason: str) -> Outcome:
        """End it."""
        self.end(Cancelled(by="the caller", reason=reason, proven=True))
        return await self.outcome()


class ScriptedExecutor:
    """An executor for tests. `script` says how each build ends, after `seconds`."""

    def __init__(
        self,
        script: Script = built,
        *,
        seconds: float = 0.0,
        why: tuple[Rejection | Eligible, ...] = (Eligible(runner="desktop"),),
    ) -> None:
        self.builds: list[ScriptedBuild] = []  # all that were started, oldest first
        self._script = script
        self._seconds = seconds
        self._why = why
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        """Start a build, or find the one that has this key.

        Raises:
            RefusedError: the key was used for another request.
        """
        known = self._with_key(request)
        if known is not None:
            if known.request != request:
                hint = "use a new key for a new request"
                text = f"the key {request.key!r} was used for {known.id}, another request"
                raise RefusedError(text, build_id=known.id, hint=hint)
            return known
        build = ScriptedBuild(BuildId(f"b_{len(self.builds) + 1}"), request)
        self._replace_by(build)
        self.builds.append(build)
        task = asyncio.create_task(build.run(self._script, self._seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return build

    def _with_key(self, request: BuildRequest) -> ScriptedBuild | None:
        wanted = (request.project, request.key)
        same = (b for b in self.builds if (b.request.project, b.request.key) == wanted)
        return next(same, None) if request.key is not None else None

    def _replace_by(self, build: ScriptedBuild) -> None:
        wanted = (build.request.project, build.request.supersedes)
        for older in self.builds:
            same = (older.request.project, older.request.supersedes) == wanted
            if same and build.request.supersedes is not None:
                reason = f"replaced by {build.id}"
                older.end(Cancelled(by="a newer build", reason=reason, proven=True))

    async def attach(self, build_id: BuildId) -> ScriptedBuild:
        """Find a build by its id.

        Raises:
            RefusedError: there is none.
        """
        for build in self.builds:
            if build.id == build_id:
                return build
        raise RefusedError(f"there is no build {build_id}")

    async def why(
        self, request: BuildRequest, policy: BuildPolicy
    ) -> tuple[Rejection | Eligible, ...]:
        """Return what the constructor was given."""
        return self._why

    async def capabilities(self) -> Capabilities:
        """Return one runner that is online."""
        platforms = ("linux/amd64",)
        desktop = RunnerInfo(
            name="desktop", online=True, here=False, platforms=platforms, slots=4, builds=0
        )
        return Capabilities(
            registry=HOST,
            runners=(desktop,),
            platforms=platforms,
            executors=("runners",),
            context_bytes_max=4 * 1024**3,
        )

    async def pull_credentials(self, image: ImageInfo, *, ttl: timedelta) -> PullCredentials:
        """Return a password that opens nothing. Time begins with the epoch."""
        return PullCredentials(
            registry=HOST,
            repository=image.reference.partition("@")[0].partition("/")[2],
            username="pull",
            password="scripted",  # noqa: S106 - it opens nothing
            expires_at=datetime.fromtimestamp(0, UTC) + ttl,
        )
