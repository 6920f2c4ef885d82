"""What a control plane can do, and the password that pulls an image from it."""

import base64
import json
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """One runner."""

    name: str
    online: bool
    here: bool  # on the control plane's own machine
    platforms: tuple[str, ...]
    slots: int  # builds at a time
    builds: int  # that it has now


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What can be built, and where, at the moment of asking."""

    registry: str  # HOST of references
    runners: tuple[RunnerInfo, ...]
    platforms: tuple[str, ...]  # of runners that are online
    executors: tuple[str, ...]  # of "runners" and "here", those that are online
    context_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullCredentials:
    """A password that pulls from one repository until `expires_at`, and does nothing else."""

    registry: str
    repository: str
    username: str
    password: str = field(repr=False)
    expires_at: datetime

    def docker_config_json(self) -> str:
        """Return what `docker --config`, `skopeo --authfile` and Kubernetes' pull secrets read."""
        auth = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return json.dumps({"auths": {self.registry: {"auth": auth}}})
