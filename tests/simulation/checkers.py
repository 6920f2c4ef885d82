"""What must hold, judged by records of our own.

Nothing here believes the router: it is told what was committed, which process began and ended which
execution, and what was answered to whom, and compares. Who holds a build is therefore known here by
the order of grants and by sessions, not by the fence that the code under test gives out.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pierhead.protocol.plan import Submit
from pierhead.protocol.result import Receipt
from pierhead.router.ports.builds import StoredBuild

from .chance import Scheduler
from .families import check_families
from .store import MemoryLedger, MemoryLogs

# Written down again, so that a wrong table in the code does not agree with itself.
ALLOWED: Final = {
    "queued": {"queued", "leased", "failed", "cancelled"},
    "leased": {"leased", "queued", "succeeded", "failed", "cancelled"},
}
FINAL: Final = {"succeeded", "failed", "cancelled"}
ATTEMPTS_MAX: Final = 3
GRANTS_MAX: Final = 20
BROKEN_MAX: Final = 3
OFFLINE_GRACE: Final = timedelta(seconds=15)
LEASE: Final = timedelta(seconds=20)


@dataclass(eq=False, kw_only=True)
class Execution:
    """One process's work on one build, from its side."""

    build_id: str
    runner: str
    session: str
    request_id: str
    image_digest: str
    log: bytes = b""
    running: bool = False
    frozen: bool = False


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Who was given a build."""

    runner: str
    session: str
    request_id: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a runner is, as the world made it."""

    name: str
    here: bool
    platform: str
    isolated: bool


