"""Follows a build and tells its story, line by line, until it has its result."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Final, assert_never

import msgspec

from pierhead.protocol import build as wire
from pierhead.protocol.cli import live
from pierhead.protocol.cli.speak import (
    INTERRUPTED,
    OK,
    REFUSED,
    UNAVAILABLE,
    duration,
    fail,
    give,
    give_json,
    in_line,
    one_line,
    shown_line,
    size,
    tell,
    tell_log,
)
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.failure import distrusted
from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.result import Envelope, Failure
from pierhead.protocol.units import cores

# Lines of the log that say what a step's event says as well.
_OF_A_STEP: Final = re.compile(r"(\[\d+/\d+\] )?STEP \d+/\d+: |--> Using cache")
AGAIN_SECONDS: Final = 1.0
EXPLAIN_SECONDS: Final = 2.0
# While nothing else changes, how long it may take is told again this often.
REPEAT_SECONDS: Final = 30.0
SHOW_SECONDS: Final = 0.5
# A control plane that is restarted is back within seconds; one that is gone is not waited for.
AWAY_SECONDS: Final = 120.0
EXTRACT_LINES: Final = 8


class Story:
    """What was told of a build so far."""

    def __init__(
        self,
        name: str,
        *,
        quiet: bool = False,
        raw: bool = False,
        gives: bool = True,
        platform: str | None = None,
    ) -> None:
        self._name = name
        self._gives = gives  # no: stdout belongs to the image itself
        self._quiet = quiet
        self._raw = raw
        self._mark = f"{platform}  " if platform else ""  # of one of several: in front of its lines
        self._parts: dict[str, Story] = {}
        self._line = bytearray()
        self._step: tuple[str, float] | None = None
        self._said = ""  # by the step that runs, at last
        self._began = time.monotonic()  # noqa: TID251 - what people see is real time
        self._runner = ""
        self._here = False
        self._note_bytes = 0  # of the log: the control plane's own, and no step's
        self._waits = False
        self._waits_for: tuple[int | None, str] = (None, "")
        self._explained, self._explained_at = "", self._began

    def hear(self, event: wire.Event) -> None:
        """Tell one event."""
        if not isinstance(event, wire.Finished) and event.platform is not None:
            self._waits = False  # its platforms do, each by itself
            self._part(event.platform).hear(msgspec.structs.replace(event, platform=None))
            return
        match event:
            case wire.Queued(rejections=rejections):
                self._waits = True
                for rejection in rejections:
                    if rejection.runner != "here":
                        self._say("waiting", f"{rejection.runner}: {rejection.reason}")
            case wire.Started(runner=runner, here=here, note_bytes=note_bytes):
                self._runner, self._here, self._waits = runner, here, False
                self._note_bytes = note_bytes
                self._say("where", f"{runner}   {', '.join(_place(event))}")
            case wire.Log(data=data, offset=offset):
                note = data[: max(0, self._note_bytes - offset)]
                if note and not self._raw:
                    self._tell(self._mark + note.decode("utf-8", "replace").rstrip("\n"))
                self._hear_log(data if self._raw else data[len(note) :])
            case wire.Step():
                self._hear_step(event)
            case wire.PhaseChanged():
                pass  # a phase is over sooner than its last lines of log are here
            case wire.Requeued(reason=reason):
                self._break_off()
                self._line, self._waits = bytearray(), True  # the log begins anew
                self._say("again", f"waits for a runner anew: {reason}")
            case wire.FellBack():
                pass  # the beginning of the log says it
            case wire.Notice(text=text):
                if self._mark:
                    self._end()
                self._say("note", text)
            case wire.CancelRequested(by=by):
                self._tell(f"{self._mark}cancelling on {self._runner} (asked by {by}) ...")
            case wire.Finished(build=build):
                if build.state == "cancelled":
                    self._break_off()
                self._end()
            case _:
                assert_never(event)

    def now(self, at: float) -> str:
        """Return what goes on at a time of the monotonic clock, in one line; empty: nothing."""
        if self._quiet:
            return ""
        if self._step is not None:
            text, began = self._step
            # Half of a usual line, so that the time and some of what is said are seen as well.
            line = f"{live.clipped(text, 40)}  {duration(at - began, whole=True)}"
            return f"{line}   {self._said}" if self._said else line
        if self._waits:
            return f"{'waiting':10}{self._mark}for {duration(at - self._began, whole=True)}"
        return next(filter(None, (part.now(at) for part in self._parts.values())), "")

    def _part(self, platform: str) -> "Story":
        """Return the story of one of several platforms."""
        if platform not in self._parts:
            part = Story(self._name, quiet=self._quiet, raw=self._raw, platform=platform)
            self._parts[platform] = part
        return self._parts[platform]

    def _end(self) -> None:
        self._waits = False
        if self._line:
            self._hear_log(b"\n")
        self._end_step()

    def away(self) -> None:
        """Say that the control plane does not answer."""
        self._tell("note      the control plane does not answer; the build goes on, trying again")

    async def explain_waiting(self, client: RouterClient, build_id: str) -> None:
        """Say what a build waits for, as long as it waits, whenever that changes."""
        while True:
            await asyncio.sleep(EXPLAIN_SECONDS)
            if not any(story._waits for story in (self, *self._parts.values())):
                continue
            with contextlib.suppress(PierheadError):  # whoever follows the events tells it
                found = await client.why(build_id)
                for one in found.platforms:
                    self._part(one.platform)._explain(one)
                if not found.platforms:
                    self._explain(found)

    def _explain(self, why: wire.Why | wire.PlatformWhy) -> None:
        """Say it when what is waited for is another thing, and now and then how long it takes."""
        waits, _, what = why.verdict.partition("waits: ")
        if not self._waits or waits:
            return  # it is over, and what came of it is told
        now = time.monotonic()  # noqa: TID251 - what people see is real time
        seen, said = (why.position, what), in_line(why.position, why.expected_wait_seconds, what)
        recent = now - self._explained_at < REPEAT_SECONDS
        if said != self._explained and not (recent and seen == self._waits_for):
            self._explained, self._explained_at, self._waits_for = said, now, seen
            self._say("waiting", said)

    def end(self, view: wire.BuildView) -> int:
        """Tell how it ended, give the reference, and return the exit code."""
        result = view.result or Envelope(outcome="failed")
        seen = time.monotonic() - self._began  # noqa: TID251
        took = max(seen, result.timings.total_ms / 1000)  # one may have come when it was over
        match view.state:
            case "succeeded":
                self._tell(f"push      {_pushed(result)}")
                for image in result.platforms if view.children else ():
                    self._tell(f"image     {image.platform}  {image.manifest_digest}")
                self._tell(
                    f"{self._name}  {self._built(view)} in {duration(took)}   "
                    f"({_facts(result)})   {view.id}"
                )
                if view.parent:
                    self._tell(f"note      its image is shown with that of {view.parent}")
                else:
                    (give if self._gives else self._tell)(view.reference or "")
                return OK
            case "cancelled":
                by = view.cancel_reason or ""
                how = f"cancelled: {by}" if by.startswith("replaced by ") else "cancelled"
                tell(f"{self._name}  {how}   {view.id}   {proof_text(result)}".rstrip())
                return INTERRUPTED
            case _:
                failed = next((one for one in view.children if one.state == "failed"), None)
                story = self._part(failed.platform) if failed else self
                where = story._where() if story._runner else None
                raise _failed(self._name, where, view, result, failed.id if failed else view.id)

    def _built(self, view: wire.BuildView) -> str:
        if view.children:
            return f"{len(view.children)} platforms built on {view.runner}"
        return f"built {self._where()}"

    def _where(self) -> str:
        return "here" if self._here else f"on {self._runner}"

    def _hear_log(self, data: bytes) -> None:
        self._line += data
        if b"\n" not in data:
            return
        *lines, self._line = self._line.split(b"\n")
        for line in lines:
            self._hear_line(line.decode("utf-8", "replace").rstrip("\r"))

    def _hear_line(self, line: str) -> None:
        if self._raw:
            if not self._quiet:
                tell_log(self._mark + line)
        elif not _OF_A_STEP.match(line):
            self._said = shown_line(line, colours=False).strip() or self._said

    def _hear_step(self, step: wire.Step) -> None:
        if self._raw:
            return  # the log says so
        if step.state == "started":
            self._end_step()
            ran = (step.ran_ms or 0) / 1000
            began = time.monotonic() - ran  # noqa: TID251 - what people see is real time
            self._step, self._said = (f" {self._mark}{step.name}", began), ""
        elif step.state == "cached":
            self._end_step("cached")
        else:
            self._end_step(None if step.took_ms is None else duration(step.took_ms / 1000))

    def _end_step(self, took: str | None = None) -> None:
        """Tell of the step that ran, if there is one; `took`: as the control plane knows it."""
        if self._step is None:
            return
        text, began = self._step
        seen = time.monotonic() - began  # noqa: TID251
        self._tell(f"{text[:72]:72}  {took or duration(seen)}")
        self._step = None

    def _break_off(self) -> None:
        """Tell of the step that ran, if there is one, that it has no end."""
        if self._step is not None:
            self._tell(f"{self._step[0][:72]:72}  broken off")
            self._step = None

    def _say(self, label: str, text: str) -> None:
        self._tell(f"{label:10}{self._mark}{text}")

    def _tell(self, line: str) -> None:
        if not self._quiet:
            tell(line)


async def events(
    client: RouterClient, build_id: str, away: Callable[[], None] = lambda: None
) -> AsyncIterator[wire.Event]:
    """Yield the events of a build to the last one, coming back after every cut."""
    cursor: str | None = None
    away_since: float | None = None
    while True:
        try:
            async for event in client.events(build_id, after=cursor):
                cursor, away_since = event.cursor, None
                yield event
                if isinstance(event, wire.Finished):
                    return
        except Unavailable as error:
            if distrusted(error) is not None:  # that does not heal, and has a hint of its own
                raise
            now = time.monotonic()  # noqa: TID251
            if away_since is None:
                away_since = now
                away()
            if now - away_since > AWAY_SECONDS:
                hint = f"is it running? when it is back: pierhead builds watch {build_id}"
                raise fail(str(error), hint, UNAVAILABLE) from error
        await asyncio.sleep(AGAIN_SECONDS)


async def follow(
    client: RouterClient, build_id: str, story: Story, *, as_json: bool = False
) -> int:
    """Tell a build's story to its end, and return the exit code."""
    explaining = asyncio.create_task(story.explain_waiting(client, build_id))
    showing = asyncio.create_task(_show(story))
    try:
        async for event in events(client, build_id, story.away):
            if as_json:
                give_json(event)
            else:
                story.hear(event)
            if isinstance(event, wire.Finished):
                if as_json:
                    return OK if event.build.state == "succeeded" else REFUSED
                return story.end(event.build)
    finally:
        explaining.cancel()
        showing.cancel()
        live.hide()
    raise AssertionError("the events of a build end with `finished`")


