"""Matching, waiting, sessions, join codes, logs, rights and names."""

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.lease import Held
from pierhead.protocol.plan import IfNobody
from pierhead.protocol.runner import Capabilities
from pierhead.router.domain.build import Build, Expire, Grant, Lease, LeasePolicy, Requeued, decide
from pierhead.router.domain.enrollment import Code, spend
from pierhead.router.domain.errors import (
    InvalidRequest,
    JoinCodeUsed,
    NotAllowed,
    OffsetMismatch,
    SessionSuperseded,
    Unauthenticated,
)
from pierhead.router.domain.logbook import Cursor, parse_cursor, skip
from pierhead.router.domain.matching import RunnerFacts, Wanted, choose_builds, explain, rejection
from pierhead.router.domain.naming import TagName, parse_tag, project_from_folder
from pierhead.router.domain.rights import may_move_tag, may_pull, may_push_content
from pierhead.router.domain.session import (
    Session,
    admit,
    check_copy,
    is_alive,
    is_overtaken,
    reconcile,
)
from pierhead.router.domain.token import (
    Attempt,
    Owner,
    Principal,
    ProjectHolder,
    Runner,
    build_token,
    parse_build_token,
)
from pierhead.router.domain.waiting import (
    Here,
    NoHope,
    Patience,
    Wait,
    WaitingPolicy,
    judge,
    somebody_else,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ABLE = Capabilities(
    platforms=("linux/amd64",),
    backend="buildah",
    isolation="full",
    networks=("default", "none"),
    cpus=2,
    memory_bytes=2**30,
)
WANTED = Wanted(build_id="b_1", sequence=1)


def runner(name: str = "one", **facts: object) -> RunnerFacts:
    values = {"capabilities": ABLE, "free_slots": 1, "seen_at": NOW, **facts}
    return RunnerFacts(name=name, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "wanted", "reason"),
    [
        (runner(), WANTED, None),
        (runner(capabilities=None), WANTED, "has not connected yet"),
        (runner(online=False), WANTED, "offline since 00:00 UTC"),
        (runner(free_slots=0), WANTED, "busy"),
        (runner(free_slots=0, reason="draining"), WANTED, "draining"),
        (runner(here=True), WANTED, "kept for builds that nobody else can take"),
        (
            runner(),
            Wanted(build_id="b", sequence=1, platform="linux/arm64"),
            "linux/amd64 only; the build wants linux/arm64",
        ),
    ],
)
def test_why_a_runner_does_not_take_a_build(
    facts: RunnerFacts, wanted: Wanted, reason: str | None
) -> None:
    assert rejection(facts, wanted) == reason


def test_a_project_that_is_not_trusted_is_not_built_where_nothing_isolates() -> None:
    able = Capabilities(
        platforms=ABLE.platforms,
        backend="buildah",
        isolation="none",
        networks=("default",),
        cpus=1,
        memory_bytes=1,
    )
    untrusted = Wanted(build_id="b", sequence=1, trusted=False)

    assert choose_builds(runner(capabilities=able), [untrusted]) == ()
    assert choose_builds(runner(), [untrusted]) == ("b",)


@given(st.permutations([Wanted(build_id=f"b{n}", sequence=n) for n in range(6)]))
def test_builds_are_served_in_the_order_of_submission(queue: list[Wanted]) -> None:
    assert choose_builds(runner(free_slots=3), queue) == ("b0", "b1", "b2")


EMULATING = runner("big", capabilities=msgspec.structs.replace(ABLE, emulated=("linux/arm64",)))
NATIVE = msgspec.structs.replace(ABLE, platforms=("linux/arm64",))
FOR_ARM = Wanted(build_id="b_1", sequence=1, platform="linux/arm64")


def test_another_platform_is_emulated_only_where_the_runner_says_that_it_may_be() -> None:
    assert choose_builds(EMULATING, [FOR_ARM]) == ("b_1",)
    assert choose_builds(runner(), [FOR_ARM]) == ()


