"""A process that goes on after the command: a unit of systemd, or else one in the background.

What the process has to know of the environment is kept in a file that only its owner can read: a
proxy's address may hold a password, and units can be read by everybody.
"""

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.protocol.cli.lastwords import LastWords, words_of_command, words_of_file
from pierhead.protocol.cli.speak import REFUSED, fail
from pierhead.protocol.environment import OBEYED, STAYS_DOWN, STOP_WITHIN, for_a_process

STOP_SECONDS: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process of pierhead, and where it keeps what it says."""

    name: str  # of the unit, and of the files
    description: str
    command: tuple[str, ...]
    folder: Path
    module: str  # by which its process is told from another that got its number
    user: bool = False  # of one user: no root is needed

    @property
    def log(self) -> Path:
        """What it says; with systemd that is in the journal."""
        return self.folder / f"{self.name}.log"

    @property
    def environment(self) -> Path:
        """What it obeys."""
        return self.folder / f"{self.name}.env"

    @property
    def unit(self) -> Path:
        """Where systemd reads it."""
        folder = Path.home() / ".config/systemd/user" if self.user else Path("/etc/systemd/system")
        return folder / f"{self.name}.service"

    @property
    def where_it_speaks(self) -> str:
        """What to type to read what it says."""
        if not has_systemd():
            return f"tail {self.log}"
        return f"journalctl {'--user ' if self.user else ''}-u {self.name}"

    def last_words(self, since: int) -> LastWords | None:
        """Return why it ended, if it said so; `since`: how long its log was before."""
        if not has_systemd():
            return words_of_file(self.log, since)
        user = ["--user"] if self.user else []
        return words_of_command(["journalctl", *user, "-u", self.name, "-n", "50", "-o", "cat"])

    @property
    def kind(self) -> str:
        """What it will be, for people."""
        if has_systemd():
            lingers = "; loginctl enable-linger keeps it while you are away" if self.user else ""
            return f"{self.unit}, enabled and started{lingers}"
        return "a process in the background: there is no systemd here, so no restart brings it back"


def has_systemd() -> bool:
    """Say whether systemd runs this machine (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def unit_text(service: Service) -> str:
    """Return the unit. The first signal lets a process finish what it holds, within its time."""
    target = "default.target" if service.user else "multi-user.target"
    return f"""[Unit]
Description={service.description}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={" ".join(map(_quoted, service.command))}
EnvironmentFile=-{_escaped(str(service.environment))}
Environment={STOP_WITHIN}={STOP_SECONDS}
Restart=always
RestartSec=2
RestartPreventExitStatus={STAYS_DOWN}
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}

[Install]
WantedBy={target}
"""


def environment_text(environment: Mapping[str, str]) -> str:
    """Return what of an environment a service obeys, as systemd reads it."""
    said = {name: value for name in OBEYED if (value := environment.get(name))}
    # A value of several lines would be read as further variables.
    said = {name: value for name, value in said.items() if value.isprintable()}
    return "".join(f"{name}={_quoted(value, percent=False)}\n" for name, value in said.items())


def start(service: Service) -> str:
    """Start it for good; return what it is now, for people.

    Raises:
        CommandFailed: systemd refuses.
    """
    service.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(service.environment, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(environment_text(os.environ))
    return _start_unit(service) if has_systemd() else _start_process(service)


def stop(service: Service) -> bool:
    """End it, so that it does not come back; false: there was none.

    Raises:
        CommandFailed: it does not end.
    """
    if has_systemd() and service.unit.exists():
        _systemctl(service, "disable", "--now", service.unit.name)
        service.unit.unlink()
        return True
    pid = running(service)
    if pid is not None:
        end(pid, lambda: running(service) == pid)
    _pid_file(service).unlink(missing_ok=True)
    return pid is not None


def end(pid: int, is_it: Callable[[], bool]) -> None:
    """End a process, while its number is still that of the one that is meant.

    Raises:
        CommandFailed: it does not end.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The first signal lets it finish what it holds, the second one makes it let go.
        for _ in range(2):
            if not is_it():
                return
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if select.select([process], [], [], STOP_SECONDS)[0]:
                return
    except PermissionError as error:
        raise fail(f"process {pid} is somebody else's", f"sudo kill {pid}", REFUSED) from error
    finally:
        os.close(process)
    raise fail(f"process {pid} does not end", f"kill -9 {pid}", REFUSED)


def is_there(service: Service) -> bool:
    """Say whether it was started, and not ended since."""
    return (has_systemd() and service.unit.exists()) or running(service) is not None


def is_wanted(service: Service) -> bool:
    """Say whether it was started for this folder, and not ended by `stop`: it may have died."""
    if has_systemd() and service.unit.exists():
        return _quoted(str(service.folder)) in service.unit.read_text()
    return _pid_file(service).exists()


def running(service: Service) -> int | None:
    """Return the number of its process in the background, while it lives."""
    try:
        pid = int(_pid_file(service).read_text())
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    if stat.rpartition(")")[2].split()[0] in {"Z", "X"}:
        return None
    # While a process becomes another program, it has no command line for a moment.
    return pid if not command or service.module.encode() in command.split(b"\0") else None


def _start_unit(service: Service) -> str:
    service.unit.parent.mkdir(parents=True, exist_ok=True)
    service.unit.write_text(unit_text(service))
    _systemctl(service, "daemon-reload")
    _systemctl(service, "enable", service.unit.name)
    _systemctl(service, "restart", service.unit.name)
    return f"{service.unit.name} enabled and started"


def _start_process(service: Service) -> str:
    with service.log.open("ab") as log:
        process = subprocess.Popen(
            service.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=for_a_process(os.environ),
            start_new_session=True,
        )
    _pid_file(service).write_text(str(process.pid))
    return f"process {process.pid} in the background (there is no systemd here)"


def _systemctl(service: Service, *words: str) -> None:
    command = ["systemctl", *(["--user"] if service.user else []), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip() or f"ended with {done.returncode}"
        raise fail(f"{' '.join(command)}: {said}", service.where_it_speaks)


def _pid_file(service: Service) -> Path:
    return service.folder / f"{service.name}.pid"


def _quoted(word: str, *, percent: bool = True) -> str:
    """Return a word as systemd reads it (systemd.service(5), "Command lines")."""
    inner = word.replace("\\", "\\\\").replace('"', '\\"')
    if percent:
        inner = inner.replace("%", "%%").replace("$", "$$")
    return f'"{inner}"'


def _escaped(path: str) -> str:
    return path.replace("%", "%%")
