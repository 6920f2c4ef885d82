"""What every store keeps, asked of the one on SQLite and of the one that the simulator runs on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from pierhead.protocol.plan import ContextRef, Plan, Submit
from pierhead.protocol.result import Envelope
from pierhead.protocol.runner import Capabilities
from pierhead.router.adapters.sql.ledger import SqlStore
from pierhead.router.domain.build import Build, Cancel, LeasePolicy, Report, State, decide
from pierhead.router.domain.build import Grant as GrantCommand
from pierhead.router.domain.credential import Ability, Credential, Terms
from pierhead.router.domain.enrollment import Code
from pierhead.router.domain.parent import Child, Parent
from pierhead.router.domain.session import Session
from pierhead.router.domain.turns import places
from pierhead.router.ports.builds import LiveAttempt, StoredBuild
from pierhead.router.ports.images import Manifest
from pierhead.router.ports.machines import StoredRunner
from pierhead.router.ports.projects import StoredEnvironment, StoredProject
from pierhead.router.ports.store import Ledger, Store
from tests.simulation.store import MemoryStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
CONTEXT = ContextRef(digest=DIGEST, size_bytes=1, unpacked_bytes=1, files=1)


@asynccontextmanager
async def open_store(kind: str, folder: Path) -> AsyncIterator[Store]:
    if kind == "memory":
        yield MemoryStore(lambda *_: None, lambda: None)
        return
    store = await SqlStore.open(folder / "router.db")
    try:
        yield store
    finally:
        await store.close()


KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite"])


def build(build_id: str, **changes: object) -> StoredBuild:
    values = {
        "build": Build(id=build_id),
        "sequence": 0,
        "submit": Submit(project="web", plan=Plan(), context=CONTEXT, key=f"key-{build_id}"),
        "trusted": True,
        "created_at": NOW,
        "queued_since": NOW,
        "idle_since": NOW,
        **changes,
    }
    return StoredBuild(**values)  # type: ignore[arg-type]


@KINDS
async def test_secrets_are_a_builds_own_and_can_be_forgotten(kind: str, tmp_path: Path) -> None:
    async with open_store(kind, tmp_path) as store:
        for build_id in ("b_1", "b_2"):
            stored = build(build_id, secrets_mac=f"mac of {build_id}")
            await store.write(lambda ledger, stored=stored: ledger.add_build(stored))  # type: ignore[misc]
        locked = {"npm": b"\0locked", "key": b""}
        await store.write(lambda ledger: ledger.add_secrets("b_1", locked))
        await store.write(lambda ledger: ledger.add_secrets("b_2", {"npm": b"other"}))
        await store.write(lambda ledger: ledger.add_secrets("b_3", {}))

        assert await store.read(lambda ledger: ledger.secrets("b_1")) == locked
        await store.write(lambda ledger: ledger.forget_secrets("b_1"))
        assert await store.read(lambda ledger: ledger.secrets("b_1")) == {}
        assert await store.read(lambda ledger: ledger.secrets("b_2")) == {"npm": b"other"}
        assert await store.read(lambda ledger: ledger.secrets("b_3")) == {}
        found = await store.read(lambda ledger: ledger.build("b_1"))
    assert found is not None
    assert found.secrets_mac == "mac of b_1"


@KINDS
async def test_a_build_comes_back_as_it_was_stored_in_every_state(
    kind: str, tmp_path: Path
) -> None:
    policy = LeasePolicy()
    async with open_store(kind, tmp_path) as store:
        queued = await store.write(lambda ledger: ledger.add_build(build("b_1")))
        machine, _ = decide(queued.build, GrantCommand("one", "s_1", "r1"), now=NOW, policy=policy)
        leased = replace(
            queued, build=machine, granted_at=NOW, last_runner="one", last_request="r1"
        )
        await store.write(lambda ledger: ledger.save_build(leased))
        assert await store.read(lambda ledger: ledger.build("b_1")) == leased
        assert await store.read(lambda ledger: list(ledger.leased())) == [leased]
        assert await store.read(lambda ledger: list(ledger.queued())) == []

        report = Report(1, "failed", DIGEST)
        machine, _ = decide(machine, report, now=NOW + timedelta(seconds=1), policy=policy)
        final = replace(leased, build=machine)
        await store.write(lambda ledger: ledger.save_build(final))
        found = await store.read(lambda ledger: ledger.build("b_1"))
    assert found == final
    assert found is not None
    assert found.build.state is State.FAILED


@KINDS
async def test_the_open_builds_of_a_group_are_found_oldest_first(kind: str, tmp_path: Path) -> None:
    def of(group: str | None, project: str = "web") -> Submit:
        return Submit(project=project, plan=Plan(), context=CONTEXT, supersedes=group)

    def fill(ledger: Ledger) -> None:
        for name, submit in (
            ("b_1", of("main")),
            ("b_2", of(None)),
            ("b_3", of("main")),
            ("b_4", of("pr")),
            ("b_5", of("main", "shop")),
            ("b_6", of("main")),
        ):
            ledger.add_build(build(name, submit=submit))
        machine, _ = decide(Build(id="b_3"), Cancel("x", "y"), now=NOW, policy=LeasePolicy())
        ended = ledger.build("b_3")
        assert ended is not None
        ledger.save_build(replace(ended, build=machine))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        found = await store.read(lambda ledger: ledger.open_in_group("web", "main"))

    assert [stored.id for stored in found] == ["b_1", "b_6"]


@KINDS
async def test_how_long_builds_took_is_known_of_the_newest_that_succeeded(
    kind: str, tmp_path: Path
) -> None:
    def ended(name: str, seconds: float, state: State, project: str = "web") -> StoredBuild:
        """One that waited for a minute before, or moved to another runner."""
        at = NOW + timedelta(seconds=60 + seconds)
        machine = Build(id=name, state=state, fence=1, attempts=1, finished_at=at)
        submit = Submit(project=project, plan=Plan(), context=CONTEXT)
        began = NOW + timedelta(seconds=60)
        return build(name, submit=submit, build=machine, started_at=NOW, granted_at=began)

    def fill(ledger: Ledger) -> None:
        for number in range(12):
            ledger.add_build(ended(f"b_{number}", number, State.SUCCEEDED))
        ledger.add_build(ended("b_shop", 500, State.SUCCEEDED, "shop"))
        ledger.add_build(ended("b_failed", 1000, State.FAILED))
        ledger.add_build(ended("b_cancelled", 2000, State.CANCELLED))
        ledger.add_build(ended("b_backwards", -5, State.SUCCEEDED))  # the clock was set
        ledger.add_build(build("b_queued"))
        each = {"b_p-1": "linux/amd64", "b_p-2": "linux/arm64"}
        done = tuple(
            Child(id=name, platform=one, state=State.SUCCEEDED) for name, one in each.items()
        )
        parent = Parent(id="b_p", state=State.SUCCEEDED, children=done, finished_at=NOW)
        ledger.add_build(build("b_p", build=parent, granted_at=NOW))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        of_web = await store.read(lambda ledger: list(ledger.durations("web")))
        of_all = await store.read(lambda ledger: list(ledger.durations(None)))
        of_new = await store.read(lambda ledger: list(ledger.durations("new")))

    assert [one.total_seconds() for one in of_web] == [0, 11, 10, 9, 8, 7, 6, 5, 4]
    assert [one.total_seconds() for one in of_all] == [0, 500, 11, 10, 9, 8, 7, 6, 5]
    assert of_new == []


@KINDS
async def test_builds_that_only_failed_hide_what_came_long_before(
    kind: str, tmp_path: Path
) -> None:
    def fill(ledger: Ledger) -> None:
        for number in range(51):
            state = State.FAILED if number else State.SUCCEEDED
            machine = Build(id=f"b_{number}", state=state, fence=1, attempts=1, finished_at=NOW)
            ledger.add_build(build(machine.id, build=machine, granted_at=NOW))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        assert await store.read(lambda ledger: list(ledger.durations("web"))) == []


@KINDS
async def test_a_place_is_counted_among_those_that_wait(kind: str, tmp_path: Path) -> None:
    def fill(ledger: Ledger) -> list[int]:
        added = [ledger.add_build(build(f"b_{number}")) for number in range(4)]
        running, _ = decide(
            added[1].build, GrantCommand("one", "s_1", "r1"), now=NOW, policy=LeasePolicy()
        )
        ledger.save_build(replace(added[1], build=running, last_runner="one", last_request="r1"))
        return [stored.sequence for stored in added]

    async with open_store(kind, tmp_path) as store:
        sequences = await store.write(fill)
        line = await store.read(lambda ledger: places(ledger.line()))

    assert line == {sequences[0]: 1, sequences[2]: 2, sequences[3]: 3}


@KINDS
async def test_projects_take_turns_and_one_may_give_its_own_back(kind: str, tmp_path: Path) -> None:
    def of(project: str, name: str) -> StoredBuild:
        return build(name, submit=Submit(project=project, plan=Plan(), context=CONTEXT, key=name))

    def fill(ledger: Ledger) -> list[int]:
        for project in ("web", "shop"):
            ledger.save_project(StoredProject(name=project, trusted=True, created_at=NOW))
        ids = ("web", "b_1"), ("web", "b_2"), ("shop", "b_3"), ("docs", "b_4")
        return [ledger.add_build(of(*one)).sequence for one in ids]

    def turns(ledger: Ledger) -> list[int]:
        return [one.turn for one in sorted(ledger.line(), key=lambda one: one.sequence)]

    async with open_store(kind, tmp_path) as store:
        sequences = await store.write(fill)
        assert await store.read(turns) == [0, 0, 0, 0]

        for project in ("web", "shop", "web"):
            await store.write(lambda ledger, one=project: ledger.take_turn(one))  # type: ignore[misc]
        web, _, shop, docs = await store.read(turns)
        assert docs == 0 < shop < web
        again = StoredProject(name="web", trusted=False, created_at=NOW)
        await store.write(lambda ledger: ledger.save_project(again))
        assert (await store.read(turns))[0] == web, "a project that is changed keeps its turn"

        await store.write(lambda ledger: ledger.give_turn_back("shop"))
        assert (await store.read(turns))[2] == 0
        mine = await store.read(lambda ledger: ledger.queued(0, 9, project="web"))
        assert [one.sequence for one in mine] == sequences[:2]
        rest = await store.read(lambda ledger: ledger.queued(sequences[0], 1, project="web"))
        assert [one.id for one in rest] == ["b_2"]


@KINDS
async def test_the_memory_of_a_projects_last_build_is_known(kind: str, tmp_path: Path) -> None:
    def ended(name: str, peak: int | None) -> StoredBuild:
        return replace(build(name), envelope=Envelope(outcome="failed", peak_memory_bytes=peak))

    def fill(ledger: Ledger) -> None:
        for stored in (ended("b_1", 5), ended("b_2", 7), ended("b_3", None), build("b_4")):
            ledger.add_build(replace(stored, peak_bytes=3))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        last = await store.read(lambda ledger: ledger.last_peak("web"))
        none = await store.read(lambda ledger: ledger.last_peak("api"))
        kept = await store.read(lambda ledger: ledger.build("b_4"))
    assert (last, none) == (7, None)
    assert kept is not None
    assert kept.peak_bytes == 3


@KINDS
async def test_builds_are_found_by_key_prefix_and_page(kind: str, tmp_path: Path) -> None:
    def fill(ledger: Ledger) -> None:
        for name in ("b_aa", "b_ab", "b_b"):
            ledger.add_build(replace(build(name), submitted_by=f"{name}'s owner"))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        by_key = await store.read(lambda ledger: ledger.build_by_key("web", "key-b_ab"))
        other = await store.read(lambda ledger: ledger.build_by_key("api", "key-b_ab"))
        both = await store.read(lambda ledger: ledger.builds_with_prefix("b_a", None))
        latest = await store.read(lambda ledger: ledger.builds_with_prefix("@", "web"))
        foreign = await store.read(lambda ledger: ledger.builds_with_prefix("b_a", "api"))
        first = await store.read(lambda ledger: ledger.builds_page("web", 2, None))
        rest = await store.read(lambda ledger: ledger.builds_page("web", 2, first[-1].sequence))
        mine = await store.read(
            lambda ledger: ledger.builds_page("web", 9, None, by="b_ab's owner")
        )
    assert by_key is not None
    assert (by_key.id, other) == ("b_ab", None)
    assert {stored.id for stored in both} == {"b_aa", "b_ab"}
    assert [stored.id for stored in latest] == ["b_b"]
    assert list(foreign) == []
    assert [stored.id for stored in [*first, *rest]] == ["b_b", "b_ab", "b_aa"]
    assert [stored.id for stored in mine] == ["b_ab"]


@KINDS
async def test_an_operation_that_raises_changes_nothing(kind: str, tmp_path: Path) -> None:
    def half(ledger: Ledger) -> None:
        ledger.add_build(build("b_1"))
        raise LookupError

    async with open_store(kind, tmp_path) as store:
        with pytest.raises(LookupError):
            await store.write(half)
        assert await store.read(lambda ledger: ledger.build("b_1")) is None


@KINDS
async def test_events_are_numbered_for_each_build(kind: str, tmp_path: Path) -> None:
    def fill(ledger: Ledger) -> None:
        for build_id, kind_of in (("b_1", "queued"), ("b_2", "queued"), ("b_1", "started")):
            ledger.add_event(build_id, fence=0, log_size=0, kind=kind_of, payload=b"{}")

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        events = await store.read(lambda ledger: ledger.events("b_1", 0))
        later = await store.read(lambda ledger: ledger.events("b_1", 1))
    assert [(event.sequence, event.kind) for event in events] == [(1, "queued"), (2, "started")]
    assert [event.kind for event in later] == ["started"]


@KINDS
async def test_runners_and_codes_are_found_by_their_hashes(kind: str, tmp_path: Path) -> None:
    def fill(ledger: Ledger) -> None:
        ledger.save_runner(StoredRunner(name="one", credential_hash="h" * 64, created_at=NOW))
        ledger.save_code("h4", Code(runner="two", expires_at=NOW))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        runner = await store.read(lambda ledger: ledger.runner_by_credential("h" * 64))
        nobody = await store.read(lambda ledger: ledger.runner_by_credential("x" * 64))
        code = await store.read(lambda ledger: ledger.code("h4"))
    assert runner is not None
    assert (runner.name, nobody) == ("one", None)
    assert code == Code(runner="two", expires_at=NOW)


@KINDS
async def test_a_hash_is_looked_up_by_its_beginning_and_the_caller_compares_it_whole(
    kind: str, tmp_path: Path
) -> None:
    def fill(ledger: Ledger) -> None:
        ledger.save_runner(StoredRunner(name="one", credential_hash="h" * 64, created_at=NOW))
        ledger.save_credential(credential("t_1", hash="t" * 64))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        for end in ("0" * 32, ""):
            runner = await store.read(
                lambda ledger, end=end: ledger.runner_by_credential("h" * 32 + end)  # type: ignore[misc]
            )
            token = await store.read(
                lambda ledger, end=end: ledger.credential_by_hash("t" * 32 + end)  # type: ignore[misc]
            )
            assert (runner and runner.name, token and token.id) == ("one", "t_1")


@KINDS
async def test_runners_come_by_name_as_they_were_stored_and_go_with_their_codes(
    kind: str, tmp_path: Path
) -> None:
    plain = StoredRunner(name="b-two", credential_hash="2" * 64, created_at=NOW)
    session = Session(
        id="s_1", runner="a-one", process="p", boot_id="boot", seen_at=NOW, turn=3, ended=True
    )
    full = StoredRunner(
        name="a-one",
        credential_hash="1" * 64,
        here=True,
        created_at=NOW,
        session=replace(session, public_key=b"\0" * 32, silent_at=NOW, started_ms=5),
        state_id="state",
        capabilities=Capabilities(
            platforms=("linux/amd64",),
            backend="b",
            isolation="full",
            networks=("default",),
            cpus=2,
            memory_bytes=2**40,
            slots=1,
            limits={"dns": "none"},
        ),
        slots=2,
        reason="draining",
        refuses_since=NOW,
    )

    def fill(ledger: Ledger) -> None:
        ledger.save_runner(plain)
        ledger.save_runner(full)
        for name in ("a-one", "b-two"):
            ledger.save_code(f"of {name}", Code(runner=name, expires_at=NOW, spent_by="n"))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        assert await store.read(lambda ledger: list(ledger.runners())) == [full, plain]
        changed = replace(full, session=None, reason=None, refuses_since=None)
        await store.write(lambda ledger: ledger.save_runner(changed))
        assert await store.read(lambda ledger: ledger.runner("a-one")) == changed

        for _ in range(2):
            await store.write(lambda ledger: ledger.delete_runner("a-one"))
        assert await store.read(lambda ledger: list(ledger.runners())) == [plain]
        assert await store.read(lambda ledger: ledger.runner("a-one")) is None
        assert await store.read(lambda ledger: ledger.code("of a-one")) is None
        left = await store.read(lambda ledger: ledger.code("of b-two"))
    assert left == Code(runner="b-two", expires_at=NOW, spent_by="n")


@KINDS
async def test_the_last_time_at_which_heartbeats_were_accepted_is_known(
    kind: str, tmp_path: Path
) -> None:
    later = NOW + timedelta(seconds=1.25)
    async with open_store(kind, tmp_path) as store:
        assert await store.read(lambda ledger: ledger.alive_at()) is None
        for now in (NOW, later):
            await store.write(lambda ledger, now=now: ledger.mark_alive(now))  # type: ignore[misc]
            assert await store.read(lambda ledger: ledger.alive_at()) == now


@KINDS
async def test_projects_that_are_being_removed_are_found_after_a_restart(
    kind: str, tmp_path: Path
) -> None:
    stays = StoredProject(name="web", trusted=True, created_at=NOW)
    goes = StoredProject(name="shop", trusted=False, created_at=NOW, removing=True)
    async with open_store(kind, tmp_path) as store:
        for project in (stays, goes):
            await store.write(lambda ledger, one=project: ledger.save_project(one))  # type: ignore[misc]
        assert await store.read(lambda ledger: list(ledger.removing())) == ["shop"]
        assert await store.read(lambda ledger: ledger.project("shop")) == goes


def credential(token_id: str, project: str | None = "web", **changes: object) -> Credential:
    ability: Ability = "root" if project is None else "write"
    terms = Terms(
        name="ci", project=project, ability=ability, environment=None, lifetime=timedelta(days=1)
    )
    values = {
        "id": token_id,
        "key": f"key-{token_id}",
        "terms": terms,
        "hash": token_id.ljust(64, "0"),
        "tail": "abcd",
        "created_at": NOW,
        "created_by": "owner",
        **changes,
    }
    return Credential(**values)  # type: ignore[arg-type]


@KINDS
async def test_a_token_is_found_by_id_key_and_hash_as_it_was_stored(
    kind: str, tmp_path: Path
) -> None:
    ci, owner = credential("t_1"), credential("t_2", None)

    def fill(ledger: Ledger) -> None:
        ledger.save_credential(ci)
        ledger.save_credential(owner)

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        assert await store.read(lambda ledger: ledger.credential("t_1")) == ci
        assert await store.read(lambda ledger: ledger.credential_by_hash(owner.hash)) == owner
        assert await store.read(lambda ledger: ledger.credential_by_hash("x" * 64)) is None
        assert await store.read(lambda ledger: ledger.credential_by_key("web", "key-t_1")) == ci
        assert await store.read(lambda ledger: ledger.credential_by_key("api", "key-t_1")) is None
        assert await store.read(lambda ledger: ledger.credential_by_key(None, "key-t_2")) == owner

        used = NOW + timedelta(minutes=2)
        await store.write(lambda ledger: ledger.note_uses({"t_1": used, "t_gone": used}))
        await store.write(lambda ledger: ledger.note_uses({"t_1": NOW}))  # of another process
        found = await store.read(lambda ledger: ledger.credential("t_1"))
    assert found == replace(ci, used_at=used)


@KINDS
async def test_tokens_are_paged_revoked_and_forgotten_for_each_project(
    kind: str, tmp_path: Path
) -> None:
    preview = replace(credential("t_3").terms, environment="preview")

    def fill(ledger: Ledger) -> None:
        ledger.save_credential(credential("t_1"))
        ledger.save_credential(credential("t_2", "api"))
        ledger.save_credential(credential("t_3", terms=preview))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        first = await store.read(lambda ledger: ledger.credentials_page("web", 1, None))
        rest = await store.read(lambda ledger: ledger.credentials_page("web", 9, first[-1][0]))
        later = NOW + timedelta(hours=1)
        of_preview = await store.write(
            lambda ledger: ledger.revoke_credentials("web", "preview", later)
        )
        of_all = await store.write(lambda ledger: ledger.revoke_credentials("web", None, later))
        await store.write(
            lambda ledger: ledger.forget_credentials("web", later + timedelta(seconds=1))
        )
        left = await store.read(lambda ledger: ledger.credentials_page("web", 9, None))
        others = await store.read(lambda ledger: ledger.credentials_page("api", 9, None))
    assert [one.id for _, one in [*first, *rest]] == ["t_3", "t_1"]
    assert (of_preview, of_all) == (1, 1)
    assert list(left) == []
    assert [one.id for _, one in others] == ["t_2"]


@KINDS
async def test_projects_and_environments_are_paged_by_name_with_their_builds(
    kind: str, tmp_path: Path
) -> None:
    def fill(ledger: Ledger) -> None:
        for name in ("web", "api"):
            ledger.save_project(StoredProject(name=name, trusted=False, created_at=NOW))
        for name in ("production", "preview"):
            ledger.save_environment(
                StoredEnvironment(project="web", name=name, preview=True, created_at=NOW)
            )
        ledger.add_build(build("b_1"))

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        both = await store.read(lambda ledger: ledger.projects_page(9, "", None))
        later = await store.read(lambda ledger: ledger.projects_page(9, "api", None))
        only = await store.read(lambda ledger: ledger.projects_page(9, "", "api"))
        page = await store.read(lambda ledger: ledger.environments_page("web", 9, ""))
        beyond = await store.read(lambda ledger: ledger.environments_page("web", 9, "preview"))
        open_ones = await store.read(lambda ledger: ledger.open_builds("web", "production"))
        await store.write(lambda ledger: ledger.drop_environment("web", "preview"))
        gone = await store.read(lambda ledger: ledger.environment("web", "preview"))
    assert [(one.name, one.builds) for one in both] == [("api", 0), ("web", 1)]
    assert [one.name for one in later] == ["web"]
    assert [one.name for one in only] == ["api"]
    assert [(one.name, one.builds) for one in page] == [("preview", 0), ("production", 1)]
    assert [one.name for one in beyond] == ["production"]
    assert (open_ones, gone) == (1, None)


@KINDS
async def test_a_project_goes_with_all_that_it_had_and_nothing_else(
    kind: str, tmp_path: Path
) -> None:
    manifest = Manifest(repository="web", digest=DIGEST, media_type="x/y", body=b"{}")
    other = build("b_9")
    other = replace(other, submit=msgspec.structs.replace(other.submit, project="api"))

    def fill(ledger: Ledger) -> None:
        for name in ("web", "api"):
            ledger.save_project(StoredProject(name=name, trusted=True, created_at=NOW))
        for number in range(5):
            ledger.add_build(build(f"b_{number}"))
        ledger.add_build(other)
        ledger.add_event("b_1", fence=0, log_size=0, kind="queued", payload=b"{}")
        ledger.save_credential(credential("t_1"))
        ledger.link_blob("web", DIGEST, "", NOW)
        ledger.add_manifest(manifest, "")
        ledger.set_tag("web", "latest", DIGEST)
        ledger.save_context("web", CONTEXT, NOW)

    async with open_store(kind, tmp_path) as store:
        await store.write(fill)
        had = await store.read(lambda ledger: ledger.contents("web"))
        gone: list[str] = []
        more = True
        while more:
            more, some = await store.write(lambda ledger: ledger.purge_project("web", 2))
            gone += some
        left = await store.read(lambda ledger: ledger.contents("web"))
        project = await store.read(lambda ledger: ledger.project("web"))
        blob = await store.read(lambda ledger: ledger.has_blob("web", DIGEST, ""))
        context = await store.read(lambda ledger: ledger.context("web", DIGEST))
        token = await store.read(lambda ledger: ledger.credential("t_1"))
        kept = await store.read(lambda ledger: ledger.build("b_9"))
    assert (had.builds, had.images, had.tags, had.tokens) == (5, 1, 1, 1)
    assert sorted(gone) == [f"b_{number}" for number in range(5)]
    assert (left.builds, left.images, left.tags, left.tokens) == (0, 0, 0, 0)
    assert (project, blob, context, token) == (None, False, None, None)
    assert kept is not None


@KINDS
async def test_a_context_is_the_projects_that_brought_it(kind: str, tmp_path: Path) -> None:
    async with open_store(kind, tmp_path) as store:
        assert await store.read(lambda ledger: ledger.context("web", DIGEST)) is None

        await store.write(lambda ledger: ledger.save_context("web", CONTEXT, NOW))

        assert await store.read(lambda ledger: ledger.context("web", DIGEST)) == CONTEXT
        assert await store.read(lambda ledger: ledger.context("api", DIGEST)) is None


@KINDS
async def test_a_context_is_forgotten_when_neither_a_time_nor_an_open_build_keeps_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_store(kind, tmp_path) as store:
        await store.write(lambda ledger: ledger.save_context("web", CONTEXT, NOW))
        await store.write(lambda ledger: ledger.save_context("api", CONTEXT, NOW))
        await store.write(lambda ledger: ledger.add_build(build("b_1")))

        early = await store.write(lambda ledger: ledger.forget_contexts(NOW))
        late = await store.write(lambda ledger: ledger.forget_contexts(NOW + timedelta(days=1)))

        assert (early, late) == ([], [("api", DIGEST)])
        assert await store.read(lambda ledger: ledger.context("web", DIGEST)) == CONTEXT


@KINDS
async def test_what_an_attempt_pushed_is_its_own_until_it_is_published(
    kind: str, tmp_path: Path
) -> None:
    manifest = Manifest(repository="web", digest=DIGEST, media_type="x/y", body=b"{}")

    def push(ledger: Ledger) -> None:
        ledger.link_blob("web", DIGEST, "b_1.1", NOW)
        ledger.add_manifest(manifest, "b_1.1")

    def seen(ledger: Ledger, attempt: str) -> tuple[bool, bool]:
        found = ledger.manifest("web", DIGEST, attempt)
        return ledger.has_blob("web", DIGEST, attempt), found == manifest

    async with open_store(kind, tmp_path) as store:
        await store.write(push)
        assert await store.read(lambda ledger: seen(ledger, "b_1.1")) == (True, True)
        assert await store.read(lambda ledger: seen(ledger, "b_1.2")) == (False, False)
        assert await store.read(lambda ledger: seen(ledger, "")) == (False, False)

        await store.write(lambda ledger: ledger.publish("web", "b_1.1"))
        await store.write(lambda ledger: ledger.set_tag("web", "latest", DIGEST))

        assert await store.read(lambda ledger: seen(ledger, "")) == (True, True)
        assert await store.read(lambda ledger: ledger.manifest("web", "latest", "")) == manifest
        assert await store.read(lambda ledger: list(ledger.tags("web", "", 9))) == ["latest"]


@KINDS
async def test_what_an_attempt_pushed_and_nobody_accepted_is_forgotten(
    kind: str, tmp_path: Path
) -> None:
    async with open_store(kind, tmp_path) as store:
        await store.write(lambda ledger: ledger.link_blob("web", DIGEST, "b_1.1", NOW))
        await store.write(lambda ledger: ledger.forget("web", "b_1.1"))
        assert not await store.read(lambda ledger: ledger.has_blob("web", DIGEST, "b_1.1"))


@KINDS
async def test_a_parent_is_kept_with_its_children_and_no_runner_is_shown_it(
    kind: str, tmp_path: Path
) -> None:
    children = tuple(
        Child(id=f"b_p-{number}", platform=platform)
        for number, platform in enumerate(("linux/amd64", "linux/arm64"), 1)
    )
    parent = build("b_p", build=Parent(id="b_p", children=children))
    async with open_store(kind, tmp_path) as store:

        def add(ledger: Ledger) -> None:
            ledger.add_build(parent)
            for child in children:
                ledger.add_build(build(child.id, build=Build(id=child.id), parent="b_p"))

        await store.write(add)
        kept = await store.read(lambda ledger: ledger.build("b_p"))
        assert kept is not None
        assert kept.build == parent.build
        waiting = await store.read(lambda ledger: ledger.queued())
        assert [one.id for one in waiting] == ["b_p-1", "b_p-2"]
        assert [one.parent for one in waiting] == ["b_p", "b_p"]
        assert await store.read(lambda ledger: ledger.queue_length()) == 2
        assert await store.read(lambda ledger: ledger.queue_length("web")) == 2
        assert await store.read(lambda ledger: ledger.queue_length("shop")) == 0
        for prefix, found in (("b_p", ["b_p"]), ("@", ["b_p"]), ("b_p-", ["b_p-2", "b_p-1"])):
            some = await store.read(lambda ledger, one=prefix: ledger.builds_with_prefix(one, None))  # type: ignore[misc]
            assert [one.id for one in some] == found, prefix
        page = await store.read(lambda ledger: ledger.builds_page("web", 9, None))
        all_ = await store.read(lambda ledger: ledger.builds_page("web", 9, None, children=True))
        assert ([one.id for one in page], len(all_)) == (["b_p"], 3)

        failed = replace(children[0], state=State.FAILED)
        begun = Parent(
            id="b_p", state=State.LEASED, children=(failed, children[1]), culprit="b_p-1"
        )
        await store.write(lambda ledger: ledger.save_build(replace(kept, build=begun)))
        assert await store.read(lambda ledger: ledger.leased()) == []
        again = await store.read(lambda ledger: ledger.build("b_p"))
        assert again is not None
        assert again.build == begun
        ended = await store.read(lambda ledger: ledger.ended_before(NOW + timedelta(days=1), 9))
        assert ended == []


@KINDS
async def test_a_long_queue_is_read_piece_by_piece_oldest_first(kind: str, tmp_path: Path) -> None:
    async with open_store(kind, tmp_path) as store:
        added = [
            await store.write(lambda ledger, n=n: ledger.add_build(build(f"b_{n}")))  # type: ignore[misc]
            for n in range(5)
        ]

        def pieces(ledger: Ledger) -> list[list[str]]:
            found, after = [], 0
            while some := ledger.queued(after, 2):
                found.append([stored.id for stored in some])
                after = some[-1].sequence
            return found

        assert await store.read(pieces) == [["b_0", "b_1"], ["b_2", "b_3"], ["b_4"]]
        last = added[-1].sequence
        assert await store.read(lambda ledger: list(ledger.queued(last))) == []
        assert await store.read(lambda ledger: [b.id for b in ledger.queued()]) == [
            stored.id for stored in added
        ]


@KINDS
async def test_builds_that_runners_have_are_found_by_who_has_them_and_until_when(
    kind: str, tmp_path: Path
) -> None:
    policy, later = LeasePolicy(), NOW + timedelta(seconds=5)
    grants = (("one", "s_1", NOW), ("one", "s_2", later), ("two", "s_3", NOW))
    async with open_store(kind, tmp_path) as store:
        await store.write(lambda ledger: ledger.add_build(build("b_waits")))
        for number, (runner, session, at) in enumerate(grants):
            grant = GrantCommand(runner, session, f"r{number}")
            stored = build(f"b_{number}")
            machine, _ = decide(stored.build, grant, now=at, policy=policy)
            leased = replace(stored, build=machine, last_runner=runner, last_request=f"r{number}")
            await store.write(lambda ledger, one=leased: ledger.add_build(one))  # type: ignore[misc]

        async def found(**only: object) -> list[str]:
            return await store.read(lambda ledger: [b.id for b in ledger.leased(**only)])  # type: ignore[arg-type]

        assert await found() == ["b_0", "b_1", "b_2"]
        assert await found(runner="one") == ["b_0", "b_1"]
        assert await found(session="s_2") == ["b_1"]
        assert await found(session="s_4") == []
        assert await found(until=NOW + policy.ttl) == ["b_0", "b_2"]
        assert await found(until=NOW + policy.ttl - timedelta(seconds=1)) == []
        assert await found(runner="one", until=NOW + policy.ttl) == ["b_0"]
        assert sorted(await store.read(lambda ledger: list(ledger.live_attempts()))) == [
            LiveAttempt("web", "b_0", 1, "one"),
            LiveAttempt("web", "b_1", 1, "one"),
            LiveAttempt("web", "b_2", 1, "two"),
        ]


@KINDS
async def test_codes_are_forgotten_together_and_those_still_good_are_counted(
    kind: str, tmp_path: Path
) -> None:
    def operation(ledger: Ledger) -> None:
        good = NOW + timedelta(minutes=1)
        ledger.save_code("good", Code(runner="a", expires_at=good))
        ledger.save_code("used", Code(runner="b", expires_at=good, spent_by="n"))
        ledger.save_code("over", Code(runner="c", expires_at=NOW))
        assert ledger.revoke_codes(NOW) == 1
        assert [ledger.code(name) for name in ("good", "used", "over")] == [None] * 3
        assert ledger.revoke_codes(NOW) == 0

    async with open_store(kind, tmp_path) as store:
        await store.write(operation)


@KINDS
@pytest.mark.parametrize("pins", [None, (), ("a" * 64, "b" * 64)])
async def test_whom_a_runner_believes_is_kept_as_it_was_said(
    kind: str, tmp_path: Path, pins: tuple[str, ...] | None
) -> None:
    known = StoredRunner(name="a", credential_hash="h", created_at=NOW, authorities=pins)
    async with open_store(kind, tmp_path) as store:
        await store.write(lambda ledger: ledger.save_runner(known))
        assert await store.read(lambda ledger: ledger.runner("a")) == known
        assert not known.is_expelled
