"""The platform's own things, kept small: deployments in memory. Yours are tables."""

from dataclasses import dataclass, field
from pathlib import Path

from pierhead.router import PullCredentials, Rejection


@dataclass
class Deployment:
    """One push that becomes a running container."""

    id: str
    project: str
    branch: str
    checkout: Path
    status: str = "new"
    rejected: tuple[Rejection, ...] = ()
    log: bytearray = field(default_factory=bytearray)
    error: tuple[str, ...] = ()
    hint: str | None = None
    image: str | None = None
    port: str | None = None
    credentials: PullCredentials | None = None


class Deployments:
    """The table."""

    def __init__(self) -> None:
        self._rows: dict[str, Deployment] = {}

    def add(self, project: str, branch: str, checkout: Path) -> Deployment:
        """Add a deployment with an id of its own."""
        made = Deployment(f"d{len(self._rows) + 1}", project, branch, checkout)
        self._rows[made.id] = made
        return made

    def load(self, deployment_id: str) -> Deployment:
        """Return one."""
        return self._rows[deployment_id]
