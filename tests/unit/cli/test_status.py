"""The page of `pierhead status`: what needs somebody stands first."""

from typing import Any

import pytest

from pierhead.protocol.build import BuildPage
from pierhead.protocol.meta import BuildCounts, Concern, Meta, ServerCapabilities
from pierhead.protocol.runner import RunnerView
from pierhead.router.cli import status
from tests.unit.cli.test_nodes import ABLE

ENDS = Concern(what="authority", text="the certificate authority ends", remedy="pierhead ca rotate")
CHANGES = Concern(
    what="authority",
    text="the certificate authority is being changed",
    remedy="pierhead ca",
    needs_you=False,
)


def runner(name: str, **changes: Any) -> RunnerView:
    usual: dict[str, Any] = {
        "name": name,
        "here": False,
        "online": True,
        "seen_at": "2026-03-01T12:00:00Z",
        "builds": (),
        "capabilities": ABLE,
    }
    return RunnerView(**{**usual, **changes})


def test_only_what_somebody_has_to_look_after_needs_you(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runners = (
        runner("busy", builds=("b_1",)),
        runner("gone", online=False),
        runner("resting", online=False, stopped=True),
        runner("new", online=False, capabilities=None, seen_at=None),
    )

    async def look(_url: str | None) -> tuple[Meta, ServerCapabilities, BuildPage]:
        able = ServerCapabilities(
            registry="127.0.0.1:7443", runners=runners, concerns=(ENDS, CHANGES)
        )
        return Meta(low=1, high=1, release="1.2.0"), able, BuildPage(builds=())

    monkeypatch.setattr(status, "_look", look)

    status.command()

    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "needs you   the certificate authority ends",
        "            -> pierhead ca rotate",
        "needs you   gone is offline (last seen 2026-03-01T12:00:00Z)",
        "note        the certificate authority is being changed",
        "            -> pierhead ca",
    ]
    assert lines[5] == "control plane ready, 1.2.0, registry 127.0.0.1:7443"
    assert [line.split()[:2] for line in lines[7:]] == [
        ["busy", "ready"],
        ["gone", "offline"],
        ["resting", "stopped"],
        ["new", "expected"],
    ]


def test_the_builds_of_one_project_are_said_to_be_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = BuildCounts(running=1, waiting=3, project="web")

    async def look(_url: str | None) -> tuple[Meta, ServerCapabilities, BuildPage]:
        able = ServerCapabilities(registry="127.0.0.1:7443", runners=(), builds=counts)
        return Meta(low=1, high=1, release="1.2.0"), able, BuildPage(builds=())

    monkeypatch.setattr(status, "_look", look)

    status.command()

    assert capsys.readouterr().out.splitlines()[1] == "1 build of web running, 3 waiting"
