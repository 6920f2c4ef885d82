"""`pierhead up`: keep a control plane on this machine."""

import asyncio
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from pierhead.protocol.cli.place import Place, config_folder
from pierhead.protocol.cli.speak import OK, REFUSED, UNAVAILABLE, fail, give, size, tell
from pierhead.protocol.errors import PierheadError
from pierhead.router.cli.serve import serve_arguments
from pierhead.router.config import DEFAULT_PORT, data_folder

UNIT: Final = Path("/etc/systemd/system/pierhead.service")
START_SECONDS: Final = 30.0


def command(
    port: Annotated[int, typer.Option(help="Port", min=1, max=65535)] = DEFAULT_PORT,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would happen")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End it; all data stays")] = False,
) -> int:
    """Keep a control plane on this machine: a service where there is systemd, else a process."""
    import pierhead.router.app  # noqa: F401, PLC0415 - says now what is not installed

    data, place = data_folder(), Place(f"http://127.0.0.1:{port}", None, chosen=True)
    if stop:
        return _stop(data)
    if plan:
        tell(_plan(data, port))
        return OK
    if asyncio.run(_answers(place)):
        tell(f"a control plane runs at {place.url} already")
        return OK
    data.mkdir(parents=True, exist_ok=True, mode=0o750)
    how = _start_service(data, port) if _has_systemd() else _start_process(data, port)
    if not _comes_up(place):
        raise fail("the control plane did not come up", f"read {data / 'serve.log'}", UNAVAILABLE)
    _tell_all(data, place, how)
    return OK


def _tell_all(data: Path, place: Place, how: str) -> None:
    status = os.statvfs(data)
    tell(f"data       {data}   {size(status.f_bavail * status.f_frsize)} free")
    tell(f"address    {place.url}   (this machine only: there is no TLS in this release)")
    tell("builder    here, at most 1 build at a time, lowest CPU priority")
    tell(f"service    {how}")
    tell(f"You are the owner. Token: {config_folder() / 'token'} (mode 0600)")
    tell(f"registry   docker --config {config_folder() / 'docker'} pull ...")
    tell("next: pierhead build .")
    give(place.url)


def _plan(data: Path, port: int) -> str:
    command_line = shlex.join(serve_arguments(data, "127.0.0.1", port))
    if _has_systemd():
        return f"would write {UNIT} and start it:\n\n{_unit(command_line)}"
    return f"would start, with its log in {data / 'serve.log'}:\n\n{command_line}"


def _has_systemd() -> bool:
    return Path("/run/systemd/system").is_dir() and os.geteuid() == 0


def _unit(command_line: str) -> str:
    return f"""[Unit]
Description=pierhead control plane
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command_line}
Restart=always
RestartSec=2
KillMode=mixed
TimeoutStopSec=30

[Install]
WantedBy=multi-user.target
"""


def _start_service(data: Path, port: int) -> str:
    UNIT.write_text(_unit(shlex.join(serve_arguments(data, "127.0.0.1", port))))
    for action in (["daemon-reload"], ["enable", "--now", "pierhead.service"]):
        done = subprocess.run(["systemctl", *action], capture_output=True, text=True, check=False)  # noqa: S607
        if done.returncode != 0:
            raise fail(f"systemctl {action[0]}: {done.stderr.strip()}", "journalctl -u pierhead")
    return "pierhead.service enabled and started"


def _start_process(data: Path, port: int) -> str:
    with (data / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            serve_arguments(data, "127.0.0.1", port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (data / "serve.pid").write_text(str(process.pid))
    return f"process {process.pid} (there is no systemd here); end it: pierhead up --stop"


def _stop(data: Path) -> int:
    if _has_systemd() and UNIT.exists():
        subprocess.run(["systemctl", "disable", "--now", "pierhead.service"], check=True)  # noqa: S607
        UNIT.unlink()
        return OK
    try:
        pid = int((data / "serve.pid").read_text())
        if b"pierhead.router" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise ProcessLookupError
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        raise fail(
            f"no control plane was started by `pierhead up` on {data}", None, REFUSED
        ) from None
    for _ in range(300):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.1)
    (data / "serve.pid").unlink(missing_ok=True)
    tell("stopped; all data stays")
    return OK


def _comes_up(place: Place) -> bool:
    for _ in range(int(START_SECONDS * 5)):
        if asyncio.run(_answers(place)):
            return True
        time.sleep(0.2)
    return False


async def _answers(place: Place) -> bool:
    async with place.client() as client:
        try:
            await client.meta()
        except PierheadError:
            return False
    return True