@pytest.mark.parametrize(
    ("native", "taken"),
    [
        (runner("pi", capabilities=NATIVE), ()),
        (runner("pi", capabilities=NATIVE, free_slots=0), ()),
        (runner("pi", capabilities=NATIVE, online=False), ("b_1",)),
    ],
    ids=["free", "busy", "offline"],
)
def test_whoever_would_emulate_leaves_a_build_to_one_that_is_native_and_there(
    native: RunnerFacts, taken: tuple[str, ...]
) -> None:
    assert choose_builds(EMULATING, [FOR_ARM], [EMULATING, native]) == taken


def test_a_build_waits_no_longer_for_a_native_runner_because_another_one_would_emulate() -> None:
    busy = runner("pi", capabilities=NATIVE, free_slots=0)
    patience = Patience(if_nobody="fail", busy_for=timedelta(seconds=60), since=NOW, idle_since=NOW)

    judged = judge(FOR_ARM, patience, [EMULATING, busy], now=NOW, policy=WaitingPolicy())

    assert judged == Wait("pi is busy", NOW + timedelta(seconds=60))


def test_here_leaves_a_build_to_a_runner_that_is_free_for_it() -> None:
    here = runner("here", here=True)
    wanted = Wanted(build_id="b_1", sequence=1, here_allowed=True)

    assert choose_builds(here, [wanted], [runner()]) == ()
    assert choose_builds(here, [wanted], [runner(free_slots=0)]) == ("b_1",)
    assert explain([here, runner()], wanted)[1] == ("here", "one")


def wait(*runners: RunnerFacts, if_nobody: str = "here", waited: float = 0) -> Wait | Here | NoHope:
    return judged(WANTED, *runners, if_nobody=if_nobody, waited=waited)


def judged(
    wanted: Wanted, *runners: RunnerFacts, if_nobody: str = "here", waited: float = 0
) -> Wait | Here | NoHope:
    patience = Patience(
        if_nobody=if_nobody,  # type: ignore[arg-type]
        busy_for=timedelta(seconds=300),
        since=NOW - timedelta(seconds=waited),
        idle_since=NOW - timedelta(seconds=waited),
    )
    return judge(wanted, patience, runners, now=NOW, policy=WaitingPolicy())


HERE = runner("here", here=True)
BROKE_ONE = replace(WANTED, broken_on=frozenset({"one"}))
BROKE_BOTH = replace(WANTED, broken_on=frozenset({"one", "here"}))


@pytest.mark.parametrize(
    ("wanted", "runners", "if_nobody", "verdict"),
    [
        (WANTED, [runner(), HERE], "here", Wait("one is free", None)),
        (BROKE_ONE, [runner(), HERE], "here", Here("one broke while building it")),
        (
            replace(BROKE_ONE, broken_why="its disk is full"),
            [runner(), HERE],
            "here",
            Here("one could not build it: its disk is full"),
        ),
        (BROKE_ONE, [runner(), runner("two"), HERE], "here", Wait("two is free", None)),
        (BROKE_ONE, [runner(), HERE], "wait", Wait("one is free", None)),
        (BROKE_ONE, [runner(), HERE], "fail", Wait("one is free", None)),
        (BROKE_ONE, [runner()], "here", Wait("one is free", None)),
        (
            BROKE_ONE,
            [runner(), replace(HERE, reason="full", refuses_since=NOW)],
            "here",
            Wait("one is free", None),
        ),
        (BROKE_BOTH, [runner(), HERE], "here", Wait("one is free", None)),
    ],
)
def test_who_broke_while_building_it_is_not_waited_for_while_this_machine_can(
    wanted: Wanted, runners: list[RunnerFacts], if_nobody: str, verdict: Wait | Here
) -> None:
    assert judged(wanted, *runners, if_nobody=if_nobody) == verdict


