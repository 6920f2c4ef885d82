from typing import Any

import pytest

from pierhead.protocol.cli.speak import CommandFailed
from pierhead.runner.cli.ceilings import Machine, ceilings

MACHINE = Machine(cpus=8, memory_bytes=16 * 1024**3, disk_bytes=100 * 1024**3)


def test_what_was_said_is_shared_by_the_builds_of_one_time() -> None:
    found = ceilings(MACHINE, cpus=8, memory="16G", disk="60GiB", slots=4)
    assert found.cpus == 2
    assert found.memory_bytes == 4 * 1024**3
    assert found.disk_bytes == 15 * 1024**3
    assert (
        found.words
        == "4 builds at a time, 2 cores each, 4.3 GB of memory each, 16.1 GB of disk each"
    )


def test_without_a_word_there_is_no_ceiling() -> None:
    found = ceilings(MACHINE, cpus=None, memory=None, disk=None, slots=1)
    assert (found.cpus, found.memory_bytes, found.disk_bytes) == (None, None, None)
    assert found.words == "1 build at a time"


@pytest.mark.parametrize("memory", ["16", "lots", "-1G", "1.5G", "16 G", "٣G", "100M", "1K"])
def test_what_is_no_size_or_too_little_is_refused_with_an_example(
    memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandFailed) as refused:
        ceilings(MACHINE, cpus=None, memory=memory, disk=None, slots=1)
    assert refused.value.code == 2
    assert "hint: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ({"cpus": 9}, "--cpus 8"),
        ({"cpus": 99}, "--cpus 8"),
        ({"memory": "17G"}, "--memory 16384M"),
        ({"memory": "1T"}, "--memory 16384M"),
        ({"disk": "101G"}, "--disk 102400M"),
        ({"disk": "999999T"}, "--disk 102400M"),
    ],
)
def test_more_than_the_machine_has_is_refused_with_what_it_has(
    said: dict[str, Any], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing: dict[str, Any] = {"cpus": None, "memory": None, "disk": None}
    with pytest.raises(CommandFailed) as refused:
        ceilings(MACHINE, slots=1, **{**nothing, **said})
    assert refused.value.code == 2
    assert capsys.readouterr().err.endswith(f"hint: {hint}\n")


def test_all_that_the_machine_has_may_be_allowed() -> None:
    found = ceilings(MACHINE, cpus=8, memory="16384M", disk="102400M", slots=1)
    assert (found.cpus, found.memory_bytes) == (8, MACHINE.memory_bytes)