@dataclass
class Truth:
    """The record, and the checks against it."""

    clock: Scheduler
    machines: dict[str, Machine]
    untrusted: set[str]
    holds: dict[str, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    released: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # of those
    breaking: dict[str, str] = field(default_factory=dict)  # of what is being given back so
    queued_since: dict[str, datetime] = field(default_factory=dict)
    idle_since: dict[str, datetime] = field(default_factory=dict)  # by build that waits
    renewed: dict[str, datetime] = field(default_factory=dict)  # by build: its last sign of life
    executions: list[Execution] = field(default_factory=list)
    heard: dict[str, datetime] = field(default_factory=dict)  # when a runner asked last
    turns: dict[str, int] = field(default_factory=dict)  # by session: its latest request
    processes: dict[str, str] = field(default_factory=dict)  # by session
    lives: dict[str, int] = field(default_factory=dict)  # by runner: of the process at work
    cancelled: set[str] = field(default_factory=set)  # whose canceller was told yes
    commits: int = 0
    had_turn: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by project
    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    # What the world tells.

    def began(self, execution: Execution) -> None:
        for other in self.executions:
            if other.build_id == execution.build_id and other.running and not other.frozen:
                raise AssertionError(
                    f"{other.build_id} runs twice: on {other.runner} and on {execution.runner}"
                )
        self.executions.append(execution)

    def receipt_given(self, execution: Execution, receipt: Receipt) -> None:
        """An attempt was told that its result was taken."""
        reference = receipt.reference or execution.image_digest
        mine = reference.endswith(execution.image_digest)
        assert mine, f"{execution.build_id}: {execution.runner} has the receipt of another result"

    def opened(self, session: str, process: str) -> None:
        owner = self.processes.setdefault(session, process)
        assert owner == process, f"{process} and {owner} share a session"

    def asked(self, runner: str, session: str, turn: int) -> None:
        """A runner's request was let in. One that was overtaken shows no life."""
        if turn >= self.turns.get(session, 0):
            self.turns[session] = turn
            self.heard[runner] = self.clock.time

    def submitted(self, key: str, build_id: str) -> None:
        self.keys[key].add(build_id)
        assert len(self.keys[key]) == 1, f"{key} was queued twice: {sorted(self.keys[key])}"

    def cancel_answered(self, build_id: str, ledger: MemoryLedger) -> None:
        """The canceller was told yes: nothing may come of the build from now on."""
        self.cancelled.add(build_id)
        state = ledger.builds_[build_id].build.state.value
        assert state not in {"succeeded", "failed"}, f"{build_id} was cancelled and {state}"

    # What the store says after each commit.

    def committed(self, before: Mapping[str, StoredBuild], ledger: MemoryLedger) -> None:
        for runner in ledger.runners_.values():
            if runner.session is not None:
                life = int(runner.session.process.rpartition(".")[2])
                assert life >= self.lives.get(runner.name, 0), f"{runner.name} went back in time"
                self.lives[runner.name] = life
        for build_id, after in ledger.builds_.items():
            old = before.get(build_id)
            if old is after:
                continue
            if old is None:
                self._replaces(after, before, ledger)
            if old is not None:
                self._stepped(old, after)
            waits_anew = old is None or old.build.state != "queued"
            if after.build.state == "queued" and waits_anew:
                self.queued_since[build_id] = self.clock.time
                # Since the last attempt was heard, nobody is known to have worked on it.
                self.idle_since[build_id] = self.renewed.get(build_id, self.clock.time)
            if after.here_reason is not None and (old is None or old.here_reason is None):
                self._may_be_here(after)
            if after.build.lease is not None:
                if after.build.lease.expires_at == self.clock.time + LEASE:
                    self.renewed[build_id] = self.clock.time
                self._held(old, after)
            self._ended(old, after, ledger)
            kept = () if after.build.state in FINAL else after.submit.plan.secrets
            kept = () if after.submit.platforms else kept  # its children have them
            assert tuple(ledger.secrets_.get(build_id, {})) == kept, f"secrets of {build_id}"
        self._took_turns(before, ledger)
        check_families(ledger)

    def _took_turns(self, before: Mapping[str, StoredBuild], ledger: MemoryLedger) -> None:
        """Whoever was given builds was not to have one of a project whose turn was before that."""
        self.commits += 1
        granted: dict[str, list[StoredBuild]] = defaultdict(list)
        for build_id, after in ledger.builds_.items():
            old = before.get(build_id)
            if old is after or old is None or after.submit.platforms:
                continue
            anew = old.build.fence < after.build.fence
            if old.build.lease is not None and (anew or after.build.state == "queued"):
                self.had_turn[after.submit.project] = 0  # a grant that came to nothing was no turn
            if anew and after.build.lease is not None:
                granted[after.submit.project].append(after)
        for stored in ledger.builds_.values():
            old = before.get(stored.id)
            if old is not None and old.build.state == stored.build.state == "queued":
                self._was_not_passed_over(stored, granted)
        for project in granted:
            self.had_turn[project] = self.commits

    def _was_not_passed_over(
        self, stored: StoredBuild, granted: Mapping[str, list[StoredBuild]]
    ) -> None:
        project, secret = stored.submit.project, stored.submit.plan.secrets
        if project in granted or secret or stored.submit.platforms or stored.build.cancel:
            return
        for other, builds in granted.items():
            machines = [self.machines[one.build.lease.runner] for one in builds if one.build.lease]
            fit = [one for one in machines if not one.here and self._able(one, stored.submit)]
            whole = [one for one in fit if one.name not in stored.build.broken_on]
            later = self.had_turn[other] > self.had_turn[project]
            assert not (whole and (later or len(whole) > 1)), (
                f"{stored.id} of {project} waits, and it was not the turn of {other}"
            )

    def _replaces(
        self, new: StoredBuild, before: Mapping[str, StoredBuild], ledger: MemoryLedger
    ) -> None:
        """A build of a group was queued: from this very commit on, no older one is wanted."""
        if new.parent is not None:
            return  # its parent came with it
        group = new.submit.supersedes
        for older in before.values():
            if older.build.state in FINAL or older.build.cancel is not None:
                continue
            whole = ledger.builds_[older.parent or older.id]
            same = group is not None and whole.submit.supersedes == group
            meant = same and older.submit.project == new.submit.project
            wished = ledger.builds_[older.id].build.cancel is not None
            assert wished == meant, f"{new.id} came: {older.id} is cancelled: {wished}"

    def _stepped(self, old: StoredBuild, new: StoredBuild) -> None:
        was, now = old.build.state.value, new.build.state.value
        assert was not in FINAL or old == new, f"{new.id} was {was} and changed"
        assert now in ALLOWED[was], f"{new.id}: {was} to {now}"
        assert new.build.fence >= old.build.fence, f"the fence of {new.id} fell"
        assert old.build.cancel is None or new.build.cancel is not None, f"{new.id}: wish lost"

    def _held(self, old: StoredBuild | None, new: StoredBuild) -> None:
        lease = new.build.lease
        assert lease is not None
        hold = Hold(runner=lease.runner, session=lease.session, request_id=lease.request_id)
        holds = self.holds[new.id]
        if old is not None and old.build.lease is not None and holds[-1] == hold:
            same = old.build.fence == new.build.fence
            assert same, f"{new.id} was taken back by the repeat of the request that got it"
            return
        # Taken back and given away in one transaction looks like a change of hands.
        machine = self.machines[lease.runner]
        assert old is None or new.build.fence > old.build.fence, "a grant without a new fence"
        assert self._able(machine, new.submit), f"{new.id} does not fit {machine.name}"
        assert not machine.here or new.here_reason is not None, f"{new.id} went here unasked"
        assert new.build.cancel is None, f"{new.id} is cancelled and was granted"
        holds.append(hold)
        counted = len(holds) - self.released[new.id]
        assert counted <= ATTEMPTS_MAX, f"{new.id} was tried {counted} times"
        assert len(holds) <= GRANTS_MAX, f"{new.id} was granted for ever"
        assert len(self.broken[new.id]) < BROKEN_MAX, f"{new.id} may break one more runner"

    def _ended(self, old: StoredBuild | None, new: StoredBuild, ledger: MemoryLedger) -> None:
        if new.build.state not in FINAL or (old is not None and old.build.state in FINAL):
            return
        published = [name for name in ledger.manifests_ if name[2] == ""]
        mine = [run for run in self.executions if run.build_id == new.id]
        seen = [run for run in mine if (new.submit.project, run.image_digest, "") in published]
        if new.submit.platforms:
            assert not mine, f"{new.id} is for several platforms and was built itself"
            if new.build.state == "succeeded":
                digest = (new.reference or "").partition("@")[2]
                for tag in new.submit.tags:
                    assert ledger.tags_[new.submit.project, tag] == digest
        elif new.parent is not None and new.build.state == "succeeded":
            self._part_ended(new, seen, mine, ledger)
        elif new.build.state == "succeeded":
            assert len(seen) == 1, f"{new.id} succeeded with {len(seen)} images"
            last, run = self.holds[new.id][-1], seen[0]
            who = Hold(runner=run.runner, session=run.session, request_id=run.request_id)
            assert who == last, f"{new.id}: the result is from {who}, the last grant was {last}"
            assert new.reference is not None
            assert new.reference.endswith(run.image_digest), f"{new.id}: wrong reference"
            for tag in new.submit.tags:
                assert ledger.tags_[new.submit.project, tag] == run.image_digest
        else:
            assert not seen, f"{new.id} is {new.build.state} and has an image"
        left = [name for name in ledger.manifests_ if name[2].startswith(f"{new.id}.")]
        waits = new.parent is not None and ledger.builds_[new.parent].build.state not in FINAL
        waits = waits and new.build.state == "succeeded"
        assert bool(left) == waits, f"{new.id} ended and left {left} pending"
        assert new.id not in self.cancelled or new.build.state == "cancelled", (
            f"{new.id} was cancelled and {new.build.state}"
        )
        if new.build.state == "failed":
            self._may_fail(new)

    def _part_ended(
        self,
        new: StoredBuild,
        seen: list[Execution],
        mine: list[Execution],
        ledger: MemoryLedger,
    ) -> None:
        """One of several platforms was built: nobody sees its image before all of them are."""
        assert new.parent is not None
        whole = ledger.builds_[new.parent].build.state == "succeeded"
        assert bool(seen) == whole, f"{new.id} is seen: {bool(seen)}, all are there: {whole}"
        digest = new.envelope.manifest_digest if new.envelope else None
        run = next(run for run in mine if run.image_digest == digest)
        who = Hold(runner=run.runner, session=run.session, request_id=run.request_id)
        last = self.holds[new.id][-1]
        assert who == last, f"{new.id}: the result is from {who}, the last grant was {last}"

    def _may_fail(self, new: StoredBuild) -> None:
        failure = new.envelope.failure if new.envelope else None
        assert failure is not None, f"{new.id} failed and nobody says why"
        if new.submit.platforms:
            return  # as one of its children did, who is judged by itself
        grants, released = len(self.holds[new.id]), self.released[new.id]
        match failure.cause:
            case "runners-lost":
                enough = grants - released >= ATTEMPTS_MAX or grants >= GRANTS_MAX
                assert enough, f"{new.id} was given up after {grants} grants"
            case "runner":
                before = len(self.broken[new.id])  # the last one is noted when it was answered
                assert before >= BROKEN_MAX - 1, f"{new.id} broke {before} runners before"
            case "no-runner" | "waited-too-long":
                assert new.submit.if_nobody != "wait", f"{new.id} would have waited"
            case cause:
                assert cause == "command", f"{new.id} failed: {failure}"

    # When the control plane's own machine may build.

    def _may_be_here(self, stored: StoredBuild) -> None:
        now, submit = self.clock.time, stored.submit
        assert submit.if_nobody == "here", f"{stored.id} must not be built here"
        able = [
            machine.name
            for machine in self.machines.values()
            if not machine.here and machine.name in self.heard and self._able(machine, submit)
            if machine.name not in {*self.broken[stored.id], self.breaking.get(stored.id)}
        ]
        if not able:
            return
        since = self.queued_since.get(stored.id, now)
        silent_since = max(self.heard[name] for name in able)
        idle_since = self.idle_since.get(stored.id, now)
        all_silent = now >= max(idle_since, silent_since) + OFFLINE_GRACE
        too_long = now >= since + timedelta(seconds=submit.max_queue_wait_seconds)
        assert all_silent or too_long, f"{stored.id} is built here although {able} could"

    def _able(self, machine: Machine, submit: Submit) -> bool:
        fits = submit.plan.platform in {None, machine.platform}
        at_ease = submit.project not in self.untrusted and not submit.plan.secrets
        return fits and (machine.isolated or at_ease)

    # When everything is calm again.

    def at_the_end(self, ledger: MemoryLedger, logs: MemoryLogs) -> None:
        known = {stored.id for stored in ledger.builds_.values()}
        told = {build_id for ids in self.keys.values() for build_id in ids}
        assert told <= known, f"lost: {sorted(told - known)}"
        open_ = sorted(b.id for b in ledger.builds_.values() if b.build.state not in FINAL)
        assert not open_, f"without an end: {open_}"
        left = sorted(run.build_id for run in self.executions if run.running)
        assert not left, f"still running: {left}"
        for stored in ledger.builds_.values():
            if stored.build.state == "succeeded" and not stored.submit.platforms:
                self._log_is_what_was_written(stored, logs)

    def _log_is_what_was_written(self, stored: StoredBuild, logs: MemoryLogs) -> None:
        kept = logs.kept.get((stored.id, stored.build.fence), b"")[stored.log_prefix :]
        assert stored.envelope is not None
        digest = stored.envelope.manifest_digest
        written = next(run.log for run in self.executions if run.image_digest == digest)
        assert written.startswith(kept), f"{stored.id}: the log is not what was written"
        assert not stored.log_complete or kept == written, f"{stored.id}: the log is not whole"