@pytest.mark.parametrize(
    ("wanted", "runners", "if_nobody", "found"),
    [
        (BROKE_ONE, [runner()], "here", False),
        (BROKE_ONE, [runner(), HERE], "here", True),
        (BROKE_ONE, [runner(), HERE], "wait", False),
        (BROKE_ONE, [runner(), HERE], "fail", False),
        (BROKE_ONE, [runner(), replace(HERE, online=False)], "here", False),
        (BROKE_ONE, [runner(), replace(HERE, reason="full", refuses_since=NOW)], "here", False),
        (replace(BROKE_ONE, preview=True), [runner(), HERE], "here", False),
        (BROKE_ONE, [runner(), runner("two", free_slots=0)], "fail", True),
        (BROKE_ONE, [runner(), runner("two", online=False)], "fail", False),
        (BROKE_ONE, [runner(), replace(runner("two"), refuses_since=NOW)], "fail", False),
        (replace(BROKE_ONE, platform="linux/riscv64"), [runner("two"), HERE], "here", False),
        (replace(BROKE_ONE, on=("one",)), [runner(), runner("two"), HERE], "fail", False),
        (BROKE_BOTH, [runner(), HERE], "here", False),
        (BROKE_BOTH, [runner(), runner("two"), HERE], "here", True),
    ],
)
def test_somebody_else_is_who_is_there_for_a_build_and_did_not_break_over_it(
    wanted: Wanted, runners: list[RunnerFacts], if_nobody: IfNobody, found: bool
) -> None:
    assert somebody_else(wanted, if_nobody, runners) is found


@pytest.mark.parametrize(
    ("wanted", "others", "taken"),
    [
        (BROKE_ONE, [], True),
        (BROKE_ONE, [runner("two")], False),
        (BROKE_ONE, [runner("two", free_slots=0)], False),
        (BROKE_ONE, [runner("two", online=False)], True),
        (BROKE_ONE, [HERE], True),  # nobody has decided that yet
        (replace(BROKE_ONE, here_allowed=True), [HERE], False),
        (replace(BROKE_BOTH, here_allowed=True), [HERE], True),
    ],
)
def test_who_broke_while_building_it_leaves_it_to_one_who_did_not(
    wanted: Wanted, others: list[RunnerFacts], taken: bool
) -> None:
    assert choose_builds(runner(), [wanted], [runner(), *others]) == (("b_1",) if taken else ())


def test_here_leaves_nothing_to_a_runner_that_broke_over_it() -> None:
    wanted = replace(BROKE_ONE, here_allowed=True)

    assert choose_builds(HERE, [wanted], [runner()]) == ("b_1",)
    assert choose_builds(HERE, [wanted], [runner(), runner("two")]) == ()


def test_who_broke_does_not_wait_for_one_that_takes_nothing() -> None:
    full = replace(runner("two", free_slots=0), reason="its disk is full", refuses_since=NOW)

    assert choose_builds(runner(), [BROKE_ONE], [full]) == ("b_1",)


KINDS = [None, *product((ABLE, NATIVE, EMULATING.capabilities), (False, True))]


@pytest.mark.parametrize("kinds", list(product(KINDS, repeat=3)))
def test_a_build_that_somebody_could_take_is_not_left_by_each_to_another(
    kinds: tuple[tuple[Capabilities, bool] | None, ...],
) -> None:
    """Each of the three is not there, or of one of these kinds, and broke over it or did not."""
    there = [
        (runner(name, capabilities=kind[0], here=name == "here"), kind[1])
        for name, kind in zip(("one", "two", "here"), kinds, strict=True)
        if kind is not None
    ]
    broken = frozenset(found.name for found, broke in there if broke)
    wanted = replace(FOR_ARM, here_allowed=True, broken_on=broken)
    machines = [found for found, _ in there]
    could = any(rejection(found, wanted) is None for found in machines)

    took = [
        found.name
        for found in machines
        if choose_builds(found, [wanted], [one for one in machines if one is not found])
    ]

    assert bool(took) is could


OFFLINE = runner(online=False, seen_at=NOW - timedelta(hours=1))
BUSY = runner(free_slots=0)


def test_with_no_runner_registered_the_build_is_here_at_once_and_without_a_reason() -> None:
    assert wait(HERE) == Here("")


def newcomer(joined: float, name: str = "new") -> RunnerFacts:
    """Return a runner that joined so many seconds ago and was not seen since."""
    at = NOW - timedelta(seconds=joined)
    return runner(name, capabilities=None, online=False, seen_at=None, free_slots=0, joined_at=at)


def test_a_machine_that_has_just_joined_is_waited_for() -> None:
    assert wait(HERE, newcomer(5)) == Wait(
        "new has just joined, and is not at work yet", NOW + timedelta(seconds=55)
    )
    assert wait(HERE, newcomer(5), OFFLINE, waited=30) == Wait(
        "new has just joined, and is not at work yet", NOW + timedelta(seconds=55)
    )


