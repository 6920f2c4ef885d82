"""A service without systemd: a process in the background that is told to end."""

import sys
from pathlib import Path

import pytest

from pierhead.protocol.cli import service as services
from pierhead.protocol.cli.service import Service
from pierhead.protocol.cli.speak import CommandFailed

# It is meant to outlive who starts it; here that is the test.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running")
ENDS_AT_SIGNAL = """
import os, signal, sys, time
heard = 0
def on_signal(*_):
    global heard
    heard += 1
    if heard >= int(sys.argv[1]) or os.path.exists(sys.argv[2] + ".may-end"):
        sys.exit()
signal.signal(signal.SIGTERM, on_signal)
open(sys.argv[2], "w").close()
while True:
    time.sleep(0.05)
"""
NEVER = 1000
# Of two signals in a shorter time, a process that gets no turn in between hears one.
STOP_SECONDS = 8


def begun(folder: Path, monkeypatch: pytest.MonkeyPatch, signals: int) -> Service:
    monkeypatch.setattr(services, "has_systemd", lambda: False)
    monkeypatch.setattr(services, "STOP_SECONDS", STOP_SECONDS)
    ready = folder / "ready"
    command = (sys.executable, "-c", ENDS_AT_SIGNAL, str(signals), str(ready))
    service = Service(
        name="slow", description="slow", command=command, folder=folder, module=str(ready)
    )
    services.start(service)
    while not ready.exists():
        assert services.running(service)
    return service


@pytest.mark.parametrize("signals", [1, 2])
def test_who_does_not_end_in_time_is_asked_to_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: int
) -> None:
    service = begun(tmp_path, monkeypatch, signals)

    assert services.stop(service)

    assert services.running(service) is None
    assert not services.stop(service)


def test_what_does_not_end_is_not_said_to_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = begun(tmp_path, monkeypatch, signals=NEVER)
    monkeypatch.setattr(services, "STOP_SECONDS", 1)

    with pytest.raises(CommandFailed):
        services.stop(service)

    assert f"process {services.running(service)} does not end" in capsys.readouterr().err
    (tmp_path / "ready.may-end").touch()
    monkeypatch.setattr(services, "STOP_SECONDS", 60)
    assert services.stop(service)
