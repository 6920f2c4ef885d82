"""The contract of builders holds for a good one, and notices each that is not."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace

import pytest

from pierhead.router import (
    BuildFailedError,
    BuildId,
    BuildPolicy,
    BuildRequest,
    Built,
    Cancelled,
    Cursor,
    Digest,
    Event,
    Finished,
    ImageInfo,
    Log,
    OnEvent,
    Outcome,
    RoutedImageBuilder,
)
from pierhead.router.builder import WhenCancelled, tell
from pierhead.router.events import START
from pierhead.router.scripted import ScriptedBuild
from pierhead.router.testing import (
    ContractBroken,
    ScriptedExecutor,
    assert_image_builder_contract,
    built,
    contract_script,
)

SLOW = "FROM scratch\nCOPY busybox /\nRUN sleep 30\n"


class Paced(ScriptedExecutor):
    """Builds of a slow Dockerfile take their time: all of them are to be ended before it is over.

    `waited_for`: how the keys of those end whose time is waited for, because something is wrong.
    """

    waited_for: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(contract_script)

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        brief = (request.key or "").endswith(self.waited_for)
        slow_seconds = 0.5 if brief else 600.0
        self._seconds = slow_seconds if "slow" in str(request.context) else 0.0
        return await super().start(request, policy)


class Plain:
    """A platform's own builder, and a good one: it tells nothing and keeps nothing."""

    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        await asyncio.sleep(0.05)
        outcome = contract_script(BuildId("own"), request)
        if not isinstance(outcome, Built):
            assert not isinstance(outcome, Cancelled)
            raise BuildFailedError(outcome, build_id=BuildId("own"))  # type: ignore[arg-type]
        return outcome.image


async def test_a_scripted_control_plane_keeps_the_contract() -> None:
    await assert_image_builder_contract(RoutedImageBuilder(ScriptedExecutor(contract_script)))
    await assert_image_builder_contract(RoutedImageBuilder(Paced()), slow=SLOW)


async def test_a_plain_builder_keeps_the_contract() -> None:
    await assert_image_builder_contract(Plain())


# Builders that are wrong, each in one way.