def test_a_machine_that_joined_and_never_came_is_named_as_such() -> None:
    assert wait(HERE, newcomer(61)) == Here("new has joined and was never seen")
    assert wait(HERE, newcomer(61), if_nobody="fail") == NoHope(
        "no-runner", "new has joined and was never seen"
    )
    assert wait(HERE, newcomer(61), OFFLINE, waited=20) == Here("one is offline")


def test_nobody_waits_for_a_newcomer_while_another_can_build() -> None:
    assert wait(HERE, newcomer(5), runner()) == Wait("one is free", None)
    assert wait(HERE, newcomer(5), BUSY) == Wait("one is busy", NOW + timedelta(seconds=300))


def test_here_builds_no_preview_and_nothing_that_took_more_memory_than_it_may_give() -> None:
    small = runner(
        "here", here=True, capabilities=msgspec.structs.replace(ABLE, memory_bytes=10**9)
    )
    heavy, preview = replace(WANTED, peak_bytes=3 * 10**9), replace(WANTED, preview=True)

    assert judged(heavy, small) == NoHope(
        "no-runner",
        "no runner is registered; this machine: would need 3.0 GB, 1.0 GB are allowed here",
    )
    assert judged(preview, small) == NoHope(
        "no-runner", "no runner is registered; this machine: builds no previews"
    )
    assert judged(replace(WANTED, peak_bytes=10**9), small) == Here("")
    for wanted in (heavy, preview):
        # Whoever asks for it gets it, and other machines are not spared.
        assert judged(replace(wanted, on=("here",)), small) == Here("")
        assert rejection(small, replace(wanted, here_allowed=True)) is None
        assert rejection(runner("pi", capabilities=small.capabilities), wanted) is None


def test_a_build_for_one_runner_is_no_other_ones_and_not_heres() -> None:
    asked = replace(WANTED, on=("desktop",))
    assert rejection(runner("pi"), asked) == "left out by --on desktop"

    offline = runner("desktop", online=False, seen_at=NOW - timedelta(hours=1))
    gone = judged(asked, HERE)

    assert isinstance(judged(asked, offline, HERE), Wait)
    assert judged(asked, offline, HERE, waited=16) == NoHope(
        "no-runner", "desktop is offline; this machine: left out by --on desktop"
    )
    assert isinstance(gone, NoHope)
    assert gone.detail.startswith("there is no runner desktop")


def test_a_build_for_here_waits_for_nobody_and_needs_no_reason() -> None:
    asked = replace(WANTED, on=("here",))
    assert judged(asked, runner("desktop"), HERE) == Here("")


def test_this_machine_that_refuses_is_not_waited_for_without_end() -> None:
    full = replace(HERE, free_slots=0, reason="its disk is full", refuses_since=NOW)
    long_full = replace(full, refuses_since=NOW - timedelta(hours=1))
    said = "no runner is registered; this machine: its disk is full"

    assert wait(full, waited=90) == Wait(
        "this machine: its disk is full", NOW + timedelta(seconds=20)
    )
    assert wait(long_full, waited=19) == Wait(
        "this machine: its disk is full", NOW + timedelta(seconds=1)
    )
    assert wait(long_full, waited=20) == NoHope("no-runner", said)
    assert wait(replace(HERE, free_slots=0, reason="busy: 1 of 1 builds")) == Here("")


def test_a_machine_that_can_build_nothing_is_no_runner_but_this_one_may_be_mended() -> None:
    broken = msgspec.structs.replace(ABLE, slots=0, limits={"backend": "buildah is not installed"})
    there = runner("pi", capabilities=broken, free_slots=0)
    here = replace(HERE, capabilities=broken, free_slots=0)
    refusing = replace(here, reason="buildah is not installed", refuses_since=NOW)

    assert rejection(there, WANTED) == "buildah is not installed"
    assert wait(there, HERE) == Here("no runner can take this build (pi)")
    assert wait(here) == Here("")
    assert isinstance(wait(refusing), Wait)
    assert wait(refusing, waited=0) == Wait(
        "this machine: buildah is not installed", NOW + timedelta(seconds=20)
    )


