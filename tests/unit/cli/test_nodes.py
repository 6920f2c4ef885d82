"""How `pierhead nodes` words what it knows of a machine."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pierhead.protocol.runner import Capabilities, RunnerView
from pierhead.router.cli.nodes import row_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ABLE = Capabilities(
    platforms=("linux/amd64",),
    backend="buildah 1.28.2",
    isolation="full",
    networks=("default", "none"),
    cpus=12,
    memory_bytes=32 * 10**9,
    slots=4,
    release="1.2.0",
)


def node(**changes: Any) -> RunnerView:
    usual: dict[str, Any] = {
        "name": "desktop",
        "here": False,
        "online": True,
        "seen_at": "2026-03-01T12:00:00Z",
        "builds": (),
        "capabilities": ABLE,
    }
    return RunnerView(**{**usual, **changes})


def test_a_node_that_is_ready() -> None:
    assert row_of(node(), NOW) == (
        "desktop", "ready", "-", "12", "32.0 GB", "linux/amd64", "now", "1.2.0",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("builds", "said"), [(("b_1",), "1 build of 4"), (("b_1", "b_2"), "2 builds of 4")]
)
def test_what_it_is_doing(builds: tuple[str, ...], said: str) -> None:
    assert row_of(node(builds=builds), NOW)[2] == said


def test_a_node_that_was_not_seen_for_long() -> None:
    row = row_of(node(online=False, seen_at="2026-03-01T09:50:00Z"), NOW)

    assert (row[1], row[6]) == ("offline", "2 h 10 min")


def test_a_node_that_has_never_come() -> None:
    assert row_of(node(capabilities=None, online=False, seen_at=None), NOW) == (
        "desktop", "expected", "-", "-", "-", "-", "never", "-",
    )  # fmt: skip


def test_a_node_that_was_stopped_and_one_that_can_build_nothing() -> None:
    broken = msgspec.structs.replace(ABLE, slots=0, limits={"backend": "buildah is not installed"})

    assert row_of(node(online=False, stopped=True), NOW)[1] == "stopped"
    assert row_of(node(capabilities=broken), NOW)[1] == "unable"
    assert row_of(node(capabilities=broken, online=False), NOW)[1] == "offline"
