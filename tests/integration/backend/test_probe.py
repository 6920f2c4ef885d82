"""What a runner says of its machine is what a real build saw there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pierhead.protocol.runner import Capabilities
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import isolation
from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.buildah import BuildahBackend
from pierhead.runner.domain import probe
from tests.integration.backend.conftest import Bench

Break = Callable[[pytest.MonkeyPatch], None]


def a_firewall_that_lets_everybody_in(broken: pytest.MonkeyPatch) -> None:
    real = networks.rules
    broken.setattr(
        networks, "rules", lambda *given: [one for one in real(*given) if "INPUT" not in one]
    )


def a_kernel_that_takes_no_limits(broken: pytest.MonkeyPatch) -> None:
    for name in ("_limit_v1", "_limit_v2"):
        real = getattr(cgroups, name)
        broken.setattr(cgroups, name, lambda it, _memory, *rest, real=real: real(it, None, *rest))


def a_runtime_that_runs_nothing(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(isolation, "_RUNTIME", "#!/bin/sh\necho nothing runs here >&2; exit 1\n")


def steps_that_see_the_machines_processes(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(probe, "SCRIPT", probe.SCRIPT.replace("$$", "42"))
    broken.setattr("pierhead.runner.adapters.probe.SCRIPT", probe.SCRIPT)


def backend(folder: Path) -> BuildahBackend:
    return BuildahBackend(folder / "state", slots=2, memory_bytes=None)


@pytest.fixture(autouse=True)
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pierhead.runner.adapters.trial._TRIES", 1)


async def found(folder: Path) -> Capabilities:
    (folder / "state").mkdir(exist_ok=True)
    return await backend(folder).probe()


async def test_a_machine_that_keeps_its_promises_says_so_and_notes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await found(tmp_path)
    left = {path.name for path in (tmp_path / "state").rglob("*")}
    a_runtime_that_runs_nothing(monkeypatch)
    second = await found(tmp_path)

    assert (first.isolation, first.slots) == ("full", 2)
    assert (second.isolation, second.limits) == ("full", {})  # it was not tried again
    assert left == {"isolates.json", "attempts", "slot-0"}


async def test_what_was_noted_is_of_these_programs_only(tmp_path: Path) -> None:
    await found(tmp_path)
    note = tmp_path / "state/isolates.json"
    known = json.loads(note.read_text())

    for name in known:
        note.write_text(json.dumps({**known, name: "another"}))
        await found(tmp_path)
        assert json.loads(note.read_text()) == known


@pytest.mark.parametrize("damaged", ["", "{", "[]", "null", "{}"])
async def test_a_damaged_note_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/isolates.json").write_text(damaged)
    a_kernel_that_takes_no_limits(monkeypatch)

    assert (await found(tmp_path)).isolation == "none"


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (a_firewall_that_lets_everybody_in, "a step reaches servers of this machine"),
        (a_kernel_that_takes_no_limits, "the kernel does not take limits"),
        (a_runtime_that_runs_nothing, "a tiny build fails here: "),
        (steps_that_see_the_machines_processes, "a step is process 42"),
    ],
)
async def test_a_machine_that_breaks_a_promise_does_not_say_that_it_isolates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Break, said: str
) -> None:
    breaks(monkeypatch)
    able = await found(tmp_path)

    assert able.isolation == "none"
    assert able.networks == ("default",)
    assert able.limits["isolation"].startswith(said)
    assert able.slots == 2  # what is not isolated can be built all the same
    assert not (tmp_path / "state/isolates.json").exists()
    checks = await backend(tmp_path).examine()
    assert next(check.text for check in checks if check.remedy).startswith(said)


async def test_a_machine_on_which_nothing_builds_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_runtime_that_runs_nothing(monkeypatch)
    monkeypatch.setattr(isolation, "own_processes", lambda: ["sh", "-c", "echo no >&2; exit 9"])

    able = await found(tmp_path)

    assert able.slots == 0
    assert able.limits["backend"].startswith("a tiny build fails here: ")


async def test_a_build_that_the_builder_broke_has_the_machine_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = bench.folder / "state/isolates.json"
    await bench.log_of("RUN true\n")
    assert note.exists()
    lost = ["sh", "-c", "echo lost >&2; exit 9"]
    monkeypatch.setattr(isolation, "enter", lambda *_: lost)

    with pytest.raises(Exception, match="without a word"):
        await bench.attempt("RUN true\n").run()

    assert not note.exists()