async def _show(story: Story) -> None:
    """Keep a terminal's last line at what goes on."""
    while live.is_watched():
        await asyncio.sleep(SHOW_SECONDS)
        if line := story.now(time.monotonic()):  # noqa: TID251 - what people see is real time
            live.show(one_line(line))


def proof_text(result: Envelope) -> str:
    """Return what the runner saw after it had stopped a build."""
    proof = result.stop_proof
    if proof is None:
        return ""
    if proof.clean:
        return f"stopped in {proof.took_ms / 1000:.1f} s; no process, mount or file of it is left"
    kinds = {
        "processes": proof.processes,
        "mounts": proof.mounts,
        "containers": proof.containers,
        "process groups": proof.cgroups,
        "directories": proof.directories,
    }
    left = [f"{kind} {', '.join(map(one_line, found))}" for kind, found in kinds.items() if found]
    return f"stopped in {proof.took_ms / 1000:.1f} s, but this is left: {'; '.join(left)}"


def _place(started: wire.Started) -> list[str]:
    """Return what is known of a runner: what it is, and what it gives to builds."""
    facts = [*started.platforms]
    facts += [cores(started.cpus)] if started.cpus else []
    if started.memory_bytes and started.memory_bytes < started.total_memory_bytes:
        allowed, total = size(started.memory_bytes), size(started.total_memory_bytes)
        facts.append(f"at most {allowed} of {total} memory")
    elif started.memory_bytes:
        facts.append(f"{size(started.memory_bytes)} memory")
    return facts


