"""From the bytes of a manifest and a configuration to what the envelope says of an image.

A runner reads its image so, and the router what was pushed: both get the same words.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from pierhead.protocol.digest import digest_of
from pierhead.protocol.platform import normalise_platform
from pierhead.protocol.result import Healthcheck, ImageConfig, PlatformImage


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image: its manifest byte for byte, and what it says."""

    manifest: bytes
    media_type: str
    platform: PlatformImage
    config: ImageConfig


def read_image(manifest: bytes, config: bytes) -> BuiltImage:
    """Return what the two documents say.

    Raises:
        ValueError: they are not an OCI image manifest and its configuration.
    """
    try:
        outer, inner = json.loads(manifest.decode()), json.loads(config.decode())
        return BuiltImage(
            manifest=manifest,
            media_type=outer.get("mediaType") or "application/vnd.oci.image.manifest.v1+json",
            platform=_platform(manifest, outer, inner),
            config=image_config(inner.get("config") or {}),
        )
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise ValueError(f"not an OCI image: {error}") from error


def _platform(manifest: bytes, outer: dict[str, Any], inner: dict[str, Any]) -> PlatformImage:
    return PlatformImage(
        platform=normalise_platform(inner["os"], inner["architecture"], inner.get("variant")),
        manifest_digest=digest_of(manifest),
        config_digest=outer["config"]["digest"],
        size_bytes=sum(layer["size"] for layer in outer["layers"]),
        layers=tuple(layer["digest"] for layer in outer["layers"]),
        diff_ids=tuple((inner.get("rootfs") or {}).get("diff_ids") or ()),
        created=inner.get("created"),
        author=(inner.get("author") or "")[:1024],
    )


def image_config(found: dict[str, Any]) -> ImageConfig:
    """Return the run configuration (image-spec, config.md), with what Docker adds to it."""
    entrypoint, cmd = found.get("Entrypoint"), found.get("Cmd")
    return ImageConfig(
        user=found.get("User") or "",
        env=tuple(found.get("Env") or ()),
        entrypoint=tuple(entrypoint) if entrypoint is not None else None,
        cmd=tuple(cmd) if cmd is not None else None,
        working_dir=found.get("WorkingDir") or "",
        exposed_ports=tuple(sorted(found.get("ExposedPorts") or ())),
        volumes=tuple(sorted(found.get("Volumes") or ())),
        labels=dict(sorted((found.get("Labels") or {}).items())),
        stop_signal=found.get("StopSignal"),
        healthcheck=_healthcheck(found.get("Healthcheck")),
        on_build=tuple(found.get("OnBuild") or ()),
        shell=tuple(found.get("Shell") or ()),
    )


def _healthcheck(found: dict[str, Any] | None) -> Healthcheck | None:
    """Return the health check, which Docker added to the configuration of the image-spec."""
    if not found:
        return None
    return Healthcheck(
        test=tuple(found.get("Test") or ()),
        interval_ns=found.get("Interval") or 0,
        timeout_ns=found.get("Timeout") or 0,
        start_period_ns=found.get("StartPeriod") or 0,
        retries=found.get("Retries") or 0,
    )
