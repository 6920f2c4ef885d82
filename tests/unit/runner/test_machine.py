"""What the adapters take for the machine's."""

import os
import pwd
from pathlib import Path

import pytest

from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import process


def test_an_empty_folder_beside_the_hierarchies_is_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd makes some for controllers that the kernel has not, on a disk that is read-only."""
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "net_cls").symlink_to("net_cls,net_prio")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)

    assert cgroups._all_v1() == []


def test_processes_are_found_while_folders_of_ended_steps_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    group = cgroups.Cgroup(name="pierhead/b_1.1", roots=(tmp_path,), unified=True)
    (step := tmp_path / group.name / "run" / "step").mkdir(parents=True)
    (tmp_path / group.name / "cgroup.procs").write_text(f"{os.getpid()}\n")
    scandir = os.scandir

    def going(path: os.PathLike[str]) -> object:
        if Path(path) == step:
            step.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", going)

    assert group.processes() == [os.getpid()]
    assert not step.exists()


def test_the_home_of_builders_is_the_users_whatever_its_environment_says() -> None:
    assert process.ENVIRONMENT["HOME"] == pwd.getpwuid(os.geteuid()).pw_dir
    assert set(process.ENVIRONMENT) == {"PATH", "HOME", "LANG"}