def _pushed(result: Envelope) -> str:
    """Return what of the image had to be sent: `2 of 9 layers, 11.3 MB of 214.0 MB at 9.8 MB/s`."""
    moved, seconds = result.bytes_moved, result.timings.pushing_ms / 1000
    layers = sum(len(one.layers) for one in result.platforms)
    # A runner that is older does not say how many it sent: none, if all of them were there.
    all_there = moved.present_bytes >= sum(one.size_bytes for one in result.platforms)
    counted = moved.pushed_layers > 0 or all_there
    count = f"{moved.pushed_layers} of {layers} layers, " if layers and counted else ""
    amount = f"{size(moved.pushed_bytes)} of {size(moved.pushed_bytes + moved.present_bytes)}"
    if not (moved.pushed_bytes and seconds):
        return count + amount
    return f"{count}{amount} at {size(int(moved.pushed_bytes / seconds))}/s"


def _facts(result: Envelope) -> str:
    facts = [f"{result.cache.cached} of {result.cache.steps} steps cached"]
    if result.peak_memory_bytes is not None:
        facts.append(f"peak {size(result.peak_memory_bytes)}")
    return ", ".join(facts)


def _failed(
    name: str, where: str | None, view: wire.BuildView, result: Envelope, log_of: str
) -> Exception:
    failure = result.failure or Failure(cause="runner", message="no reason was given")
    again = f"again, same context: pierhead builds rerun {view.id}"
    if where is None:
        hint = f"{one_line(failure.hint)}\n      {again}" if failure.hint else again
        return fail(f"{name} was not built: {one_line(failure.message)}", hint)
    step = f" at {one_line(failure.step)}" if failure.step else ""
    took = f" after {_took(view)}" if _took(view) else ""
    lines = failure.extract[-EXTRACT_LINES:]
    said = [f"   > {one_line(shown_line(line, colours=False))}" for line in lines]
    detail = [f"   {one_line(failure.detail)}"] if failure.detail else []
    text = "\n".join(
        [
            f"{name} failed{step} {where}{took}: {one_line(failure.message)}",
            *([""] if said or detail else []),
            *said,
            *detail,
        ]
    )
    more = f"whole log: pierhead builds log {log_of}     {again}"
    return fail(text, f"{one_line(failure.hint)}\n      {more}" if failure.hint else more)


def _took(view: wire.BuildView) -> str:
    """Return how long a build took, from its first runner to its end."""
    if not (view.started_at and view.finished_at):
        return ""
    began, ended = map(datetime.fromisoformat, (view.started_at, view.finished_at))
    return duration((ended - began).total_seconds())
