"""What must hold of builds for several platforms, after every commit.

A parent is judged by the rows of its children, not by what it says of them; an index by the digests
that the executions pushed.
"""

import json
from collections.abc import Iterator
from typing import Any

from pierhead.router.domain.parent import Parent
from pierhead.router.ports.builds import StoredBuild

from .store import MemoryLedger

FINAL = {"succeeded", "failed", "cancelled"}


def check_families(ledger: MemoryLedger) -> None:
    """Judge every parent with its children."""
    for stored, children in families(ledger):
        wanted = stored.submit.platforms
        asked = tuple(child.submit.plan.platform for child in children)
        assert asked == wanted, f"{stored.id} is for {wanted}, its children for {asked}"
        _together(stored, [child.build.state.value for child in children])
        _first_failure_ends_all(stored, children)
        for child in children:
            assert not child.submit.tags, f"{child.id} would move a tag"
            assert child.reference is None, f"{child.id} is shown by itself"
        if stored.build.state.value in FINAL:
            _joined(stored, children, ledger)


def families(ledger: MemoryLedger) -> Iterator[tuple[StoredBuild, list[StoredBuild]]]:
    """Yield each parent with its children, in the order of their submission."""
    for stored in ledger.builds_.values():
        if stored.submit.key is not None and len(stored.submit.platforms) > 1:
            yield stored, [one for one in ledger.builds_.values() if one.parent == stored.id]


def _together(stored: StoredBuild, states: list[str]) -> None:
    state = stored.build.state.value
    assert isinstance(stored.build, Parent)
    told = [child.state.value for child in stored.build.children]
    assert told == states, f"{stored.id} believes {told} of its children, which are {states}"
    ended = {*states} <= FINAL
    assert (state in FINAL) == ended, f"{stored.id} is {state} with children {states}"
    all_built = {*states} == {"succeeded"}
    assert (state == "succeeded") == all_built, f"{stored.id} is {state} with children {states}"
    if ended and not all_built:
        wished = stored.build.cancel is not None
        assert wished == (state == "cancelled"), f"{stored.id} is {state}, wished: {wished}"
        assert wished or "failed" in states, f"{stored.id} is {state} with children {states}"
    assert stored.build.lease is None, f"{stored.id} was given to a runner"


def _first_failure_ends_all(stored: StoredBuild, children: list[StoredBuild]) -> None:
    if any(child.build.state.value in {"failed", "cancelled"} for child in children):
        going_on = [
            child.id
            for child in children
            if child.build.state.value not in FINAL and child.build.cancel is None
        ]
        assert not going_on, f"{stored.id} has no image any more, and {going_on} go on"


def _joined(stored: StoredBuild, children: list[StoredBuild], ledger: MemoryLedger) -> None:
    project = stored.submit.project
    left = [name for name in ledger.manifests_ if name[2].startswith(f"{stored.id}-")]
    assert not left, f"{stored.id} ended and left {left} pending"
    digests = [child.envelope.manifest_digest for child in children if child.envelope]
    pushed = [digest for digest in digests if digest]
    shown = [digest for digest in pushed if (project, digest, "") in ledger.manifests_]
    if stored.build.state.value != "succeeded":
        assert not shown, f"{stored.id} is {stored.build.state} and shows {shown}"
        assert stored.reference is None
        return
    assert shown == pushed, f"{stored.id} shows {shown} of {pushed}"
    assert stored.reference is not None
    index = ledger.manifests_[project, stored.reference.partition("@")[2], ""]
    assert set(index.parts) == set(pushed), f"{stored.id} keeps {index.parts} of {pushed}"
    listed: list[dict[str, Any]] = json.loads(index.body)["manifests"]
    platforms = [f"{one['platform']['os']}/{one['platform']['architecture']}" for one in listed]
    assert [one["digest"] for one in listed] == pushed, f"{stored.id} lists others: {listed}"
    assert tuple(platforms) == stored.submit.platforms, f"{stored.id} lists {platforms}"
