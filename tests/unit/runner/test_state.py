"""The runner's folder: whose it is, who works there, and what a join that was refused leaves."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pierhead.protocol.errors import PierheadError, Refused, Unavailable
from pierhead.protocol.problem import problem
from pierhead.runner.adapters.ground import LockedGround
from pierhead.runner.config import (
    Joined,
    at_work,
    check_state,
    load_joined,
    lock_file,
    lock_state,
    machine_secret,
    save_joined,
    unless_refused,
)

REFUSED = Refused(problem("join-code-used", "the code is used up"))
AWAY = Unavailable(problem("dependency-unavailable", "nobody answers"))
HOLDS = """
import sys
from pathlib import Path
from pierhead.runner.config import lock_state
lock_state(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "of/a/runner"


@pytest.fixture
def runner(state: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", HOLDS, str(state)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_the_process_at_work_is_known_while_it_lives(
    state: Path, runner: "subprocess.Popen[str]"
) -> None:
    assert at_work(state) == runner.pid
    with pytest.raises(Unavailable, match="already") as refused:
        lock_state(state)
    assert "pierhead runner stop" in (refused.value.problem.hint or "")

    runner.kill()
    runner.wait(20)
    assert at_work(state) is None


@pytest.mark.parametrize("said", ["", "1\n", "99999999999\n", "-1\n"])
def test_a_number_that_is_another_processs_is_not_believed(
    state: Path, runner: "subprocess.Popen[str]", said: str
) -> None:
    del runner
    lock_file(state).write_text(said)

    with pytest.raises(Unavailable, match="cannot be seen from here"):
        at_work(state)


def test_where_nobody_ever_worked_nobody_works(state: Path) -> None:
    assert at_work(state) is None
    assert not state.parent.parent.exists()


def join(state: Path, error: PierheadError) -> None:
    with unless_refused(state):
        os.close(lock_state(state))
        machine_secret(state)
        raise error


def joining(state: Path, error: PierheadError) -> None:
    with pytest.raises(type(error)):
        join(state, error)


def test_of_a_join_that_was_refused_nothing_is_left(state: Path) -> None:
    check_state(state)
    joining(state, REFUSED)

    assert list(state.parent.parent.parent.iterdir()) == []


def test_a_join_that_was_refused_takes_away_only_what_it_made(state: Path) -> None:
    state.mkdir(parents=True)
    (state / "mine").touch()
    (state / "machine.key").write_bytes(b"of before")

    joining(state, REFUSED)

    assert sorted(child.name for child in state.iterdir()) == ["machine.key", "mine"]
    assert machine_secret(state) == b"of before"


def test_a_join_without_an_answer_keeps_what_it_asks_with_again(state: Path) -> None:
    joining(state, AWAY)
    secret = machine_secret(state)
    joining(state, AWAY)

    assert machine_secret(state) == secret


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for check in (check_state, lock_state):
        with pytest.raises(Unavailable, match="a runner cannot work with") as refused:
            check(tmp_path / "file/state")
        assert "PIERHEAD_RUNNER_STATE" in (refused.value.problem.hint or "")


@pytest.mark.parametrize("broken", ["", "{", "[]"])
def test_what_was_learned_by_joining_may_be_broken(state: Path, broken: str) -> None:
    save_joined(state, Joined(name="desktop", url="https://x", credential="secret"))
    assert load_joined(state).name == "desktop"
    (state / "runner.json").write_text(broken)

    with pytest.raises(Unavailable, match="cannot be read") as refused:
        load_joined(state)
    assert "pierhead join" in (refused.value.problem.hint or "")


@pytest.fixture
def held(state: Path) -> Iterator[int]:
    descriptor = lock_state(state)
    yield descriptor
    os.close(descriptor)


def ground(state: Path, held: int) -> LockedGround:
    return LockedGround(state, state / "work", lock_file(state), held)


def test_a_folder_for_builds_that_was_removed_is_made_again(state: Path, held: int) -> None:
    assert ground(state, held).lack() is None
    (state / "work").rmdir()
    assert ground(state, held).lack() is None
    assert (state / "work").is_dir()


def test_a_folder_for_builds_that_cannot_be_made_is_a_reason_to_take_none(
    state: Path, held: int
) -> None:
    (state / "work").symlink_to("nowhere/else")

    assert (ground(state, held).lack() or "").startswith("its folder cannot be used: ")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_runner_whose_folder_was_removed_says_how_to_join_again(
    state: Path, held: int, *, replaced: bool
) -> None:
    lock_file(state).unlink()
    if replaced:
        lock_file(state).touch()

    with pytest.raises(Unavailable, match="was removed while it worked") as gone:
        ground(state, held).lack()
    assert "pierhead join CODE" in (gone.value.problem.hint or "")
