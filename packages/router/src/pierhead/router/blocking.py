"""The same builder for code without an event loop: Django, Flask, Celery, Click.

There is no second implementation: a loop in a thread of its own runs the first one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from anyio.from_thread import BlockingPortal, start_blocking_portal

from pierhead.router.builder import RoutedImageBuilder, WhenCancelled
from pierhead.router.events import START, Cursor, Event
from pierhead.router.image import BuildId, ImageInfo
from pierhead.router.outcome import Eligible, Rejection
from pierhead.router.place import Capabilities, PullCredentials
from pierhead.router.request import BuildRequest


class BlockingBuilder:
    """A `RoutedImageBuilder` whose methods wait. `on_event` is called in the loop's thread."""

    def __init__(self, portal: BlockingPortal, builder: RoutedImageBuilder) -> None:
        self._portal = portal
        self._builder = builder

    def build(
        self,
        request: BuildRequest,
        *,
        on_event: Callable[[Event], None] | None = None,
        when_cancelled: WhenCancelled = "cancel",
    ) -> ImageInfo:
        """Build one image; see `RoutedImageBuilder.build`."""
        return self._portal.call(
            lambda: self._builder.build(request, on_event=on_event, when_cancelled=when_cancelled)
        )

    def events(self, request: BuildRequest | BuildId, *, after: Cursor = START) -> Iterator[Event]:
        """Yield the events of a build that is started, or found by its id."""
        known = isinstance(request, str)
        find = self._builder.attach if known else self._builder.start
        stream = self._portal.call(find, request).events(after=after)  # type: ignore[arg-type]
        try:
            while (event := self._portal.call(anext, stream, None)) is not None:
                yield event
        finally:
            self._portal.call(stream.aclose)

    def why(self, request: BuildRequest) -> tuple[Rejection | Eligible, ...]:
        """Say of each runner whether it would take such a build."""
        return self._portal.call(self._builder.why, request)

    def capabilities(self) -> Capabilities:
        """Say what can be built, and where."""
        return self._portal.call(self._builder.capabilities)

    def pull_credentials(self, image: ImageInfo, *, ttl: timedelta) -> PullCredentials:
        """Make a password that pulls this image's repository for a while."""
        return self._portal.call(lambda: self._builder.pull_credentials(image, ttl=ttl))


@contextmanager
def blocking(builder: RoutedImageBuilder) -> Iterator[BlockingBuilder]:
    """Give a builder to code that waits. An exception in the block cancels what is under way."""
    with start_blocking_portal() as portal:
        yield BlockingBuilder(portal, builder)
