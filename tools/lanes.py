"""Run several nox sessions, some at the same time, and print each one's output whole.

The output of a session is shown when it ends, so that two never mix. All run to their end: one
call shows everything that is broken. `integration:1/2` is the first half of a session's tests.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one session ended."""

    name: str
    code: int
    output: str
    seconds: float

    def __str__(self) -> str:
        return f"{'ok    ' if self.code == 0 else 'FAILED'} {self.name:15} {self.seconds:6.1f} s"


def run_session(name: str) -> Outcome:
    """Run one session and keep what it says."""
    began = time.monotonic()
    session, _, part = name.partition(":")
    command = [sys.executable, "-m", "nox", "--session", session]
    # A folder of its own: in a common one they clear away each other's, which pytest does not like.
    with tempfile.TemporaryDirectory(prefix="part-", ignore_cleanup_errors=True) as folder:
        command += ["--", f"--part={part}", f"--basetemp={folder}/t"] if part else []
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    output = done.stdout.decode("utf-8", "replace")
    return Outcome(name, done.returncode, output, time.monotonic() - began)


def main() -> int:
    """Run the named sessions; 0 when all of them were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sessions", nargs="+")
    parser.add_argument("--lanes", type=int, default=2)
    wanted = parser.parse_args()
    outcomes = []
    with ThreadPoolExecutor(wanted.lanes) as lanes:
        for ended in as_completed([lanes.submit(run_session, name) for name in wanted.sessions]):
            outcome = ended.result()
            outcomes.append(outcome)
            print(f"== {outcome.name}\n{outcome.output}", flush=True)
    print(*outcomes, sep="\n")
    return 0 if all(outcome.code == 0 for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
