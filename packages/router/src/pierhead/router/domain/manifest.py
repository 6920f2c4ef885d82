"""What a manifest says, read once and checked: its kind, its parts, what it is about.

A manifest is kept and served byte for byte; what is read here only decides whether it may be kept
(all that it refers to is there), how long its parts live, and which question about another
manifest it answers. Nothing of it is believed that could make it a document of ours.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pierhead.protocol.digest import parse_digest
from pierhead.router.domain.errors import InvalidRequest

MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024  # distribution-spec, "Pushing Manifests"
PARTS_MAX: Final = 1024
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
IMAGES: Final = frozenset(
    {
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    }
)
INDEXES: Final = frozenset({OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"})
# Older clients attach things by it; image-spec 1.1 has an image manifest with a subject instead.
_ARTIFACT: Final = "application/vnd.oci.artifact.manifest.v1+json"


class ManifestInvalid(InvalidRequest):
    """The body is not a manifest, or not the one that the request says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a manifest says. Parts are digests, in the order of the manifest."""

    kind: str
    blobs: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    subject: str | None = None
    artifact_type: str | None = None
    annotations: Mapping[str, str]


def read_manifest(body: bytes, said: str) -> Reading:
    """Read a manifest that came with a Content-Type.

    Raises:
        ManifestInvalid: it is none, or the two do not agree.
    """
    document = _document(body)
    kind = _kind(said, document)
    if kind not in INDEXES | {_ARTIFACT} and document.get("schemaVersion") != 2:
        raise ManifestInvalid("the manifest is not an OCI or Docker schema 2 manifest")
    blobs, manifests = _parts(kind, document)
    subject = document.get("subject")
    config = document.get("config")
    artifact_type = document.get("artifactType")
    if artifact_type is None and isinstance(config, dict):
        artifact_type = config.get("mediaType")
    return Reading(
        kind=kind,
        blobs=blobs,
        manifests=manifests,
        subject=_digest(subject) if subject is not None else None,
        artifact_type=artifact_type if isinstance(artifact_type, str) else None,
        annotations=_annotations(document.get("annotations")),
    )


def referrer(reading: Reading, digest: str, size_bytes: int) -> dict[str, Any]:
    """Return the descriptor by which a manifest is listed among those about its subject."""
    found: dict[str, Any] = {"mediaType": reading.kind, "digest": digest, "size": size_bytes}
    if reading.artifact_type:
        found["artifactType"] = reading.artifact_type
    if reading.annotations:
        found["annotations"] = dict(reading.annotations)
    return found


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ManifestInvalid("the manifest is not JSON") from error
    if not isinstance(found, dict):
        raise ManifestInvalid("the manifest is not an object")
    return found


def _kind(said: str, document: dict[str, Any]) -> str:
    """Return what a manifest is, once the request and the document agree on it.

    It is served as this later: were anything allowed, a manifest could be a web page of ours.
    """
    inside = document.get("mediaType")
    kind = said.partition(";")[0].strip().lower() or inside
    if not isinstance(kind, str) or kind not in IMAGES | INDEXES | {_ARTIFACT}:
        raise ManifestInvalid(f"{_shown(kind)} is not the media type of a manifest")
    if inside not in (None, kind):
        raise ManifestInvalid(f"the manifest says it is {_shown(inside)}, the request {kind!r}")
    return kind


def _parts(kind: str, document: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the blobs and the manifests that a manifest cannot do without."""
    if kind in INDEXES:
        if document.get("schemaVersion") != 2:
            raise ManifestInvalid("the index is not an OCI index or a Docker manifest list")
        return (), _digests(document.get("manifests"))
    if kind == _ARTIFACT:
        return _digests(document.get("blobs", [])), ()
    config = _digests([document.get("config")])
    return (*config, *_digests(document.get("layers"))), ()


def _digests(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or len(found) > PARTS_MAX:
        raise ManifestInvalid("the manifest's descriptors are missing or too many")
    return tuple(_digest(part) for part in found)


def _digest(descriptor: object) -> str:
    said = descriptor.get("digest") if isinstance(descriptor, dict) else None
    try:
        return parse_digest(said if isinstance(said, str) else "")
    except ValueError as error:
        raise ManifestInvalid("the manifest has a descriptor without a sha256 digest") from error


def _annotations(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _shown(found: object) -> str:
    return repr(str(found)[:80])