class ByTag(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        image = await super().build(request, on_event=on_event)
        return replace(image, reference=f"build.example.com/{request.project}:latest")


class ShortDigest(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        image = await super().build(request, on_event=on_event)
        return replace(image, digest=Digest(image.digest[:19]))


class OtherConfig(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        image = await super().build(request, on_event=on_event)
        return replace(image, config=replace(image.config, exposed_ports=()))


class WithoutLabels(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        return await super().build(replace(request, labels={}), on_event=on_event)


class NeverFails(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        try:
            return await super().build(request, on_event=on_event)
        except BuildFailedError:
            return built(BuildId("own"), request).image


class FailsAsABug(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        try:
            return await super().build(request, on_event=on_event)
        except BuildFailedError as error:
            raise RuntimeError("exit code 1") from error


class FailsSilently(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        try:
            return await super().build(request, on_event=on_event)
        except BuildFailedError as error:
            mute = replace(error.failure, extract=(), message="")
            raise BuildFailedError(mute, build_id=BuildId("own")) from error


class SwallowsTheCancel(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        await tell(on_event, Log(data=b"x", offset=0))
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600 if (request.key or "").endswith("cancel") else 0)
        return await super().build(request, on_event=on_event)


class EndsTwice(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        image = await super().build(request, on_event=on_event)
        for _ in range(2):
            await tell(on_event, Finished(outcome=Built(image=image)))
        return image


class TalksAfterTheEnd(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        image = await super().build(request, on_event=on_event)
        await tell(on_event, Finished(outcome=Built(image=image)))
        await tell(on_event, Log(data=b"bye", offset=0))
        return image


class LogWithAHole(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        await tell(on_event, Log(data=b"one", offset=0))
        await tell(on_event, Log(data=b"two", offset=7))
        return await super().build(request, on_event=on_event)


class DeafToCoroutines(Plain):
    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        if on_event is not None:
            waiting = on_event(Log(data=b"x", offset=0))
            if asyncio.iscoroutine(waiting):
                waiting.close()
        return await super().build(request, on_event=on_event)


@pytest.mark.parametrize(
    ("wrong", "promise"),
    [
        (ByTag, "reference names the digest"),
        (ShortDigest, "sha256 and 64 digits"),
        (OtherConfig, "configuration is what the Dockerfile says"),
        (WithoutLabels, "labels of the Dockerfile and of the request"),
        (NeverFails, "gives no image"),
        (FailsAsABug, "not RuntimeError"),
        (FailsSilently, "a failure says why"),
        (SwallowsTheCancel, "swallows nothing"),
        (EndsTwice, "Finished comes once"),
        (TalksAfterTheEnd, "nothing follows Finished"),
        (LogWithAHole, "no gap"),
        (DeafToCoroutines, "may be asynchronous"),
    ],
)
async def test_a_wrong_builder_is_noticed(wrong: type[Plain], promise: str) -> None:
    with pytest.raises(ContractBroken, match=promise):
        await assert_image_builder_contract(wrong())


# Control planes that are wrong, each in one way.


class ForgetsKeys(Paced):
    waited_for = ("",)

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        return await super().start(replace(request, key=None), policy)


class BelievesKeys(Paced):
    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        known = self._with_key(request)
        return known or await super().start(request, policy)


class ForgetsGroups(Paced):
    waited_for = ("old",)

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        return await super().start(replace(request, supersedes=None), policy)


class FindsAnything(Paced):
    async def attach(self, build_id: BuildId) -> ScriptedBuild:
        return self.builds[0]


class Stubborn(ScriptedBuild):
    """Ends when it likes to."""

    async def cancel(self, reason: str) -> Outcome:
        self._tell(Log(data=b"no", offset=23))
        return Built(image=built(self.id, self.request).image)


class Unproven(ScriptedBuild):
    async def cancel(self, reason: str) -> Outcome:
        self.end(Cancelled(by="the caller", reason=reason, proven=False))
        return await self.outcome()


class BeginsAnew(ScriptedBuild):
    """Tells everything again, whatever the cursor says."""

    async def events(self, *, after: Cursor = START) -> AsyncGenerator[Event, None]:
        async for event in super().events():
            yield event


class Odd(Paced):
    """Makes builds of another class."""

    kind: type[ScriptedBuild] = ScriptedBuild

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        build = await super().start(request, policy)
        build.__class__ = self.kind
        return build


class DoesNotStop(Odd):
    kind = Stubborn
    waited_for = ("",)


class ProvesNothing(Odd):
    kind = Unproven


class IgnoresCursors(Odd):
    kind = BeginsAnew


@pytest.mark.parametrize(
    ("wrong", "promise"),
    [
        (ForgetsKeys, "same key is the same build|cancels its build"),
        (BelievesKeys, "key of another request is refused"),
        (ForgetsGroups, "newer build of the group"),
        (FindsAnything, "found by its id|nobody started"),
        (DoesNotStop, "cancels its build|cancel ends the build"),
        (ProvesNothing, "the stop is proven"),
        (IgnoresCursors, "what follows 1 is whole"),
    ],
)
async def test_a_wrong_control_plane_is_noticed(wrong: type[Paced], promise: str) -> None:
    with pytest.raises(ContractBroken, match=promise):
        await assert_image_builder_contract(RoutedImageBuilder(wrong()), slow=SLOW)


async def test_a_builder_that_cancels_what_was_detached_is_noticed() -> None:
    class Clinging(RoutedImageBuilder):
        async def build(
            self,
            request: BuildRequest,
            *,
            on_event: OnEvent | None = None,
            when_cancelled: WhenCancelled = "cancel",
        ) -> ImageInfo:
            return await super().build(request, on_event=on_event)

    class SlowToDetach(ScriptedExecutor):
        async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
            self._seconds = 600.0 if request.key and request.key.endswith("detach") else 0.0
            return await super().start(request, policy)

    with pytest.raises(ContractBroken, match="detached build goes on"):
        await assert_image_builder_contract(Clinging(SlowToDetach(contract_script)))