def test_a_runner_that_refuses_is_waited_for_and_its_reason_is_said() -> None:
    full = replace(BUSY, reason="its disk is full", refuses_since=NOW - timedelta(hours=1))
    until = NOW + timedelta(seconds=300)

    assert wait(full, HERE) == Wait("one: its disk is full", until)
    assert wait(full, replace(BUSY, name="other"), HERE) == Wait(
        "one: its disk is full; other is busy", until
    )
    assert wait(full, HERE, waited=300) == Here("one: its disk is full")


def test_each_of_several_runners_is_named_with_what_it_is() -> None:
    away = [runner(name, online=False) for name in ("desk", "lap")]
    gone = runner("pi", online=False, stopped=True)
    busy = [replace(BUSY, name=name) for name in ("a", "b", "c")]
    until = NOW + timedelta(seconds=300)

    assert wait(*busy, HERE) == Wait("a, b and c are busy", until)
    assert wait(*away, gone, busy[0], HERE) == Wait(
        "a is busy; desk and lap are offline; pi is stopped", until
    )


def test_runners_that_were_stopped_are_not_waited_for() -> None:
    stopped = runner("desktop", online=False, stopped=True, seen_at=NOW - timedelta(hours=1))
    both = judged(WANTED, stopped, OFFLINE, HERE)

    assert judged(WANTED, stopped, HERE) == Here("desktop is stopped")
    assert both == Wait("desktop is stopped; one is offline", NOW + timedelta(seconds=15))
    assert rejection(stopped, WANTED) == "stopped since 23:00 UTC"


def test_runners_that_are_offline_are_waited_for_fifteen_seconds() -> None:
    assert isinstance(wait(HERE, OFFLINE, waited=14), Wait)
    assert wait(HERE, OFFLINE, waited=15) == Here("one is offline")


def lost_by_silence(if_nobody: IfNobody = "here") -> Patience:
    """Return the patience with a build whose runner is given up now."""
    policy, granted_at = LeasePolicy(), NOW - LeasePolicy().ttl - LeasePolicy().grace
    leased, _ = decide(Build(id="b_1"), Grant("one", "s_1", "r"), now=granted_at, policy=policy)
    _, effects = decide(leased, Expire(), now=NOW, policy=policy)
    [idle_since] = [effect.since for effect in effects if isinstance(effect, Requeued)]
    return Patience(
        if_nobody=if_nobody, busy_for=timedelta(seconds=300), since=NOW, idle_since=idle_since
    )


def test_to_build_here_a_runner_that_lost_a_build_by_silence_was_waited_for_already() -> None:
    def judged_with(seen_ago: float, here: RunnerFacts = HERE) -> Wait | Here | NoHope:
        last = runner("two", online=False, seen_at=NOW - timedelta(seconds=seen_ago))
        runners = [OFFLINE, last, here]
        return judge(WANTED, lost_by_silence(), runners, now=NOW, policy=WaitingPolicy())

    waits = Wait("one and two are offline", NOW + timedelta(seconds=15))
    assert judged_with(15) == Here("one and two are offline")
    assert judged_with(5) == waits  # another one that could build it was seen later
    for cannot in ({"online": False}, {"refuses_since": NOW, "reason": "full"}):
        assert judged_with(15, replace(HERE, **cannot)) == waits


@pytest.mark.parametrize("if_nobody", ["fail", "here"])
def test_nothing_is_given_up_before_a_silent_runner_had_time_to_come_back(
    if_nobody: IfNobody,
) -> None:
    patience = lost_by_silence(if_nobody)
    for seconds, over in ((14, False), (15, True)):
        now = NOW + timedelta(seconds=seconds)
        verdict = judge(WANTED, patience, [OFFLINE], now=now, policy=WaitingPolicy())
        assert isinstance(verdict, NoHope) is over


def test_runners_that_are_busy_are_waited_for_as_long_as_the_submitter_says() -> None:
    assert isinstance(wait(HERE, BUSY, waited=299), Wait)
    assert wait(HERE, BUSY, waited=300) == Here("one is busy")


def test_a_runner_that_is_free_gets_the_build_however_short_the_patience_is() -> None:
    assert wait(HERE, runner(), waited=301) == Wait("one is free", None)
    assert wait(HERE, runner(), if_nobody="fail", waited=301) == Wait("one is free", None)


