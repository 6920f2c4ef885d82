"""Break the rules one by one: what checks them has to notice each.

A check that finds nothing may be blind. Each mutant here is a small, plausible mistake; its text
is changed in a copy of its package, and the seeds run against the copy until one fails. With
`--rights` it is the part of the token matrix that the mistake would let through, with `--promise`
the everyday build behind a proxy. A mutant that survives, or whose text is not in the code any
more, is an error.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Where the source of a package is.
PLACES: Final = {
    "router": ROOT / "packages/router/src/pierhead/router",
    "runner": ROOT / "packages/runner/src/pierhead/runner",
    "protocol": ROOT / "packages/protocol/src/pierhead/protocol",
    "server": ROOT / "packages/protocol/src/pierhead/server",
}
SEEDS: Final = 600
HUNT: Final = """
import sys
from tests.simulation.world import first_failure
import pierhead.router
assert pierhead.router.__file__.startswith(sys.argv[1]), "the copy is not what runs"
failure = first_failure(range(int(sys.argv[2])))
print(failure or "")
"""

ASK: Final = """
import importlib.util
import sys
import pytest
found = importlib.util.find_spec("pierhead." + sys.argv[3])
assert found.origin.startswith(sys.argv[1]), "the copy is not what runs"
found = pytest.main(["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "tests/" + sys.argv[2]])
sys.exit(found if found in {0, 1} else 99)
"""
MATRIX: Final = "integration/router/test_token_matrix.py::"
BEHIND_A_PROXY: Final = (
    "acceptance/test_proxy.py::"
    "test_upload_log_push_events_and_acquire_pass_a_proxy_that_allows_little"
)
OF_API: Final = MATRIX + "test_every_token_opens_what_its_row_says_and_nothing_else[leased]"
OF_REGISTRY: Final = MATRIX + "test_every_token_opens_of_the_registry_what_its_row_says[leased]"
OF_AUTHORITY: Final = "integration/tls/test_rotation.py::test_"
OF_MIRROR: Final = "integration/mirror/test_mirror.py::test_"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: in `file` of a package, `old` became `new`. `asked`: the test that sees it.

    Without one, the seeds have to. What they meet too seldom has a test of its own.
    """

    name: str
    file: str
    old: str
    new: str
    asked: str = ""
    package: str = "router"


# Of builds for several platforms.
FAMILIES: Final = [
    Mutant(
        "a parent has succeeded when half of it has",
        "domain/parent.py",
        "if {child.state for child in children} <= FINAL:",
        "if heard.state in FINAL:",
    ),
    Mutant(
        "the first platform that fails ends nothing",
        "domain/parent.py",
        "return replace(parent, culprit=news.id), _ends(parent, blamed)",
        "return replace(parent, culprit=news.id), []",
    ),
    Mutant(
        "a parent is cancelled and its children go on",
        "domain/parent.py",
        "return replace(parent, cancel=wish), _ends(parent, wish)\n\n\ndef _hear",
        "return replace(parent, cancel=wish), []\n\n\ndef _hear",
    ),
    Mutant(
        "a failed platform is forgotten when another one is cancelled",
        "domain/parent.py",
        "state = State.CANCELLED if cancel else State.FAILED if culprit else State.SUCCEEDED",
        "state = State.CANCELLED if heard.wish else State.FAILED if culprit else State.SUCCEEDED",
    ),
    Mutant(
        "an image is shown before its siblings are there",
        "services/lifecycle.py",
        "waits_for_siblings = stored.parent is not None and state is machine.State.SUCCEEDED",
        "waits_for_siblings = False",
    ),
    Mutant(
        "what was built is left behind when a sibling fails",
        "services/join.py",
        "            if child.build.fence:\n                ledger.forget(",
        "            if not child.build.fence:\n                ledger.forget(",
    ),
    Mutant(
        "the index lists its first platform only",
        "services/join.py",
        "index_of([_part(ledger, project, image) for image in images])",
        "index_of([_part(ledger, project, image) for image in images[:1]])",
    ),
    Mutant(
        "nothing keeps what the index lists",
        "services/join.py",
        "parts = tuple(image.manifest_digest for image in images)",
        "parts = ()",
    ),
    Mutant(
        "children move tags",
        "services/submit.py",
        "part = msgspec.structs.replace(request, platforms=(), key=None, tags=(), supersedes=None)",
        "part = msgspec.structs.replace(request, platforms=(), key=None, supersedes=None)",
    ),
    Mutant(
        "a build that its sibling ended is judged as it was listed",
        "services/lifecycle.py",
        "return stored if stored.parent is None else ledger.build(stored.id) or stored",
        "return stored",
    ),
    Mutant(
        "a parent does not hear of its children",
        "services/lifecycle.py",
        "if after.parent is not None and after.build.state is not stored.build.state:",
        "if after.parent is not None and after.build.state is machine.State.LEASED:",
    ),
]
MUTANTS: Final = [
    *FAMILIES,
    Mutant(
        "whoever reports is believed",
        "domain/build.py",
        "if build.lease is None or build.lease.fence != fence:",
        "if build.lease is None:",
    ),
    Mutant(
        "a grant does not raise the fence",
        "domain/build.py",
        "fence=build.fence + 1,",
        "fence=max(build.fence, 1),",
    ),
    Mutant(
        "a lost runner is tried for ever",
        "domain/build.py",
        "if build.attempts >= policy.attempts_max or build.fence >= policy.grants_max:",
        "if build.fence >= policy.grants_max:",
    ),
    Mutant(
        "a build that breaks its runners is tried for ever",
        "domain/build.py",
        "if len(build.broken_on) >= policy.broken_max:",
        "if len(build.broken_on) > policy.grants_max:",
    ),
    Mutant(
        "two runners that broke leave a build to each other",
        "domain/matching.py",
        "whole = [other for other in others if other.name not in wanted.broken_on]",
        "whole = [*others]",
    ),
    Mutant(
        "a release counts as a failed attempt",
        "domain/build.py",
        "uncounted = replace(build, attempts=build.attempts - 1)",
        "uncounted = build",
    ),
    Mutant(
        "a result that crosses a cancel wins",
        "domain/build.py",
        "state = State.CANCELLED if build.cancel is not None else State(report.outcome)",
        "state = State(report.outcome)",
    ),
    Mutant(
        "a cancelled build is tried again",
        "domain/build.py",
        "    if build.cancel is not None:\n        return _finish(build, State.CANCELLED, now)\n",
        "",
    ),
    Mutant(
        "a silent attempt is never given up",
        "domain/build.py",
        "if build.lease is None or build.lease.expires_at > given_up(now, policy):",
        "if True:",
    ),
    Mutant(
        "a silent attempt is given up too early",
        "domain/build.py",
        "return now - policy.grace",
        "return now + policy.ttl / 2",
    ),
    Mutant(
        "a repeated acquire loses what it was granted",
        "domain/session.py",
        "for build_id, lease in absent if lease.request_id != request_id),\n"
        "        drop=tuple(Held(build_id=build_id, fence=fence)"
        " for build_id, fence in sorted(said - ours)),\n"
        "        granted=tuple(build_id for build_id, lease in absent"
        " if lease.request_id == request_id),\n",
        "for build_id, lease in absent),\n        drop=(),\n        granted=(),\n",
    ),
    Mutant(
        "an acquire that was overtaken is believed",
        "domain/session.py",
        "return turn < session.turn",
        "return False",
        "integration/router/test_leases.py::test_a_request_that_was_overtaken_takes_nothing_back",
    ),
    Mutant(
        "the repeat of a request is granted what is nearly over",
        "services/runners.py",
        "machine.Renew(mine[build_id].build.fence),\n                now,",
        "machine.Renew(mine[build_id].build.fence),\n"
        "                now - self.lifecycle.policy.ttl,",
        "integration/router/test_leases.py::test_what_a_repeat_is_granted_is_good_for_a_whole_lease",
    ),
    Mutant(
        "a process that is gone takes the session back",
        "domain/session.py",
        "if current.boot_id == boot_id and started_ms < current.started_ms and not silent:",
        "if False:",
    ),
    Mutant(
        "a new process does not end the old one's session",
        "domain/session.py",
        "    if current.process == process:\n        return False\n",
        "    return False\n",
    ),
    Mutant(
        "a runner gets a build for another platform",
        "domain/matching.py",
        "if not native and not emulates(runner, wanted):",
        "if False:",
    ),
    Mutant(
        "strangers' builds run without isolation",
        "domain/matching.py",
        'if not wanted.trusted and able.isolation != "full":',
        "if False:",
    ),
    Mutant(
        "builds are served as they came, whosever they are",
        "domain/turns.py",
        "return sorted(first, key=first.__getitem__)",
        "return sorted(first, key=lambda project: first[project][1])",
    ),
    Mutant(
        "a grant is no turn",
        "services/lifecycle.py",
        "        ledger.take_turn(stored.submit.project)\n",
        "",
    ),
    Mutant(
        "a grant that came to nothing was a turn all the same",
        "services/lifecycle.py",
        "                ledger.give_turn_back(stored.submit.project)\n",
        "",
    ),
    Mutant(
        "one runner's places all go to one project",
        "domain/turns.py",
        "            for one in islice(line, 1):\n",
        "            for one in line:\n",
    ),
    Mutant(
        "here takes what it was not asked to",
        "domain/matching.py",
        "if runner.here and not wanted.here_allowed:",
        "if False:",
    ),
    Mutant(
        "here does not wait for those who are busy",
        "domain/waiting.py",
        "return _Others(patience.since + patience.busy_for,",
        "return _Others(None,",
    ),
    Mutant(
        "runners that fell silent are not waited for",
        "domain/waiting.py",
        "here_from = max([patience.idle_since, *last_seen]) + policy.offline_grace",
        "here_from = patience.idle_since",
    ),
    Mutant(
        "whoever wants to wait is sent here",
        "domain/waiting.py",
        'if patience.if_nobody == "wait":',
        "if False:",
    ),
    Mutant(
        "an overlapping part of a log is stored twice",
        "domain/logbook.py",
        "return min(stored - offset, length)",
        "return 0",
    ),
    Mutant(
        "a log may have a hole",
        "domain/logbook.py",
        "if offset > stored:",
        "if False:",
    ),
    Mutant(
        "what a lost attempt pushed stays",
        "services/lifecycle.py",
        "                ledger.forget(stored.submit.project, attempt_name(stored.id, fence))\n",
        "",
    ),
    Mutant(
        "secrets outlive their build",
        "services/lifecycle.py",
        "        ledger.forget_secrets(stored.id)\n",
        "",
    ),
    Mutant(
        "a requeue forgets the secrets",
        "services/lifecycle.py",
        "                ledger.forget(stored.submit.project, attempt_name(stored.id, fence))\n"
        "                anew = replace(",
        "                ledger.forget(stored.submit.project, attempt_name(stored.id, fence))\n"
        "                ledger.forget_secrets(stored.id)\n"
        "                anew = replace(",
    ),
    Mutant(
        "builds with secrets run without isolation",
        "domain/matching.py",
        'if wanted.secrets and able.isolation != "full":',
        "if False:",
    ),
    Mutant(
        "an attempt that is over may still push",
        "services/identity.py",
        "live=fence == stored.build.fence and stored.build.state is State.LEASED,",
        "live=True,",
    ),
    Mutant(
        "an older build of a group goes on",
        "services/submit.py",
        "for stored in older]",
        "for stored in older[1:]]",
    ),
    Mutant(
        "a submit that is repeated is queued again",
        "services/submit.py",
        "known = request.key and ledger.build_by_key(request.project, request.key)",
        "known = None",
    ),
]

RIGHTS: Final = [
    Mutant(
        "another project's builds are seen",
        "services/submit.py",
        "        project, environment = holder.project, holder.environment\n    exact",
        "        project, environment = None, None\n    exact",
        OF_API,
    ),
    Mutant(
        "whoever may look may change something",
        "domain/token.py",
        "    if not principal.write:\n",
        "    if False:\n",
        OF_API,
    ),
    Mutant(
        "a token that ended opens",
        "domain/credential.py",
        "    if ends is not None and now >= ends:\n        detail",
        "    if False:\n        detail",
        OF_API,
    ),
    Mutant(
        "a token that was revoked opens",
        "domain/credential.py",
        "    if credential.revoked_at is not None:\n        detail",
        "    if False:\n        detail",
        OF_API,
    ),
    Mutant(
        "whoever has a token makes more",
        "services/tokens.py",
        "        require_owner(principal)\n        assert isinstance(principal, Owner)\n",
        "        principal = Owner()\n",
        OF_API,
    ),
    Mutant(
        "what somebody made up is an earlier attempt",
        "services/identity.py",
        "        if not bears_seal(self.key, token, build_id, fence):\n",
        "        if False:\n",
        OF_API,
    ),
    Mutant(
        "an owner's token changes the authority from anywhere",
        "domain/token.py",
        "    if not isinstance(principal, Owner) or not is_here:\n",
        "    if not isinstance(principal, Owner):\n",
        OF_AUTHORITY + "from_another_machine_the_owner_may_look_and_change_nothing",
    ),
    Mutant(
        "an authority is learned from whoever answers",
        "client/client.py",
        "self._trust is None or not self._is_verified or not",
        "self._trust is None or not",
        OF_AUTHORITY + "nobody_in_between_makes_anybody_believe_them",
        "protocol",
    ),
    Mutant(
        "another project's images are pulled",
        "domain/rights.py",
        "        return principal.project == repository\n",
        "        return True\n",
        OF_REGISTRY,
    ),
    Mutant(
        "a token that reads pushes",
        "domain/rights.py",
        "            return project == repository and write and environment is None\n",
        "            return project == repository\n",
        OF_REGISTRY,
    ),
    Mutant(
        "a project's token uses the owner's logins",
        "domain/rights.py",
        "        case ProjectHolder() | Runner() | Puller():\n            return None\n",
        "        case ProjectHolder(project):\n            return project\n"
        "        case Runner() | Puller():\n            return None\n",
        OF_REGISTRY,
    ),
    Mutant(
        "a build that has ended uses the owner's logins",
        "domain/rights.py",
        "            return project if live else None\n",
        "            return project\n",
        OF_REGISTRY,
    ),
    Mutant(
        "whatever is on the disk is given on a registry's word",
        "services/mirror.py",
        "        given = await self.store.read(lambda ledger: ledger.was_mirrored(*place))\n",
        "        given = True\n",
        OF_MIRROR + "nobody_learns_what_another_project_has_by_a_registry_of_his_own",
    ),
    Mutant(
        "a login goes along to where a registry sends",
        "adapters/upstream.py",
        ' for key in headers if key != "Authorization"}\n',
        " for key in headers}\n",
        OF_MIRROR + "another_host_does_not_see_the_login",
    ),
    Mutant(
        "builds get into private networks",
        "adapters/upstream.py",
        "        if not all(self.may_ask(address) for address in found):\n",
        "        if False:\n",
        OF_MIRROR + "builds_get_nowhere_in_a_private_network",
    ),
]


PROMISE: Final = [
    Mutant(
        "a context goes up in larger bodies than proxies take",
        "client/upload.py",
        "BODY_BYTES: Final = 8 * 1024 * 1024",
        "BODY_BYTES: Final = 32 * 1024 * 1024",
        BEHIND_A_PROXY,
        "protocol",
    ),
    Mutant(
        "a layer is pushed in larger bodies than proxies take",
        "adapters/push.py",
        "PART_BYTES: Final = 8 * 1024 * 1024",
        "PART_BYTES: Final = 32 * 1024 * 1024",
        BEHIND_A_PROXY,
        "runner",
    ),
    Mutant(
        "a silent build leaves its viewers' connections idle",
        "sse.py",
        "COMMENT_SECONDS: Final = 15.0",
        "COMMENT_SECONDS: Final = 60.0",
        BEHIND_A_PROXY,
        "server",
    ),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant. Empty `failure`: it survived."""

    mutant: Mutant
    failure: str
    seconds: float

    def __str__(self) -> str:
        said = self.failure.splitlines()[0] if self.failure else "SURVIVED"
        return f"{self.mutant.name:48} {self.seconds:5.1f} s  {said[:110]}"


def try_mutant(mutant: Mutant) -> Outcome:
    """Run what has to notice it against a copy with one mistake in it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pierhead-mutant-") as folder:
        copy = Path(folder) / "pierhead" / mutant.package
        shutil.copytree(PLACES[mutant.package], copy, ignore=shutil.ignore_patterns("__pycache__"))
        source = (copy / mutant.file).read_text()
        if source.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: its text is not once in {mutant.file}")
        (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
        noticed = _asked(mutant, folder) if mutant.asked else _hunted(folder)
    return Outcome(mutant, noticed, time.monotonic() - began)


def _hunted(folder: str) -> str:
    """Return what the simulation found in the copy."""
    done = _run([HUNT, folder, str(SEEDS)], folder)
    done.check_returncode()
    return done.stdout.strip()


def _asked(mutant: Mutant, folder: str) -> str:
    """Return what the test found in the copy."""
    done = _run([ASK, folder, mutant.asked, mutant.package], folder)
    if done.returncode not in {0, 1}:
        raise SystemExit(f"{mutant.name}: its test did not run:\n{done.stdout}")
    found = [line for line in done.stdout.splitlines() if line.startswith("E  ")]
    return found[0].removeprefix("E  ").strip() if done.returncode and found else ""


def _run(arguments: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": folder},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def main() -> int:
    """Try all mutants, or those whose names hold a word; 0 when each was noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--rights", action="store_true", help="those of the token matrix")
    parser.add_argument("--promise", action="store_true", help="those of the promise to proxies")
    arguments = parser.parse_args()
    mutants = RIGHTS if arguments.rights else PROMISE if arguments.promise else MUTANTS
    survivors = 0
    with ThreadPoolExecutor(2) as lanes:
        for outcome in lanes.map(try_mutant, [m for m in mutants if arguments.word in m.name]):
            print(outcome, flush=True)
            survivors += not outcome.failure
    if survivors:
        print(f"{survivors} mutants survived: what should see them is blind", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
