"""What an importer gets: an image by its digest, and all that is known of it.

`ImageInfo.to_docker_inspect` is for code that reads `docker inspect` today.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NewType

from pierhead.protocol.ids import BuildId as BuildId

Digest = NewType("Digest", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthcheck:
    """How a container of the image is asked whether it is well (`HEALTHCHECK`)."""

    test: tuple[str, ...]
    interval: timedelta = timedelta()  # zero: the engine's default
    timeout: timedelta = timedelta()
    start_period: timedelta = timedelta()
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """How the image runs, as its own configuration says."""

    exposed_ports: tuple[str, ...] = ()  # "3000/tcp"
    working_dir: str = ""
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    volumes: tuple[str, ...] = ()
    stop_signal: str | None = None
    on_build: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    architecture: str = "amd64"
    variant: str | None = None
    os: str = "linux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file or folder of the image that was wanted beside it."""

    name: str
    media_type: str
    digest: Digest
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanMissing:
    """There is no scan, and why."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPending:
    """The scan is under way; ask for the build again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """What a scan has found: how many weaknesses of each severity."""

    scanner: str
    findings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long each phase took on the runner."""

    fetching: timedelta = timedelta()
    building: timedelta = timedelta()
    pushing: timedelta = timedelta()
    total: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """How many steps there were, and how many came from the cache."""

    steps: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """One built image.

    Of several platforms what an image has once (configuration, layers, artifacts) is that of the
    first; `size_bytes` is all of them together.
    """

    build_id: BuildId
    reference: str  # HOST/PROJECT@sha256:...: what to give to docker pull, compose, Kubernetes
    digest: Digest  # of the manifest; of the index, when it is for several platforms
    config_digest: Digest  # what `docker inspect` calls the image's Id
    config: ImageConfig
    platforms: tuple[str, ...]
    size_bytes: int  # of the layers, as pushed
    layers: tuple[Digest, ...] = ()  # as pushed
    diff_ids: tuple[Digest, ...] = ()  # of the same layers, uncompressed
    created: str | None = None  # RFC 3339
    author: str = ""
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    scan: ScanMissing | ScanPending | ScanReport = ScanMissing(why="it was not scanned")
    built_on: str = ""
    attempts: int = 1
    timings: Timings = Timings()
    peak_memory_bytes: int | None = None  # none: the machine does not count it
    cache: CacheUse = CacheUse()
    warnings: tuple[str, ...] = ()
    by_platform: Mapping[str, Digest] = field(default_factory=dict)  # of each one's manifest

    def to_docker_inspect(self) -> dict[str, Any]:
        """Return what `docker inspect` says of the image once it was pulled.

        It was pulled by its digest, so it has no tags. Left out is what an engine adds of its own:
        where it keeps the layers, what the builder called its last step, the time of the last tag.
        `Size` counts the layers as they were pushed; an engine counts them unpacked.
        """
        said: dict[str, Any] = {
            "Id": self.config_digest,
            "RepoTags": [],
            "RepoDigests": [self.reference],
            "Parent": "",
            "Created": self.created,
            "DockerVersion": "",
            "Author": self.author,
            "Config": _config(self.config),
            "Architecture": self.config.architecture,
            "Os": self.config.os,
            "Size": self.size_bytes,
            "RootFS": {"Type": "layers", "Layers": list(self.diff_ids)},
        }
        if self.config.variant:
            said["Variant"] = self.config.variant
        return said


def _config(config: ImageConfig) -> dict[str, Any]:
    """Return `Config`: what is not said is null, or left out, exactly where docker does so."""
    said: dict[str, Any] = {
        "Hostname": "",
        "Domainname": "",
        "User": config.user,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "Tty": False,
        "OpenStdin": False,
        "StdinOnce": False,
        "Env": [f"{name}={value}" for name, value in config.env.items()] or None,
        "Cmd": list(config.cmd) or None,
        "Image": "",
        "Volumes": {path: {} for path in config.volumes} or None,
        "WorkingDir": config.working_dir,
        "Entrypoint": list(config.entrypoint) or None,
        "OnBuild": list(config.on_build) or None,
        "Labels": dict(config.labels) or None,
    }
    if config.exposed_ports:
        said["ExposedPorts"] = {port: {} for port in config.exposed_ports}
    if config.healthcheck is not None:
        said["Healthcheck"] = _healthcheck(config.healthcheck)
    if config.stop_signal:
        said["StopSignal"] = config.stop_signal
    if config.shell:
        said["Shell"] = list(config.shell)
    return said


def _healthcheck(check: Healthcheck) -> dict[str, Any]:
    """Return a health check with durations in nanoseconds; what is zero is left out."""
    durations = {
        "Interval": check.interval,
        "Timeout": check.timeout,
        "StartPeriod": check.start_period,
    }
    said: dict[str, Any] = {"Test": list(check.test)}
    said |= {
        name: took // timedelta(microseconds=1) * 1000 for name, took in durations.items() if took
    }
    return said | ({"Retries": check.retries} if check.retries else {})
