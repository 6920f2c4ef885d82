"""Run several nox sessions, some at the same time, and print each one's output whole.

The output of a session is shown when it ends, so that two never mix. All run to their end: one
call shows everything that is broken. `integration:1/2` is the first half of a session's tests.

With `--second-look`, the few tests that failed beside others are run once more with nothing beside
them. Where they pass then, the run does, and it ends with their names: each wants mending, because
it (or what it tests) depends on how fast the machine is. More than a few are never looked at again.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

FEW = 2  # of all tests of a run; where more fail, the machine is not to blame
TESTS_FAILED = "failed with exit code 1"  # nox, of a pytest that ran all it was to run


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one session ended."""

    name: str
    code: int
    output: str
    seconds: float
    folder: Path  # the session's own
    failed: tuple[str, ...] = field(default=())  # tests, where the session is one of tests

    def __str__(self) -> str:
        return f"{'ok    ' if self.code == 0 else 'FAILED'} {self.name:15} {self.seconds:6.1f} s"

    @property
    def is_explained(self) -> bool:
        """Whether its failed tests are all that is wrong with it."""
        return bool(self.failed) and TESTS_FAILED in self.output


def run_session(name: str, folder: Path, *words: str) -> Outcome:
    """Run one session and keep what it says; the folder is for this session alone."""
    began = time.monotonic()
    session, _, part = name.partition(":")
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "nox", "--session", session]
    # A folder of its own: in a common one they clear away each other's, which pytest does not like.
    ours = [f"--part={part}", f"--basetemp={folder}/t", "-o", f"cache_dir={folder}/cache", *words]
    command += ["--", *ours] if part else []
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    output = done.stdout.decode("utf-8", "replace")
    shutil.rmtree(folder / "t", ignore_errors=True)
    seconds = time.monotonic() - began
    return Outcome(name, done.returncode, output, seconds, folder, failed_tests(folder / "cache"))


def failed_tests(cache: Path) -> tuple[str, ...]:
    """Name the tests that failed, as pytest notes them in its cache."""
    noted = cache / "v/cache/lastfailed"
    return tuple(json.loads(noted.read_text())) if noted.exists() else ()


def told(outcome: Outcome) -> Outcome:
    """Print what a session said, whole."""
    print(f"== {outcome.name}\n{outcome.output}", flush=True)
    return outcome


def run_all(names: list[str], lanes: int, above: Path) -> list[Outcome]:
    """Run them, so many at the same time, and print each when it ends."""
    # Short names: there are sockets below, whose paths may not be longer than 107 bytes.
    folders = [above / str(number) for number in range(len(names))]
    with ThreadPoolExecutor(lanes) as pool:
        running = [
            pool.submit(run_session, name, folder)
            for name, folder in zip(names, folders, strict=True)
        ]
        return [told(ended.result()) for ended in as_completed(running)]


def look_again(failed: list[Outcome]) -> list[Outcome]:
    """Run what failed with nothing beside it, if it is few tests and nothing else is wrong."""
    few = sum(len(outcome.failed) for outcome in failed) <= FEW
    if not few or not all(outcome.is_explained for outcome in failed):
        return failed
    # Of the tests that failed, all: there are no parts of so few files.
    again = ("--last-failed", "--last-failed-no-failures=none", "--part=1/1")
    return [told(run_session(outcome.name, outcome.folder, *again)) for outcome in failed]


def main() -> int:
    """Run the named sessions; 0 when all of them were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sessions", nargs="+")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--second-look", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="part-", ignore_cleanup_errors=True) as above:
        first = run_all(wanted.sessions, wanted.lanes, Path(above))
        failed = [outcome for outcome in first if outcome.code]
        last = look_again(failed) if failed and wanted.second_look else failed
    print(*first, sep="\n")
    for test in (test for outcome in failed for test in outcome.failed):
        print(f"failed beside others: {test}")
    broken = [outcome.name for outcome in last if outcome.code]
    if failed and not broken:
        print("they passed alone: what makes them depend on the machine's speed wants mending")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
