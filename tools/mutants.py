"""Break the router's rules one by one: the simulation has to notice each.

A simulation that finds nothing may be blind. Each mutant here is a small, plausible mistake; its
text is changed in a copy of the router's package, and the seeds run against the copy until one
fails. A mutant that survives, or whose text is not in the code any more, is an error.
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
PACKAGE: Final = ROOT / "packages/router/src/pierhead/router"
SEEDS: Final = 600
HUNT: Final = """
import sys
from tests.simulation.world import first_failure
import pierhead.router
assert pierhead.router.__file__.startswith(sys.argv[1]), "the copy is not what runs"
failure = first_failure(range(int(sys.argv[2])))
print(failure or "")
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: in `file`, `old` became `new`."""

    name: str
    file: str
    old: str
    new: str


MUTANTS: Final = [
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
        "if build.lease is None or now < build.lease.expires_at + policy.grace:",
        "if True:",
    ),
    Mutant(
        "a silent attempt is given up too early",
        "domain/build.py",
        "now < build.lease.expires_at + policy.grace:",
        "now < build.lease.expires_at - policy.ttl / 2:",
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
    ),
    Mutant(
        "the repeat of a request is granted what is nearly over",
        "services/runners.py",
        "ledger, mine[build_id], machine.Renew(mine[build_id].build.fence), now",
        "ledger, mine[build_id], machine.Renew(mine[build_id].build.fence),"
        " now - self.lifecycle.policy.ttl",
    ),
    Mutant(
        "a process that is gone takes the session back",
        "domain/session.py",
        "if current.boot_id == boot_id and started_ms < current.started_ms:",
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
        "if wanted.platform is not None and wanted.platform not in able.platforms:",
        "if False:",
    ),
    Mutant(
        "strangers' builds run without isolation",
        "domain/matching.py",
        'if not wanted.trusted and able.isolation != "full":',
        "if False:",
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
        "return patience.since + patience.busy_for,",
        "return None,",
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
        "            ledger.forget_secrets(after.id)\n",
        "",
    ),
    Mutant(
        "a requeue forgets the secrets",
        "services/lifecycle.py",
        "                ledger.forget(stored.submit.project, attempt_name(stored.id, fence))\n"
        "                return replace(",
        "                ledger.forget(stored.submit.project, attempt_name(stored.id, fence))\n"
        "                ledger.forget_secrets(stored.id)\n"
        "                return replace(",
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
    """Run the seeds against a copy with one mistake in it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pierhead-mutant-") as folder:
        copy = Path(folder) / "pierhead/router"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        source = (copy / mutant.file).read_text()
        if source.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: its text is not once in {mutant.file}")
        (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
        done = subprocess.run(
            [sys.executable, "-c", HUNT, folder, str(SEEDS)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return Outcome(mutant, done.stdout.strip(), time.monotonic() - began)


def main() -> int:
    """Try all mutants, or those whose names hold a word; 0 when each was noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    word = parser.parse_args().word
    survivors = 0
    with ThreadPoolExecutor(2) as lanes:
        for outcome in lanes.map(try_mutant, [m for m in MUTANTS if word in m.name]):
            print(outcome, flush=True)
            survivors += not outcome.failure
    if survivors:
        print(f"{survivors} mutants survived: the simulation does not see them", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