def test_whoever_wants_to_wait_waits_and_whoever_wants_to_fail_fails() -> None:
    waiting = wait(HERE, OFFLINE, if_nobody="wait", waited=10**6)
    assert isinstance(waiting, Wait)
    assert waiting.until is None
    assert wait(HERE, if_nobody="fail") == NoHope("no-runner", "no runner is registered")
    assert isinstance(wait(HERE, OFFLINE, if_nobody="fail", waited=1), Wait)
    assert wait(HERE, BUSY, if_nobody="fail", waited=301) == NoHope(
        "waited-too-long", "one is busy"
    )


def test_a_builder_here_that_does_not_start_is_not_waited_for_without_end() -> None:
    dead = runner("here", here=True, online=False, seen_at=None, capabilities=None)

    assert isinstance(wait(dead, waited=59), Wait)
    assert isinstance(wait(dead, waited=61), NoHope)


def test_without_a_builder_here_the_reason_says_so() -> None:
    verdict = wait()
    assert isinstance(verdict, NoHope)
    assert "this machine builds nothing itself" in verdict.detail


def session(process: str = "p1", boot_id: str = "boot", silent: float = 0) -> Session:
    seen_at = NOW - timedelta(seconds=silent)
    return Session(id="s_1", runner="one", process=process, boot_id=boot_id, seen_at=seen_at)


@pytest.mark.parametrize(
    ("known", "said", "refused"),
    [
        (None, "", False),
        (None, "here", False),
        ("here", "here", False),
        ("here", "there", True),
        ("here", "", True),
    ],
)
def test_a_copy_of_a_runners_state_is_refused(known: str | None, said: str, refused: bool) -> None:
    expectation = pytest.raises(SessionSuperseded, match="copy") if refused else nullcontext()
    with expectation:
        assert check_copy(known, said, "desktop") is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("seen", "silent", "ended", "alive"),
    [
        (34, None, False, True),
        (35, None, False, False),
        (1, None, True, False),
        # It lost an attempt by silence: what it asked before that shows no life any more.
        (10, 9, False, False),
        (10, 10, False, False),
        (9, 10, False, True),
    ],
)
def test_a_runner_is_alive_while_it_asks_and_loses_nothing_by_silence(
    seen: float, silent: float | None, *, ended: bool, alive: bool
) -> None:
    silent_at = None if silent is None else NOW - timedelta(seconds=silent)
    known = replace(session(silent=seen), silent_at=silent_at, ended=ended)

    assert is_alive(known, now=NOW, silence=timedelta(seconds=35)) is alive


def admitted(current: Session | None, process: str, boot_id: str) -> bool:
    return admit(current, process, boot_id, now=NOW, silence=timedelta(seconds=20))


def test_a_restarted_process_gets_a_new_session_and_a_repeat_keeps_its_own() -> None:
    assert admitted(None, "p1", "boot")
    assert not admitted(session(), "p1", "boot")
    assert admitted(session(), "p2", "boot")


def test_a_session_request_that_was_stuck_does_not_take_over_from_a_later_process() -> None:
    later = replace(session("p2"), started_ms=9)

    with pytest.raises(SessionSuperseded):
        admit(later, "p1", "boot", 8, now=NOW, silence=timedelta(seconds=20))


def test_a_machine_that_was_set_back_works_again_when_nobody_is_at_work() -> None:
    later = replace(session("p2", silent=19), started_ms=9)

    def set_back(current: Session) -> bool:
        return admit(current, "p1", "boot", 8, now=NOW, silence=timedelta(seconds=20))

    with pytest.raises(SessionSuperseded) as refused:
        set_back(later)
    assert refused.value.hint == "stop that one, or wait: it has to be silent for 20 s"
    assert set_back(replace(later, ended=True))
    assert set_back(replace(session("p2", silent=20), started_ms=9))


def test_a_copied_credential_on_another_machine_is_refused_while_the_first_is_alive() -> None:
    with pytest.raises(SessionSuperseded):
        admitted(session(silent=19), "p2", "other boot")
    assert admitted(session(silent=20), "p2", "other boot")


def test_an_acquire_is_overtaken_by_a_later_one_and_not_by_its_own_repeat() -> None:
    heard = replace(session(), turn=7)

    assert is_overtaken(heard, 6)
    assert not is_overtaken(heard, 7)
    assert not is_overtaken(heard, 8)


