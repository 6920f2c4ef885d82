"""What a manifest says, read once and checked: its kind, its parts, what it is about.

A manifest is kept and served byte for byte; what is read here only decides whether it may be kept
(all that it refers to is there, and as it says), how long its parts live, and which question about
another manifest it answers. Nothing of it is believed that could make it a document of ours, and
one that readers could understand in two ways is none.
"""

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pierhead.protocol.digest import digest_of, parse_digest
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
SIZE_MAX: Final = 2**63 - 1  # what readers keep it in
# RFC 6838, with room for parameters; a type is shown, and compared, and never acted upon.
_MEDIA_TYPE: Final = re.compile(r"[!-~]{1,127}/[ -~]{1,255}\Z")
_PUSH_AGAIN: Final = "push what it is about again, or let whoever made the manifest make it anew"
_NAMES: Final = {
    name.casefold(): name
    for name in (
        "schemaVersion",
        "mediaType",
        "artifactType",
        "config",
        "layers",
        "blobs",
        "manifests",
        "subject",
        "annotations",
        "digest",
        "size",
        "urls",
        "data",
        "platform",
    )
}
# Older clients attach things by it; image-spec 1.1 has an image manifest with a subject instead.
_ARTIFACT: Final = "application/vnd.oci.artifact.manifest.v1+json"


class ManifestInvalid(InvalidRequest):
    """The body is not a manifest, or not the one that the request says."""


class SizeWrong(ManifestInvalid):
    """A part that is there is not as long as the manifest says."""


class Part(NamedTuple):
    """What a manifest says of another document: the fields of a descriptor that are always there.

    `role`: the place in the manifest, for people: `layer 2`.
    """

    role: str
    digest: str
    size_bytes: int
    media_type: str

    def require_size(self, there: int) -> None:
        """Raise `SizeWrong` when what is there is shorter or longer."""
        if there != self.size_bytes:
            said = f"has {there} bytes, and the manifest says {self.size_bytes}"
            raise SizeWrong(f"{self.role} ({self.digest}) {said}", hint=_PUSH_AGAIN)

    def require_manifest(self, media_type: str, there: int) -> None:
        """Raise `ManifestInvalid` when the manifest that is there is of another type or size."""
        self.require_size(there)
        if media_type != self.media_type:
            said = f"is of the type {media_type}, and the manifest says {_shown(self.media_type)}"
            raise ManifestInvalid(f"{self.role} ({self.digest}) {said}", hint=_PUSH_AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a manifest says, its parts in its own order."""

    kind: str
    blobs: tuple[Part, ...] = ()
    manifests: tuple[Part, ...] = ()
    subject: Part | None = None
    artifact_type: str | None = None
    annotations: Mapping[str, str]

    @property
    def needed(self) -> tuple[str, ...]:
        """The digests of what it cannot do without."""
        return tuple(part.digest for part in (*self.blobs, *self.manifests))


def read_manifest(body: bytes, said: str) -> Reading:
    """Read a manifest that came with a Content-Type.

    Raises:
        ManifestInvalid: it is none, the two do not agree, or it says something twice.
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
        subject=_part(subject, "the subject") if subject is not None else None,
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
        # As text: of bytes, UTF-16 and a byte order mark would be taken, which no client reads.
        text = body.decode()
        found = json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ManifestInvalid("the manifest is not JSON in UTF-8") from error
    if not isinstance(found, dict):
        raise ManifestInvalid("the manifest is not an object")
    _require_plain_names(found)
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of two values under one name, each reader would take another."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name, count in times.items() if count > 1)
        raise ManifestInvalid(f"the manifest says {_shown(twice)} twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _require_plain_names(found: dict[str, Any]) -> None:
    """Refuse `Config` beside `config`, and instead of it: some readers take it for the same."""
    for name in found:
        meant = _NAMES.get(name.casefold())
        if meant not in (None, name):
            raise ManifestInvalid(f"the manifest says {_shown(name)} where {meant!r} is meant")


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


def _parts(kind: str, document: dict[str, Any]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the blobs and the manifests that a manifest cannot do without."""
    if kind in INDEXES:
        if document.get("schemaVersion") != 2:
            raise ManifestInvalid("the index is not an OCI index or a Docker manifest list")
        return (), _each(document.get("manifests"), "manifest")
    if kind == _ARTIFACT:
        return _each(document.get("blobs", []), "blob"), ()
    config = _part(document.get("config"), "the configuration")
    return (config, *_each(document.get("layers"), "layer")), ()


def _each(found: object, role: str) -> tuple[Part, ...]:
    if not isinstance(found, list) or len(found) > PARTS_MAX:
        raise ManifestInvalid(f"the manifest's {role}s are missing, or more than {PARTS_MAX}")
    return tuple(_part(part, f"{role} {number}") for number, part in enumerate(found, 1))


def _part(descriptor: object, role: str) -> Part:
    """Read a descriptor (image-spec, descriptor.md)."""
    if not isinstance(descriptor, dict):
        raise ManifestInvalid(f"{role} is missing, or is no descriptor")
    _require_plain_names(descriptor)
    said, size, kind = (descriptor.get(name) for name in ("digest", "size", "mediaType"))
    try:
        digest = parse_digest(said if isinstance(said, str) else "")
    except ValueError as error:
        raise ManifestInvalid(f"{role} is without a sha256 digest") from error
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= SIZE_MAX:
        raise ManifestInvalid(f"{role} ({digest}) is without a size in bytes")
    if not isinstance(kind, str) or not _MEDIA_TYPE.match(kind):
        raise ManifestInvalid(f"{role} ({digest}) is without a media type")
    _require_same_data(descriptor, role, digest, size)
    return Part(role, digest, size, kind)


def _require_same_data(descriptor: dict[str, Any], role: str, digest: str, size: int) -> None:
    """Refuse content beside its digest that is something else."""
    if "data" not in descriptor:
        return
    try:
        data = base64.b64decode(descriptor["data"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ManifestInvalid(f"the data of {role} ({digest}) is not base64") from error
    if (len(data), digest_of(data)) != (size, digest):
        raise ManifestInvalid(f"the data of {role} ({digest}) is something else")


def _annotations(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _shown(found: object) -> str:
    return repr(str(found)[:80])