def lease(fence: int, request_id: str) -> Lease:
    return Lease(runner="one", session="s_1", request_id=request_id, fence=fence, expires_at=NOW)


def test_what_the_runner_does_not_hold_is_lost_unless_this_very_request_was_granted_it() -> None:
    leases = [("b1", lease(1, "r1")), ("b2", lease(1, "r2")), ("b3", lease(4, "r0"))]
    held = [Held(build_id="b3", fence=4), Held(build_id="b9", fence=1)]

    found = reconcile(leases, held, "r2")

    assert found.lost == ("b1",)
    assert found.granted == ("b2",)
    assert found.drop == (Held(build_id="b9", fence=1),)


CODE = Code(runner="one", expires_at=NOW + timedelta(minutes=15))


def test_a_join_code_is_spent_once_and_its_user_may_ask_again() -> None:
    spent = spend(CODE, "one", "nonce", now=NOW)

    assert spend(spent, None, "nonce", now=NOW + timedelta(days=1)) == spent
    with pytest.raises(JoinCodeUsed):
        spend(spent, "one", "another", now=NOW)


def test_a_wrong_name_or_a_late_use_does_not_spend_it() -> None:
    with pytest.raises(NotAllowed):
        spend(CODE, "two", "nonce", now=NOW)
    with pytest.raises(Unauthenticated):
        spend(CODE, "one", "nonce", now=CODE.expires_at)
    with pytest.raises(Unauthenticated):
        spend(None, "one", "nonce", now=NOW)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=20))
def test_a_log_sent_in_any_overlapping_parts_is_the_log(data: bytes, starts: list[int]) -> None:
    stored = b""
    for start in [*starts, 0]:
        part = data[start : start + 50] if start else data
        try:
            stored += part[skip(len(stored), min(start, len(data)), len(part)) :]
        except OffsetMismatch:
            continue
        assert data.startswith(stored)
    assert stored == data


def test_cursors_survive_their_trip() -> None:
    assert parse_cursor(str(Cursor(7, 42))) == Cursor(7, 42)
    for bad in ["", "1", "1.2\n", "-1.0", "1.2.3", "9" * 13 + ".0"]:
        with pytest.raises(InvalidRequest):
            parse_cursor(bad)


@pytest.mark.parametrize(
    ("principal", "own", "other", "tag"),
    [
        (Owner(), True, True, True),
        (ProjectHolder("web"), True, False, True),
        (Attempt("b_1", 1, "web"), True, False, False),
        (Attempt("b_1", 1, "web", live=False), False, False, False),
        (Runner("one"), False, False, False),
    ],
)
def test_who_may_do_what_in_the_registry(
    principal: Principal, own: bool, other: bool, tag: bool
) -> None:
    assert may_push_content(principal, "web") is own
    assert may_pull(principal, "web") is own
    assert may_push_content(principal, "api") is other
    assert may_move_tag(principal, "web") is tag


def test_tags_and_folders_become_names() -> None:
    assert parse_tag("web") == TagName("web", "latest")
    assert parse_tag("team/web:1.2") == TagName("team/web", "1.2")
    assert project_from_folder("My App (v2)") == "my-app-v2"
    for bad in ["Web", "web:", "host:5000/web", "web:1 2", ":x", "a" * 129]:
        if bad != "web:":
            with pytest.raises(InvalidRequest):
                parse_tag(bad)
    with pytest.raises(InvalidRequest):
        project_from_folder("---")


@given(st.from_regex(r"b_[a-z0-9]{8}", fullmatch=True), st.integers(1, 10**8))
def test_a_build_token_says_its_build_and_fence(build_id: str, fence: int) -> None:
    assert parse_build_token(build_token(b"key", build_id, fence, "r1")) == (build_id, fence)


@given(st.text(max_size=300))
def test_anything_else_is_not_a_build_token(text: str) -> None:
    with pytest.raises(Unauthenticated):
        parse_build_token(text)


def test_a_gap_in_a_log_is_refused_with_where_to_go_on() -> None:
    with pytest.raises(OffsetMismatch) as gap:
        skip(10, 11, 5)
    assert gap.value.members == {"next_offset": 10}
